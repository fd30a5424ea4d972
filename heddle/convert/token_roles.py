"""What Hugging Face calls each special token, and what its tokenizers do otherwise than a `tokenizer.json` says."""

from collections.abc import Mapping
from typing import Any

from heddle.config.chat_template import ChatTemplateConfig
from heddle.config.ids import SpecialIds
from heddle.config.model import TransformerConfig
from heddle.convert.tokenizer_classes import CLASSES, ROLES, built, class_of, first_difference, named
from heddle.text.base import Base
from heddle.text.file import Content, model_type, steps_of
from heddle.text.masking import masked_ids, stand_ins
from heddle.text.tokenizer import Tokenizer
from heddle.weights.special_tokens import around_read, mask_of, typed


def has_other_types(config: TransformerConfig, tokenizer: Tokenizer) -> bool:
    """Whether a published tokenizer gives the texts of a pair other types than the model would read."""
    if not isinstance(tokenizer, Base) or not typed(config) or not tokenizer.around.between:
        return False
    return tokenizer.framed(tokenizer.around, typed=True) is not tokenizer


def as_set(
    tokenizer: Tokenizer, content: Content, settings: Mapping[str, Any], kind: str
) -> tuple[Tokenizer, list[str]]:
    """A published tokenizer with what its `tokenizer_config.json` changes in Hugging Face transformers, and notes for the user.

    Its classes take BERT's normalizer, and whether a blank comes before a text of bytes, from the settings alone.

    Args:
        tokenizer: what `tokenizer.json` says.
        content: of that file.
        settings: the `tokenizer_config.json`.
        kind: the `model_type` of the model.
    """
    found, notes = tokenizer, []
    parts = built(class_of(kind, settings, content), settings, content)
    normalizer = parts.get("normalizer") or {}
    if isinstance(found, Base) and normalizer.get("type") == "BertNormalizer":
        found = found.normalizing("BertNormalizer", normalizer)
        if found is not tokenizer:
            notes.append(
                f"its tokenizer's class sets the normalizer otherwise than tokenizer.json does, and is followed: {normalizer}"
            )
    cuts = steps_of(parts.get("pre_tokenizer"), "pretokenizers")
    blank = next((step.get("add_prefix_space", True) for step in cuts if step.get("type") == "ByteLevel"), None)
    if isinstance(found, Base) and blank is not None and found.prefixing(blank) is not found:
        found = found.prefixing(blank)
        notes.append(f"its tokenizer's class sets add_prefix_space = {blank}, unlike tokenizer.json, and is followed")
    if settings.get("truncation_side") == "left":
        notes.append("truncation_side = 'left' in tokenizer_config.json is left out: a long text loses its end")
    return found, notes


def read_otherwise(
    config: TransformerConfig, tokenizer: Tokenizer, content: Content, settings: Mapping[str, Any], kind: str
) -> list[str]:
    """Notes about what Hugging Face transformers reads or writes otherwise with a published tokenizer than heddle.

    Args:
        config: the model, with its special ids.
        tokenizer: as `as_set` returns it.
        content: of `tokenizer.json`.
        settings: the `tokenizer_config.json`.
        kind: the `model_type` of the model.
    """
    file, notes = "in tokenizer_config.json", list[str]()
    name = class_of(kind, settings, content)
    if name is not None and name not in CLASSES:
        notes.append(f"tokenizer_class = {name!r} {file} is none that heddle knows: tokenizer.json alone is followed")
    elif name is not None and CLASSES[name].sort != model_type(content):
        notes.append(f"{name} does not fit a {model_type(content)} tokenizer.json, which alone is followed")
    around = tokenizer.around if config.encoder is None else around_read(config, tokenizer)
    split, clean = (bool(settings.get(key)) for key in ("split_special_tokens", "clean_up_tokenization_spaces"))
    other = first_difference(tokenizer, around, built(name, settings, content), split, clean=False)
    if other is not None:
        text, what = other
        who = name if name in CLASSES else "a tokenizer"
        notes.append(
            f"{who} of Hugging Face transformers gives {text!r} other {what} than tokenizer.json, which is followed"
        )
    elif clean and model_type(content) != "BPE":
        notes.append(f"clean_up_tokenization_spaces {file} is left out: a decoded text keeps its blanks before marks")
    if split:
        notes.append(f"split_special_tokens {file} is left out: chat templates and masks are read as special tokens")
    for key, ids, where in (("add_bos_token", around.before, "before"), ("add_eos_token", around.after, "after")):
        if isinstance(settings.get(key), bool) and settings[key] != bool(ids):
            puts = f"{'a token' if ids else 'no token'} {where} a text"
            notes.append(f"{key} = {settings[key]} {file} is left out: tokenizer.json puts {puts}")
    longest, said = config.longest_text(), settings.get("model_max_length")
    if isinstance(said, int | float) and 0 < said < longest:
        notes.append(f"model_max_length = {said} {file} is left out: heddle reads up to {longest} ids of a text")
    extra = [*(settings.get("extra_special_tokens") or ()), *(settings.get("additional_special_tokens") or ())]
    extra += list((settings.get("added_tokens_decoder") or {}).values())
    absent = [text for text in dict.fromkeys(map(named, extra)) if text and text not in tokenizer.special]
    if absent:
        notes.append(
            f"{absent[0]!r} ({len(absent)} in all) is said to be special, but tokenizer.json has no such token: left out"
        )
    return notes


def read_roles(
    settings: Mapping[str, Any], config: TransformerConfig, tokenizer: Tokenizer
) -> tuple[dict[str, str], list[str]]:
    """What a published `tokenizer_config.json` calls its special tokens where that is not usual, and notes about those it lacks."""
    texts = {role: named(settings[role]) for role in ROLES if settings.get(role) is not None}
    usual = written_roles(config, tokenizer, config.ids or SpecialIds(), None)
    roles = {role: text for role, text in texts.items() if text in tokenizer.special}
    notes = [
        f"{role} = {text!r} is none of the tokenizer's special tokens: left out"
        for role, text in texts.items()
        if role not in roles
    ]
    return {role: text for role, text in roles.items() if usual.get(role) != text}, notes


def written_roles(
    config: TransformerConfig, tokenizer: Tokenizer, ids: SpecialIds, chat: ChatTemplateConfig | None
) -> dict[str, str]:
    """Hugging Face's names for the special tokens of an export. Naming a token that does not exist would add it.

    What a chat template calls special tokens is what it was trained with: a name that it uses and lacks is left out.
    """
    texts = {i: text for text, i in tokenizer.special.items()}
    around = around_read(config, tokenizer)
    end = ids.end[0] if isinstance(ids.end, tuple) else ids.end  # these files can name only one
    roles = {"bos_token": ids.begin, "eos_token": end, "pad_token": ids.padding}
    if len(around.before) == 1 and around.after:
        roles |= {"cls_token": around.before[0], "sep_token": around.after[-1]}
    unknown = tokenizer.unknown if isinstance(tokenizer, Base) else None
    # As in GPT-2, the end of a text stands for what no vocabulary lacks: CTranslate2 reads no model without a name for it.
    roles["unk_token"] = end if unknown is None and config.ids is None else unknown
    mask = mask_of(tokenizer, ids) if config.decoder is None else None
    found = {role: texts[i] for role, i in roles.items() if i in texts}
    found |= ({} if mask is None else {"mask_token": mask}) | ids.roles
    if chat is None:
        return found
    return {role: text for role, text in found.items() if role not in chat.template} | chat.tokens


def published_tokenizer(config: TransformerConfig, tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer whose file alone makes Hugging Face transformers read texts as the model does."""
    if not isinstance(tokenizer, Base):
        return tokenizer
    found = tokenizer.framed(around_read(config, tokenizer), typed(config))
    mask = mask_of(tokenizer) if config.ids is None and config.decoder is None else None
    words = [] if mask is None else stand_ins(tokenizer)
    if mask is not None and words:
        # A blank may belong to the word after it, or be implied, and a mask stands in a word's place.
        ids = masked_ids(tokenizer, f"{words[0]} {mask} {words[-1]}", mask, words)
        place = ids.index(tokenizer.special[mask])
        left, right = (
            part == tokenizer.encode(word) for part, word in ((ids[:place], words[0]), (ids[place + 1 :], words[-1]))
        )
        found = found.stripping(mask, left, right)
    return found
