"""A text as a model reads it: its ids and pieces, with what training put around them, and the source where there is one."""

from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from heddle.checks import checked
from heddle.errors import HeddleError
from heddle.generate.text import bos_prefix, prompt_ids
from heddle.generate.translate import BOUNDARY, Marks, source_ids, translate
from heddle.model.transformer import Transformer
from heddle.predict.rows import frame_for, frame_rows
from heddle.text.tokenizer import Tokenizer


@dataclass(frozen=True, eq=False)
class Text:
    """A text as a model reads it.

    Attributes:
        tokens: Int[1 T], ids for the model's last stack.
        pieces: the text of each.
        source: Int[1 S], ids for the encoder of an encoder-decoder, or None.
        source_pieces: the text of each.
    """

    tokens: Int[Tensor, "1 T"]
    pieces: tuple[str, ...]
    source: Int[Tensor, "1 S"] | None = None
    source_pieces: tuple[str, ...] = ()
    more: dict[str, Any] = field(init=False)  # the other arguments of the model

    def __post_init__(self) -> None:
        object.__setattr__(self, "more", {} if self.source is None else {"source": self.source})


@checked()
def read_text(model: Transformer, tokenizer: Tokenizer | None, text: str, target: str | None = None) -> Text:
    """A text as the model would read it: a prompt, a framed text of an encoder, or the source of a model that translates.

    A decoder that was trained to translate reads the source, the boundary and the target, one after the other.

    Args:
        model: any model.
        tokenizer: the model's; None: texts are ids, such as "3 14 15".
        text: the prompt or, of a model that translates, the source.
        target: what such a model reads after it, or in its decoder; None: its own translation, by greedy search.

    Raises:
        HeddleError: the text is empty or does not fit, there is a target and no source, or ids are not such numbers.
    """
    both = model.encoder is not None and model.decoder is not None
    if target is not None and not both and not joins(model, tokenizer):
        raise HeddleError("only a model that translates reads a source and a target: leave out the target")
    if not text.strip() and (both or model.decoder is None or tokenizer is None):
        raise HeddleError("the text is empty: give at least one word")
    if both:
        return _pair(model, tokenizer, text, target)
    if tokenizer is None:
        ids = _numbers(text, model.vocab_size)
    elif text.strip() and joins(model, tokenizer):
        ids = _joined(model, tokenizer, text, target)
    elif model.decoder is None:
        ids = frame_rows(frame_for(model, tokenizer), [tokenizer.encode(text)])[0].ids
    else:
        ids = [*bos_prefix(model, tokenizer, text), *prompt_ids(tokenizer, text)]
        if not ids and tokenizer.end_of_text is not None:
            ids = [tokenizer.end_of_text]
    if not ids:
        raise HeddleError("the text is empty, and there is no end-of-text token to start from")
    _check_length(model, len(ids), "text")
    return Text(_tensor(model, ids), _pieces(tokenizer, ids))


def joins(model: Transformer, tokenizer: Tokenizer | None) -> bool:
    """Whether it is a decoder alone that was trained to translate: its tokenizer has the boundary (L1-81)."""
    return model.encoder is None and tokenizer is not None and BOUNDARY in tokenizer.special


def _joined(model: Transformer, tokenizer: Tokenizer, text: str, target: str | None) -> list[int]:
    marks = Marks.of(model.config, tokenizer)
    source = source_ids(model.config, tokenizer, marks, {0: text})[0]
    if target is None:
        target = translate(model, tokenizer, [text], beams=1)[0][0].text
    return [*source, *tokenizer.encode(target)][: model.config.context]


def _pair(model: Transformer, tokenizer: Tokenizer | None, text: str, target: str | None) -> Text:
    if tokenizer is None:
        source = _numbers(text, model.config.source_vocab_size or model.vocab_size)
        ids = _numbers(target or "0", model.vocab_size)
        return Text(_tensor(model, ids), _pieces(None, ids), _tensor(model, source), _pieces(None, source))
    marks = Marks.of(model.config, tokenizer)
    source = source_ids(model.config, tokenizer, marks, {0: text})[0]
    if target is None:
        room = max(1, model.config.context - len(marks.start))
        own = translate(model, tokenizer, [text], beams=1, max_tokens=room)[0][0].text
        ids = [*marks.start, *tokenizer.encode(own)][
            : model.config.context
        ]  # its text may have other ids than it was written in
    else:
        ids = [*marks.start, *tokenizer.encode(target)]
    _check_length(model, len(ids), "target")
    return Text(_tensor(model, ids), _pieces(tokenizer, ids), _tensor(model, source), _pieces(tokenizer, source))


def _check_length(model: Transformer, length: int, what: str) -> None:
    longest = model.last_stack().longest
    if longest is not None and length > longest:
        raise HeddleError(f"the {what} has {length} tokens, but the model has {longest} learned positions; shorten it")


def _numbers(text: str, most: int) -> list[int]:
    words = text.replace(",", " ").split()
    if odd := [word for word in words if not (word.isascii() and word.isdigit() and int(word) < most)]:
        raise HeddleError(f"this run has no tokenizer, so a text is ids from 0 to {most - 1}; {odd[0]!r} is not one")
    return [int(word) for word in words]


def _tensor(model: Transformer, ids: list[int]) -> Tensor:
    return torch.tensor([ids], dtype=torch.long, device=model.device)


def _pieces(tokenizer: Tokenizer | None, ids: list[int]) -> tuple[str, ...]:
    return tuple(str(id) if tokenizer is None else tokenizer.piece(id) for id in ids)
