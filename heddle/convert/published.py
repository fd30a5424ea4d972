"""The directory of a published model, in the layout of Hugging Face transformers: reading and writing."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from heddle.config.chat_template import ChatTemplateConfig
from heddle.config.ids import SpecialIds
from heddle.config.model import TransformerConfig
from heddle.convert.families import Family
from heddle.convert.generation_config import written_decoding
from heddle.convert.mapping import to_theirs
from heddle.convert.special_ids import own_ids, written_ids
from heddle.convert.token_roles import as_set, published_tokenizer, read_otherwise, read_roles, written_roles
from heddle.convert.tokenizer_classes import ROLES
from heddle.errors import HeddleError, article
from heddle.model.transformer import Transformer
from heddle.text.base import Base
from heddle.text.bpe import load_gpt2_merges
from heddle.text.chat_template import ChatTemplate
from heddle.text.file import FILE_NAME, byte_symbols, lowered, read_content
from heddle.text.template_process import SandboxedTemplate
from heddle.text.tokenizer import Tokenizer, load_tokenizer
from heddle.weights.special_tokens import PADS, typed
from heddle.weights.start import is_head
from heddle.weights.tensors import Weights, save_tensors

INDEX = "model.safetensors.index.json"
TEMPLATE, SETTINGS = "chat_template.jinja", "tokenizer_config.json"
MAP, ADDED = "special_tokens_map.json", "added_tokens.json"


def open_weights(folder: Path) -> Weights:
    """The safetensors of a published directory: one file, or the parts that an index names.

    Raises:
        HeddleError: there are none, or the index and its files do not match.
    """
    single, index = folder / "model.safetensors", folder / INDEX
    if single.is_file():
        return Weights([single])
    if index.is_file():
        places = read_json(index).get("weight_map")
        if not isinstance(places, Mapping) or not all(isinstance(place, str) for place in places.values()):
            raise HeddleError(f"{index}: holds no weight_map")
        parts = sorted(set(places.values()))
        outside = [part for part in parts if Path(part).name != part or not part.endswith(".safetensors")]
        if outside:
            raise HeddleError(f"{index}: {outside[0]!r} is not the name of a safetensors file next to it")
        weights = Weights([folder / part for part in parts])
        wrong = sorted(set(places) ^ set(weights))
        if wrong:
            raise HeddleError(f"{index}: its files and its weight_map disagree about {wrong[0]} ({len(wrong)} in all)")
        return weights
    pickled = sorted([*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")])
    if pickled:
        raise HeddleError(
            f"{pickled[0]}: a pickle, which can run code when read; first convert it to safetensors with Hugging Face transformers"
        )
    raise HeddleError(f"{folder}: no model.safetensors and no {INDEX}")


def read_tokenizer(folder: Path, kind: str, lower: bool = False) -> tuple[Tokenizer | None, list[str]]:
    """The tokenizer of a published directory, and notes for the user; None if heddle does not have it, and a note says why.

    What `tokenizer_config.json` says otherwise than `tokenizer.json` is taken as the classes of Hugging Face transformers take it,
    which depend on the model's `kind`, its `model_type`. With `lower`, texts are put in lower case before anything else.
    """
    try:
        if (folder / "tokenizer.json").is_file():
            tokenizer = load_tokenizer(folder, lower)
            return as_set(tokenizer, read_content(folder)[1], read_settings(folder), kind)
        if (folder / "merges.txt").is_file() and (folder / "vocab.json").is_file():
            tokenizer = load_gpt2_merges(folder / "merges.txt")
            if not _same_ids(read_json(folder / "vocab.json"), tokenizer):
                return None, ["its tokenizer is left out: vocab.json has other ids than GPT-2's"]
            return tokenizer, []
    except HeddleError as error:
        return None, [f"its tokenizer is left out: {error}"]
    return None, ["the directory has no tokenizer.json"]


def read_settings(folder: Path) -> dict[str, Any]:
    """The `tokenizer_config.json` of a published directory; empty if there is none.

    An older directory names its special tokens in `special_tokens_map.json`, and the tokens that a vocabulary was given later in
    `added_tokens.json`, both of which no newer `added_tokens_decoder` leaves in force.
    """
    own, map_, added = (
        read_json(file) if file.is_file() else {} for file in (folder / name for name in (SETTINGS, MAP, ADDED))
    )
    if "added_tokens_decoder" in own:
        return own
    extra = [*(own.get("additional_special_tokens") or ()), *added]
    return {**own, **map_, **({"additional_special_tokens": extra} if extra else {})}


def read_tokens(
    folder: Path, config: TransformerConfig, tokenizer: Tokenizer, kind: str, lower: bool
) -> tuple[dict[str, str], list[str]]:
    """What a published directory calls its special tokens where that is not usual; and notes about tokens that it lacks, and about
    texts that Hugging Face transformers reads otherwise with it.

    Args:
        config: the model, with its special ids.
        tokenizer: as `read_tokenizer` returns it.
        kind: the model's `model_type`.
        lower: whether texts are put in lower case first.
    """
    settings = read_settings(folder)
    roles, notes = read_roles(settings, config, tokenizer)
    if (folder / FILE_NAME).is_file():
        content = read_content(folder)[1]
        notes += read_otherwise(config, tokenizer, lowered(content) if lower else content, settings, kind)
    return roles, notes


def read_chat(folder: Path) -> tuple[ChatTemplateConfig | None, list[str]]:
    """The chat template of a published directory, or None, and notes for the user."""
    said = read_settings(folder)
    template = said.get("chat_template")
    if isinstance(template, list):  # several by name
        named = {each.get("name"): each.get("template") for each in template if isinstance(each, Mapping)}
        template = named.get("default")
    if (folder / TEMPLATE).is_file():
        template = (folder / TEMPLATE).read_text(encoding="utf-8")
    if not isinstance(template, str) or not template:
        return None, []
    named = {name: value.get("content") if isinstance(value, Mapping) else value for name, value in said.items()}
    tokens = {name: text for name, text in named.items() if name in ROLES and isinstance(text, str)}
    try:
        SandboxedTemplate(template)
    except HeddleError as error:
        return None, [f"its chat template is left out: {error}"]
    return ChatTemplateConfig(template=template, tokens=tokens), []


def _same_ids(vocab: Mapping[str, Any], tokenizer: Tokenizer) -> bool:
    """Whether a `vocab.json`, which writes bytes as printable characters, gives every piece the tokenizer's id."""
    symbols = byte_symbols()
    try:
        pieces = {bytes(symbols[character] for character in piece): int(i) for piece, i in vocab.items()}
    except (KeyError, TypeError, ValueError):
        return False
    return pieces == {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size)}


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that holds a table.

    Raises:
        HeddleError: the file is missing, damaged, or holds something else.
    """
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise HeddleError(f"{path}: no such file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise HeddleError(f"{path}: cannot be read as JSON ({error})") from None
    if not isinstance(data, dict):
        raise HeddleError(f"{path}: holds {article(type(data).__name__)}, must be a table of keys")
    return data


def write_published(folder: Path, family: Family, model: Transformer, tokenizer: Tokenizer | None) -> None:
    """Fill a directory with all files that Hugging Face transformers reads."""
    ids, chat = special_ids(model.config, tokenizer), model.config.chat
    if chat is not None and tokenizer is not None:
        (folder / TEMPLATE).write_text(chat.template, encoding="utf-8")
    state = {name: each for name, each in model.state_dict().items() if not (family.headless and is_head(name))}
    config, tensors = family.rewrite(model.config, state)
    read = None if tokenizer is None else published_tokenizer(config, tokenizer)
    if family.from_zero is not None and starts_otherwise(read, config) and ids.decoder_start is not None:
        config, tensors = family.from_zero(config, tensors, ids.decoder_start)
        read = read.with_special(PADS[1:])
        ids = ids.model_copy(update={"padding": config.vocab_size - 1, "decoder_start": config.vocab_size - 1})
    said, generation = written_ids(ids, family.ids)
    theirs = {"architectures": [family.architecture], "model_type": family.name, **said, **family.theirs(config)}
    # Hugging Face transformers reads `torch_dtype` before version 4.56, and `dtype` from then on.
    write_json(folder / "config.json", {**theirs, "torch_dtype": "float32", "dtype": "float32"})
    write_json(folder / "generation_config.json", {**generation, **written_decoding(model.config.decoding)})
    named = to_theirs(family.table, config, tensors)
    if family.headless:  # as the class of the bare model names them
        named = {name.removeprefix(family.names.prefix): each for name, each in named.items()}
    save_tensors(folder / "model.safetensors", named, {"format": "pt"})
    if read is not None:
        read.save(folder)
        write_json(folder / SETTINGS, tokenizer_config(config, read, ids, chat))


def starts_otherwise(tokenizer: Tokenizer | None, config: TransformerConfig) -> TypeGuard[Base]:
    """Whether a model is one of heddle's own, whose tokenizer has a text for each id and takes a further one."""
    if config.ids is not None or not isinstance(tokenizer, Base) or tokenizer.has(PADS[1]):
        return False
    return {config.vocab_size, config.source_vocab_size or config.vocab_size} == {tokenizer.vocab_size}


def special_ids(config: TransformerConfig, tokenizer: Tokenizer | None) -> SpecialIds:
    """The special ids that an export names: a model built by heddle takes them from the tokenizer, and an answer's end is one."""
    ids = config.ids or own_ids(tokenizer, config)
    if config.chat is None or tokenizer is None:
        return ids
    ends = (
        *ChatTemplate.of(config.chat, tokenizer, sandboxed=True).ends,
        *ids.ends(),
    )  # an answer ends before a text does
    return ids.model_copy(update={"end": tuple(dict.fromkeys(ends)) or None})


def tokenizer_config(
    config: TransformerConfig, tokenizer: Tokenizer, ids: SpecialIds, chat: ChatTemplateConfig | None = None
) -> dict[str, Any]:
    """The `tokenizer_config.json` for a `tokenizer.json`."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",  # others change what tokenizer.json says
        "model_max_length": config.longest_text(),
        "model_input_names": ["input_ids", *(["token_type_ids"] if typed(config) else []), "attention_mask"],
        "clean_up_tokenization_spaces": False,
        **written_roles(config, tokenizer, ids, chat),
    }


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write a JSON file that holds a table."""
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
