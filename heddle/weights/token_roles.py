"""What special tokens are for: those that a model reads around texts, its mask, and what Hugging Face calls each of them."""

from collections.abc import Mapping
from typing import Any

from heddle.config.chat import ChatTemplateConfig
from heddle.config.ids import SpecialIds
from heddle.config.model import TransformerConfig
from heddle.text.base import Base
from heddle.text.masking import masked_ids, stand_ins
from heddle.text.tokenizer import Around, Tokenizer

# Names of the token before a text, of the one after it, of a mask and of padding: BERT's and RoBERTa's.
BEGINNINGS, ENDS, MASKS, PADS = ("[CLS]", "<s>"), ("[SEP]", "</s>"), ("[MASK]", "<mask>"), ("[PAD]", "<pad>")
# Classes of Hugging Face transformers that set BERT's normalizer: their settings, with its names for them and the defaults.
LIKE_BERT = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MPNetTokenizer")
BERT_SETTINGS = {
    "do_lower_case": ("lowercase", True), "strip_accents": ("strip_accents", None),
    "tokenize_chinese_chars": ("handle_chinese_chars", True),
}  # fmt: skip
ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def around_texts(config: TransformerConfig, tokenizer: Tokenizer | None) -> Around:
    """The ids around texts that get a class or a vector.

    A published tokenizer says itself what it puts around texts. Otherwise the marks are the special tokens `[CLS]` and `[SEP]`, or
    `<s>` and `</s>`; without them, the end of a text comes after each text, or an imported model's own ids do; without any of
    these, a text has no marks.
    """
    if tokenizer is not None and any(tokenizer.around):
        return tokenizer.around
    special, ids = {} if tokenizer is None else tokenizer.special, config.ids or SpecialIds()
    begin = next((special[name] for name in BEGINNINGS if name in special), ids.begin)
    end = next((special[name] for name in ENDS if name in special), None)
    if end is None and tokenizer is not None:
        end = tokenizer.end_of_text
    if end is None:
        end = next(iter(ids.ends()), None)
    after = () if end is None else (end,)
    return Around(() if begin is None else (begin,), after, after)


def around_read(config: TransformerConfig, tokenizer: Tokenizer) -> Around:
    """The ids around any text that a model reads.

    An encoder-decoder's source has the marks of translation, and texts that get a class or a vector those of training. A decoder
    that heddle trained has read plain text, and so has an encoder that predicts tokens, unless its tokenizer is a published one;
    where every prompt is the beginning of a text, what starts a text comes before it.
    """
    if len(config.stacks()) == 2:
        ends = (
            *(config.ids or SpecialIds()).ends(),
            *([] if tokenizer.end_of_text is None else [tokenizer.end_of_text]),
        )
        return Around(tokenizer.begins, ends[:1], ends[:1])
    if config.head.kind in ("classifier", "embedding"):
        return around_texts(config, tokenizer)
    begin = tokenizer.end_of_text if config.ids is None or config.ids.begin is None else config.ids.begin
    if config.prompts == "beginning" and not (config.ids is not None and tokenizer.begins) and begin is not None:
        return Around((begin,))
    return Around() if config.encoder is None and config.ids is None else tokenizer.around


def typed(config: TransformerConfig) -> bool:
    """Whether a model tells the two texts of a pair apart: their ids have the types 0 and 1."""
    return config.encoder is not None and config.encoder.entry.types > 1


def has_other_types(config: TransformerConfig, tokenizer: Tokenizer) -> bool:
    """Whether a published tokenizer gives the texts of a pair other types than the model would read."""
    if not isinstance(tokenizer, Base) or not typed(config) or not tokenizer.around.between:
        return False
    return tokenizer.framed(tokenizer.around, typed=True) is not tokenizer


def mask_of(tokenizer: Tokenizer, ids: SpecialIds | None = None) -> str | None:
    """The name of a tokenizer's mask token, or None."""
    said = () if ids is None else (ids.roles.get("mask_token"),)
    return next((name for name in (*said, *MASKS) if name in tokenizer.special), None)


def as_set(tokenizer: Tokenizer, settings: Mapping[str, Any]) -> tuple[Tokenizer, list[str]]:
    """A published tokenizer with what its `tokenizer_config.json` changes in Hugging Face transformers, and notes for the user.

    Its classes for BERT set the normalizer, whatever `tokenizer.json` says. All classes leave its first and last tokens as they
    are.
    """
    found, notes = tokenizer, []
    if isinstance(tokenizer, Base) and str(settings.get("tokenizer_class")).removesuffix("Fast") in LIKE_BERT:
        said = {theirs: settings.get(name, usual) for name, (theirs, usual) in BERT_SETTINGS.items()}
        found = tokenizer.normalizing("BertNormalizer", said)
    if found is not tokenizer:
        notes.append(
            f"its tokenizer's class sets the normalizer otherwise than tokenizer.json does, and is followed: {said}"
        )
    if settings.get("truncation_side") == "left":
        notes.append("truncation_side = 'left' in tokenizer_config.json is left out: a long text loses its end")
    return found, notes


def read_roles(
    settings: Mapping[str, Any], config: TransformerConfig, tokenizer: Tokenizer, ids: SpecialIds
) -> tuple[dict[str, str], list[str]]:
    """What a published `tokenizer_config.json` calls its special tokens where that is not usual, and notes about those it lacks."""
    named = {role: settings.get(role) for role in ROLES}
    texts = {role: said.get("content") if isinstance(said, Mapping) else said for role, said in named.items()}
    usual = written_roles(config, tokenizer, ids, None)
    roles = {role: text for role, text in texts.items() if isinstance(text, str) and text in tokenizer.special}
    notes = [
        f"{role} = {text!r} is none of the tokenizer's special tokens: left out"
        for role, text in texts.items()
        if text is not None and role not in roles
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
    roles["unk_token"] = tokenizer.unknown if isinstance(tokenizer, Base) else None
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
