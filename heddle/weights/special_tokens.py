"""The special tokens that a model reads around texts, and its mask."""

from heddle.checks import checked, wrong
from heddle.config.ids import SpecialIds
from heddle.config.model import TransformerConfig
from heddle.errors import HeddleError
from heddle.model.transformer import Transformer
from heddle.text.base import Base
from heddle.text.masking import MASKS
from heddle.text.tokenizer import Around, Tokenizer

# Names of the token before a text, of the one after it and of padding: BERT's and RoBERTa's.
BEGINNINGS, ENDS, PADS = ("[CLS]", "<s>"), ("[SEP]", "</s>"), ("[PAD]", "<pad>")


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


@checked()
def tokenizer_of(model: Transformer, tokenizer: Tokenizer) -> Tokenizer:
    """A tokenizer whose `encode(text, special=True)` frames texts as a model reads them; the tokenizer of `heddle.load` is one.

    Raises:
        HeddleError: the tokenizer has more ids than the model, or is not heddle's.
    """
    if not isinstance(tokenizer, Base):
        raise wrong("tokenizer_of", "tokenizer", tokenizer, "one that heddle trained or loaded")
    check_ids(model.config, tokenizer)
    return reading(model.config, tokenizer)


def reading(config: TransformerConfig, tokenizer: Tokenizer) -> Tokenizer:
    """A tokenizer that knows what a model reads around texts, and the mask token of one that has an encoder."""
    if not isinstance(tokenizer, Base):
        return tokenizer
    mask = None if config.encoder is None else mask_of(tokenizer, config.ids)
    return tokenizer.reading(around_read(config, tokenizer), mask)


def check_ids(config: TransformerConfig, tokenizer: Tokenizer) -> None:
    """Refuse the tokenizer of another model.

    Raises:
        HeddleError: it has more ids than the model.
    """
    if tokenizer.vocab_size > (config.source_vocab_size or config.vocab_size):
        raise HeddleError(
            f"the tokenizer has {tokenizer.vocab_size} ids, but the model only {config.vocab_size}: use the model's own tokenizer"
        )


def typed(config: TransformerConfig) -> bool:
    """Whether a model tells the two texts of a pair apart: their ids have the types 0 and 1."""
    return config.encoder is not None and config.encoder.entry.types > 1


def mask_of(tokenizer: Tokenizer, ids: SpecialIds | None = None) -> str | None:
    """The name of a tokenizer's mask token, or None."""
    said = () if ids is None else (ids.roles.get("mask_token"),)
    return next((name for name in (*said, *MASKS) if name in tokenizer.special), None)
