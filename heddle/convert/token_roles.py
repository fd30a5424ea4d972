"""Hugging Face's names of special tokens, and where its tokenizers deviate from a `tokenizer.json`."""

from collections.abc import Mapping
from typing import Any

from heddle.config.chat_template import ChatTemplateConfig
from heddle.config.ids import SpecialIds
from heddle.config.model import TransformerConfig
from heddle.convert.tokenizer_classes import CLASSES, ROLES, class_content, class_of, first_difference, token_text
from heddle.text.base import Base
from heddle.text.file import Content, model_type, steps_of
from heddle.text.masking import masked_ids, stand_ins
from heddle.text.tokenizer import Tokenizer
from heddle.weights.special_tokens import around_read, mask_of, typed


def has_other_types(config: TransformerConfig, tokenizer: Tokenizer) -> bool:
    """Whether a published tokenizer gives the texts of a pair other types than heddle would."""
    if not isinstance(tokenizer, Base) or not typed(config) or not tokenizer.around.between:
        return False
    return tokenizer.framed(tokenizer.around, typed=True) is not tokenizer


def apply_settings(
    tokenizer: Tokenizer, content: Content, settings: Mapping[str, Any], model_kind: str
) -> tuple[Tokenizer, list[str]]:
    """A published tokenizer with the changes that its `tokenizer_config.json` makes in Hugging Face transformers, and notes.

    The classes of transformers read BERT's normalizer, and a byte-level tokenizer's `add_prefix_space`, from the settings alone.

    Args:
        tokenizer: the tokenizer of `tokenizer.json`.
        content: the content of that file.
        settings: the `tokenizer_config.json`.
        model_kind: the `model_type` of the model.
    """
    adjusted, notes = tokenizer, []
    parts = class_content(class_of(model_kind, settings, content), settings, content)
    normalizer = parts.get("normalizer") or {}
    if isinstance(adjusted, Base) and normalizer.get("type") == "BertNormalizer":
        adjusted = adjusted.normalizing("BertNormalizer", normalizer)
        if adjusted is not tokenizer:
            notes.append(
                f"the class of its tokenizer overrides the normalizer of tokenizer.json, so heddle uses {normalizer}"
            )
    pre_tokenizers = steps_of(parts.get("pre_tokenizer"), "pretokenizers")
    prefix_space = next(
        (step.get("add_prefix_space", True) for step in pre_tokenizers if step.get("type") == "ByteLevel"), None
    )
    if isinstance(adjusted, Base) and prefix_space is not None and adjusted.prefixing(prefix_space) is not adjusted:
        adjusted = adjusted.prefixing(prefix_space)
        notes.append(
            f"the class of its tokenizer overrides tokenizer.json, so heddle uses add_prefix_space = {prefix_space}"
        )
    if settings.get("truncation_side") == "left":
        notes.append("truncation_side = 'left' in tokenizer_config.json is ignored: a long text loses its end")
    return adjusted, notes


def deviations(
    config: TransformerConfig, tokenizer: Tokenizer, content: Content, settings: Mapping[str, Any], model_kind: str
) -> list[str]:
    """Notes on where Hugging Face transformers encodes or decodes with a published tokenizer differently from heddle.

    Args:
        config: the model, with its special ids.
        tokenizer: as `apply_settings` returns it.
        content: the content of `tokenizer.json`.
        settings: the `tokenizer_config.json`.
        model_kind: the `model_type` of the model.
    """
    file, notes = "in tokenizer_config.json", list[str]()
    name = class_of(model_kind, settings, content)
    if name is not None and name not in CLASSES:
        notes.append(f"tokenizer_class = {name!r} {file} is unknown to heddle, which follows tokenizer.json")
    elif name is not None and CLASSES[name].sort != model_type(content):
        notes.append(f"{name} does not fit a {model_type(content)} tokenizer.json, which heddle follows")
    around = tokenizer.around if config.encoder is None else around_read(config, tokenizer)
    split, clean = (bool(settings.get(key)) for key in ("split_special_tokens", "clean_up_tokenization_spaces"))
    difference = first_difference(tokenizer, around, class_content(name, settings, content), split, clean=False)
    if difference is not None:
        text, what = difference
        reader = name if name in CLASSES else "a tokenizer"
        notes.append(
            f"{reader} of Hugging Face transformers gives {text!r} other {what} than tokenizer.json, which heddle follows"
        )
    elif clean and model_type(content) != "BPE":
        notes.append(f"clean_up_tokenization_spaces {file} is ignored: decoded texts keep spaces before punctuation")
    if split:
        notes.append(f"split_special_tokens {file} is ignored: chat templates and masks are read as special tokens")
    for key, ids, where in (("add_bos_token", around.before, "before"), ("add_eos_token", around.after, "after")):
        if isinstance(settings.get(key), bool) and settings[key] != bool(ids):
            action = f"{'a token' if ids else 'no token'} {where} a text"
            notes.append(f"{key} = {settings[key]} {file} is ignored: tokenizer.json puts {action}")
    longest_text, max_length = config.longest_text(), settings.get("model_max_length")
    if isinstance(max_length, int | float) and 0 < max_length < longest_text:
        notes.append(
            f"model_max_length = {max_length} {file} is ignored: heddle reads up to {longest_text} ids of a text"
        )
    special = [*(settings.get("extra_special_tokens") or ()), *(settings.get("additional_special_tokens") or ())]
    special += list((settings.get("added_tokens_decoder") or {}).values())
    missing = [text for text in dict.fromkeys(map(token_text, special)) if text and text not in tokenizer.special]
    if missing:
        notes.append(
            f"the special token {missing[0]!r} ({len(missing)} in all) is left out: it is not in tokenizer.json"
        )
    return notes


def read_roles(
    settings: Mapping[str, Any], config: TransformerConfig, tokenizer: Tokenizer
) -> tuple[dict[str, str], list[str]]:
    """The names of special tokens in a `tokenizer_config.json` that differ from the defaults, and notes on missing tokens."""
    texts = {role: token_text(settings[role]) for role in ROLES if settings.get(role) is not None}
    default_roles = export_roles(config, tokenizer, config.ids or SpecialIds(), None)
    roles = {role: text for role, text in texts.items() if text in tokenizer.special}
    notes = [
        f"{role} = {text!r} is left out: the tokenizer has no such special token"
        for role, text in texts.items()
        if role not in roles
    ]
    return {role: text for role, text in roles.items() if default_roles.get(role) != text}, notes


def export_roles(
    config: TransformerConfig, tokenizer: Tokenizer, ids: SpecialIds, chat: ChatTemplateConfig | None
) -> dict[str, str]:
    """Hugging Face's names for the special tokens of an export. A name for a missing token would add the token.

    A chat template keeps the names that the model was trained with: a name that it uses without a token of its own is left out.
    """
    text_of_id = {i: text for text, i in tokenizer.special.items()}
    around = around_read(config, tokenizer)
    end = ids.end[0] if isinstance(ids.end, tuple) else ids.end  # the file can name only one
    roles = {"bos_token": ids.begin, "eos_token": end, "pad_token": ids.padding}
    if len(around.before) == 1 and around.after:
        roles |= {"cls_token": around.before[0], "sep_token": around.after[-1]}
    unknown = tokenizer.unknown if isinstance(tokenizer, Base) else None
    # CTranslate2 requires an unknown token. As in GPT-2 it is the end of a text, since this vocabulary covers all texts.
    roles["unk_token"] = end if unknown is None and config.ids is None else unknown
    mask = mask_of(tokenizer, ids) if config.decoder is None else None
    named_roles = {role: text_of_id[i] for role, i in roles.items() if i in text_of_id}
    named_roles |= ({} if mask is None else {"mask_token": mask}) | ids.roles
    if chat is None:
        return named_roles
    return {role: text for role, text in named_roles.items() if role not in chat.template} | chat.tokens


def published_tokenizer(config: TransformerConfig, tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer whose file makes Hugging Face transformers encode texts as the model reads them."""
    if not isinstance(tokenizer, Base):
        return tokenizer
    framed = tokenizer.framed(around_read(config, tokenizer), typed(config))
    mask = mask_of(tokenizer) if config.ids is None and config.decoder is None else None
    words = [] if mask is None else stand_ins(tokenizer)
    if mask is not None and words:
        # A space may belong to the word after it, or be implied. A mask replaces the word, so it may have to strip spaces.
        ids = masked_ids(tokenizer, f"{words[0]} {mask} {words[-1]}", mask, words)
        place = ids.index(tokenizer.special[mask])
        left, right = (
            part == tokenizer.encode(word) for part, word in ((ids[:place], words[0]), (ids[place + 1 :], words[-1]))
        )
        framed = framed.stripping(mask, left, right)
    return framed
