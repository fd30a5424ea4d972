"""Imports published models as runs, and exports runs for Hugging Face transformers with a check of their scores."""

from collections.abc import Collection, Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any

from heddle.checks import checked
from heddle.config.embedding import EmbeddingHeadConfig
from heddle.config.model import TransformerConfig
from heddle.config.saved import SavedConfig
from heddle.convert.agreement import Agreement, compare
from heddle.convert.families import ALL, Family
from heddle.convert.families.family import left_out
from heddle.convert.families.rotary import of_one_length
from heddle.convert.fields import without
from heddle.convert.fitting import choose
from heddle.convert.generation_config import read_decoding
from heddle.convert.hub import fetch
from heddle.convert.mapping import import_tensors
from heddle.convert.mxfp4 import Unpacked
from heddle.convert.published import open_weights, read_chat, read_json, read_tokenizer, read_tokens, write_published
from heddle.convert.sentence_transformers import Sentences, read_sentences, write_sentences
from heddle.convert.special_ids import read_ids
from heddle.convert.token_roles import has_other_types
from heddle.errors import HeddleError, did_you_mean, problems_of, together
from heddle.text.tokenizer import Tokenizer
from heddle.weights.files import refuse_unwritable, write_directory, write_manifest
from heddle.weights.run import build_empty, load, read_config, write_model
from heddle.weights.start import is_head
from heddle.weights.tensors import Spec, check_depth, specs_of
from heddle.weights.tensors import compare as compare_specs

LOWER = ("BF16", "U8")  # dtypes of numbers that bf16 holds exactly; the second packs two of four bits
NO_SENTENCES = (
    "no modules.json of sentence-transformers: a text's vector is the pooler output of {architecture}; "
    "heddle embed --pooling mean takes the mean of its hidden vectors instead"
)


@checked()
def import_model(source: str | Path, run: str | Path, hub: bool = False) -> dict[str, Any]:
    """Import a published model as a run directory with its config, its weights in fp32 and its tokenizer.

    Args:
        source: a Hugging Face directory; with `hub`, an `owner/name` on the Hugging Face Hub.
        run: the new directory; it must not exist.

    Returns:
        `family`; `parameters`, their number; `writes`, whether `generate` works with it, since it is a decoder with a tokenizer;
        `notes` for the user.

    Raises:
        HeddleError: the files are missing, damaged or of an unknown kind, the config has a setting that heddle does not
            support, or the weights do not match the config. Nothing is left behind then.
    """
    folder = fetch(str(source)) if hub else Path(source)
    if not folder.is_dir():
        advice = "" if folder.exists() else "; to download it from the Hugging Face Hub, add --hub"
        raise HeddleError(f"{folder}: no such directory{advice}")
    sentences = read_sentences(folder)
    top_folder, folder = folder, folder if sentences is None else sentences.body
    published = read_json(folder / "config.json")
    try:
        family, config, head_notes = family_and_config(published, open_weights(folder), sentences)
    except HeddleError as error:
        raise HeddleError(f"{folder}: {error}") from None
    generation_file = folder / "generation_config.json"
    count = max(config.vocab_size, config.source_vocab_size or 0)
    generation_config = read_json(generation_file) if generation_file.is_file() else None
    ids, notes = read_ids(published, generation_config or {}, family.ids, count)
    decoding, decoding_notes = read_decoding(published, generation_config, len(config.stacks()) == 2)
    if sentences is None and isinstance(config.head, EmbeddingHeadConfig):
        notes.append(NO_SENTENCES.format(architecture=family.architecture))
    weights = Unpacked(open_weights(folder))
    config = family.with_own_head(config, weights)
    check_depths(family, config, weights, folder)
    empty = build_empty(config, folder / "config.json").state_dict()
    lower = sentences is not None and sentences.lower
    tokenizer, tokenizer_notes = read_tokenizer(folder, family.name, lower)
    chat, chat_notes = read_chat(folder)
    notes += [
        *head_notes,
        *(() if sentences is None else sentences.notes),
        *tokenizer_notes,
        *left_out(published),
        *(decoding_notes if config.decoder is not None else []),
        *of_one_length(config),
        *chat_notes,
    ]
    if tokenizer is not None and (reason := _unusable(tokenizer, config)):
        notes.append(f"its tokenizer is left out: {reason}")
        tokenizer = None
    if tokenizer is not None:
        roles, role_notes = read_tokens(folder, config.model_copy(update={"ids": ids}), tokenizer, family.name, lower)
        ids, notes = ids.model_copy(update={"roles": roles}), [*notes, *role_notes]
    if tokenizer is None:
        notes.append("the run has no tokenizer: it only reads and returns ids")
    with write_directory(Path(run)) as directory:
        body_tensors = {name: each for name, each in empty.items() if sentences is None or not is_head(name)}
        imported = import_tensors(family.table, family.names, config, body_tensors, weights, folder)
        config, tensors = family.simplify(config, imported)
        if sentences is not None:
            tensors = {**tensors, **sentences.tensors()}
            compare_specs(specs_of(tensors), specs_of(empty), top_folder)
        run_settings = {"ids": ids, "architecture": family.architecture, "chat": chat, "decoding": decoding}
        config = config.model_copy(update=run_settings)
        saved = SavedConfig(model=config, origin=str(source))
        extra = {"origin": str(source), "family": family.name, "precision": published_in(open_weights(folder).specs)}
        write_model(directory, tensors, saved, tokenizer, step=0, extra=extra)
    parameters = sum(tensor.numel() for tensor in tensors.values())
    generates = tokenizer is not None and "decoder" in config.stacks() and len(config.stacks()) == 1
    return {"family": family.name, "parameters": parameters, "writes": generates, "notes": notes}


def published_in(specs: Mapping[str, Spec]) -> str:
    """The precision of most of the published numbers: `bf16`, also for those packed into four bits; of others `fp32`."""
    sizes = {name: prod(spec.shape) for name, spec in specs.items()}
    lower = sum(size for name, size in sizes.items() if specs[name].dtype in LOWER)
    return "bf16" if 2 * lower > sum(sizes.values()) else "fp32"


def _unusable(tokenizer: Tokenizer, config: TransformerConfig) -> str:
    """Why a published tokenizer cannot be used with its model; empty if it can."""
    if tokenizer.vocab_size > config.vocab_size:
        return f"it has {tokenizer.vocab_size} ids, but the model only {config.vocab_size}"
    if has_other_types(config, tokenizer):
        return "it gives the texts of a pair other types than 0 and 1"
    return ""


def family_and_config(
    published: Mapping[str, Any], names: Collection[str], sentences: Sentences | None
) -> tuple[Family, TransformerConfig, list[str]]:
    """The family of a config.json with weights of these names, the model as a heddle config, and notes for the user.

    Raises:
        HeddleError: heddle does not support the model.
    """
    # sentence-transformers replaces the head, so the head of the class does not matter.
    families = families_of(published if sentences is None else without(published, "architectures"))
    family = families[0] if len(families) == 1 else nearest_table(families, names)
    if sentences is not None:
        family = family.body()
        data = family.to_config(without(published, "architectures")).to_dict()
        with_head = {**data, "head": sentences.head.to_dict()}
        return family, TransformerConfig.of(with_head, where="its files in heddle's terms"), []
    family, notes = with_its_head(family, names)
    config = family.to_config({**published, "architectures": [family.architecture]} if notes else published)
    architectures = [] if notes else published.get("architectures") or []
    also_notes = [
        f"{name}: read as {family.architecture}, without its other heads"
        for name in architectures
        if name in family.also
    ]
    return family, config, [*notes, *also_notes]


def check_depths(family: Family, config: TransformerConfig, names: Iterable[str], where: Path) -> None:
    """Refuse weights with another number of layers than the config."""
    start = family.names.prefix or family.names.wrapped
    for name, stack in config.stacks().items():
        place = None if len(config.stacks()) == 1 else name
        check_depth(names, family.names.wrapped + family.layers[name], stack.depth, where, start, place)


def families_of(published: Mapping[str, Any]) -> list[Family]:
    """The families that a published config.json may belong to: those of its `model_type`.

    If several differ in their heads, its architecture decides. If it names no architecture, all of them are returned.

    Raises:
        HeddleError: heddle does not support this family.
    """
    name, architectures = published.get("model_type"), published.get("architectures")
    families = [family for family in ALL if family.name == name]
    if name is None and {"model", "version"} <= published.keys():
        raise HeddleError("this is already a heddle run: use it directly, or copy the directory")
    if not families:
        family_names = list(dict.fromkeys(family.name for family in ALL))
        problem = "config.json has no model_type" if name is None else f"model_type = {name!r}"
        raise HeddleError(f"{problem}; heddle reads {', '.join(family_names)}.{did_you_mean(str(name), family_names)}")
    if len(families) == 1 or not architectures:
        return families
    names = architectures if isinstance(architectures, list) else []
    matching = [family for family in families if any(each in names for each in (family.architecture, *family.also))]
    if not matching:
        heads = ", ".join(family.architecture for family in families)
        raise HeddleError(f"architectures = {architectures} in config.json: for {name}, heddle reads {heads}")
    return matching[:1]


def with_its_head(family: Family, names: Collection[str]) -> tuple[Family, list[str]]:
    """The family; or, if no tensor belongs to its head, the class with the same body that fits the names best, and a note.

    Many encoders for embeddings still name the class for masked tokens that they were trained from.
    """
    tensor_names = {family.names.normalized(name) for name in names}
    head = {row.published for row in family.table if row.heddle[0].startswith("head.")}
    siblings = [each for each in ALL if each.name == family.name and each is not family]
    if not siblings or not head or head & tensor_names:
        return family, []
    nearest = nearest_table((family, *siblings), names)
    if nearest is family:
        return family, []
    return nearest, [
        f"its weights are those of {nearest.architecture}: the head of {family.architecture} is not among them"
    ]


def nearest_table(families: Iterable[Family], names: Iterable[str]) -> Family:
    """The family whose tensors outside of layers, such as those of its head, match these names best."""

    def score(family: Family) -> int:
        tensor_names = {family.names.normalized(name) for name in names}
        expected = {row.published for row in family.table if "{i}" not in row.published}
        return sum(1 if {row, row.removeprefix(family.names.prefix)} & tensor_names else -1 for row in expected)

    return max(families, key=score)


@checked()
def export_model(run: str | Path, directory: str | Path) -> dict[str, Any]:
    """Write a run as a directory that Hugging Face transformers loads (`from_pretrained`), and compare the two models.

    The tokenizer and the model that transformers loads from the directory read texts, pairs and conversations. Their ids, types and
    scores must equal heddle's.

    Args:
        run: a run or a checkpoint directory.
        directory: the new directory; it must not exist.

    Returns:
        `family`; `checked`, whether Hugging Face transformers was installed to load it; `difference`, the largest difference of two
        scores relative to the largest score (or 1), and `allowed`, the difference that rounding explains, both None if not
        checked; `notes` for the user.

    Raises:
        HeddleError: no family can express the model, the directory cannot be written, Hugging Face transformers encodes a text as
            other ids, or its scores differ in fp32 by more than 1e-5 and more than 8 times the rounding error of either side.
            Nothing is left behind then.
    """
    target_problems = problems_of(lambda: refuse_unwritable(Path(directory)))
    family, notes = together(target_problems, lambda: choose(read_config(run).model))
    model, tokenizer = load(run, "cpu")
    with write_directory(Path(directory)) as partial:
        write_published(partial, family, model, tokenizer)
        if isinstance(model.config.head, EmbeddingHeadConfig):
            write_sentences(partial, model.config, model.state_dict())
        try:
            agreement = compare(model, tokenizer, family, partial)
        except HeddleError as error:
            raise HeddleError(f"{run}: {error}; nothing was written") from None
        if isinstance(agreement, str):
            notes.append(f"not checked: {agreement}")
        elif not agreement.difference <= agreement.allowed:
            raise HeddleError(
                f"{run}: the scores of {family.architecture} differ by {agreement.difference:.1e} of the largest, but rounding "
                f"explains only {agreement.allowed:.1e}; nothing was written. This is a bug in heddle: please report it"
            )
        else:
            notes += agreement.notes
        is_checked = isinstance(agreement, Agreement)
        measured = agreement.measured() if isinstance(agreement, Agreement) else {"difference": None, "allowed": None}
        record = {"family": family.name, "checked": is_checked, **measured}
        write_manifest(partial, record)
    return {**record, "notes": notes}
