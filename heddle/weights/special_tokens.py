"""The special tokens that a model reads around texts, and its mask."""

from heddle.checks import checked, wrong
from heddle.config.ids import SpecialIds
from heddle.config.model import TransformerConfig
from heddle.errors import HeddleError
from heddle.model.transformer import Transformer
from heddle.text.base import Base
from heddle.text.masking import MASKS
from heddle.text.tokenizer import Around, Tokenizer

# The names of the tokens before texts, after texts and for padding, in BERT and RoBERTa.
BEGINNINGS, ENDS, PADS = ("[CLS]", "<s>"), ("[SEP]", "</s>"), ("[PAD]", "<pad>")


def around_texts(config: TransformerConfig, tokenizer: Tokenizer | None) -> Around:
    """The ids around texts that are classified or embedded.

    A published tokenizer has its own. Otherwise they are the special tokens `[CLS]` and `[SEP]`, or `<s>` and `</s>`. Without
    these, the end-of-text token or the ids of an imported model are used, if there are any.
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

    The source of an encoder-decoder ends as in translation, and texts to classify or embed are framed as in training. Decoders, and
    encoders that predict tokens, read plain text unless their tokenizer is a published one. If every prompt is the beginning of a
    text, the token that begins a text precedes it.
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
    """A tokenizer whose `encode(text, special=True)` frames texts for a model, like the tokenizer of `heddle.load`.

    Raises:
        HeddleError: the tokenizer has more ids than the model, or is not heddle's.
    """
    if not isinstance(tokenizer, Base):
        raise wrong("tokenizer_of", "tokenizer", tokenizer, "one that heddle trained or loaded")
    check_ids(model.config, tokenizer)
    return reading(model.config, tokenizer)


def reading(config: TransformerConfig, tokenizer: Tokenizer) -> Tokenizer:
    """A tokenizer with the ids that a model reads around texts, and the mask token if the model has an encoder."""
    if not isinstance(tokenizer, Base):
        return tokenizer
    mask = None if config.encoder is None else mask_of(tokenizer, config.ids)
    return tokenizer.reading(around_read(config, tokenizer), mask)


def check_ids(config: TransformerConfig, tokenizer: Tokenizer) -> None:
    """Refuse a tokenizer with more ids than the model."""
    if tokenizer.vocab_size > (config.source_vocab_size or config.vocab_size):
        raise HeddleError(
            f"the tokenizer has {tokenizer.vocab_size} ids, but the model only {config.vocab_size}: use the model's own tokenizer"
        )


def typed(config: TransformerConfig) -> bool:
    """Whether a model distinguishes the two texts of a pair by the types 0 and 1 of their ids."""
    return config.encoder is not None and config.encoder.entry.types > 1


def mask_of(tokenizer: Tokenizer, ids: SpecialIds | None = None) -> str | None:
    """The name of a tokenizer's mask token, or None."""
    role = () if ids is None else (ids.roles.get("mask_token"),)
    return next((name for name in (*role, *MASKS) if name in tokenizer.special), None)
