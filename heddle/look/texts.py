"""Model inputs from text: ids and tokens with special tokens as in training, and the source of an encoder-decoder."""

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
    """A tokenized model input.

    Attributes:
        tokens: Int[1 T], ids for the model's last stack.
        pieces: the text of each token.
        source: Int[1 S], ids for the encoder of an encoder-decoder, or None.
        source_pieces: the text of each source token.
    """

    tokens: Int[Tensor, "1 T"]
    pieces: tuple[str, ...]
    source: Int[Tensor, "1 S"] | None = None
    source_pieces: tuple[str, ...] = ()
    more: dict[str, Any] = field(init=False)  # further model arguments

    def __post_init__(self) -> None:
        object.__setattr__(self, "more", {} if self.source is None else {"source": self.source})


@checked()
def read_text(model: Transformer, tokenizer: Tokenizer | None, text: str, target: str | None = None) -> Text:
    """Tokenize a text for a model: a prompt, a framed text for an encoder, or the source of a translation model.

    A decoder-only translation model reads the source, the boundary token and the target in one sequence.

    Args:
        model: any model.
        tokenizer: the model's; None: the text is ids, such as "3 14 15".
        text: the prompt, or the source for a translation model.
        target: the target for a translation model; None: its own greedy translation.

    Raises:
        HeddleError: the text is empty, too long or not valid ids, or the model does not take a target.
    """
    is_encoder_decoder = model.encoder is not None and model.decoder is not None
    if target is not None and not is_encoder_decoder and not is_decoder_translator(model, tokenizer):
        raise HeddleError("only translation models take a target: leave it out")
    if not text.strip() and (is_encoder_decoder or model.decoder is None or tokenizer is None):
        raise HeddleError("the text is empty: give at least one word")
    if is_encoder_decoder:
        return _read_pair(model, tokenizer, text, target)
    if tokenizer is None:
        ids = _parse_ids(text, model.vocab_size)
    elif text.strip() and is_decoder_translator(model, tokenizer):
        ids = _translation_ids(model, tokenizer, text, target)
    elif model.decoder is None:
        ids = frame_rows(frame_for(model, tokenizer), [tokenizer.encode(text)])[0].ids
    else:
        ids = [*bos_prefix(model, tokenizer, text), *prompt_ids(tokenizer, text)]
        if not ids and tokenizer.end_of_text is not None:
            ids = [tokenizer.end_of_text]
    if not ids:
        raise HeddleError("the text is empty, and the tokenizer has no end-of-text token to start from")
    _check_length(model, len(ids), "text")
    return Text(_tensor(model, ids), _pieces(tokenizer, ids))


def is_decoder_translator(model: Transformer, tokenizer: Tokenizer | None) -> bool:
    """Whether this is a decoder-only translation model, whose tokenizer has the boundary token (L1-81)."""
    return model.encoder is None and tokenizer is not None and BOUNDARY in tokenizer.special


def _translation_ids(model: Transformer, tokenizer: Tokenizer, text: str, target: str | None) -> list[int]:
    marks = Marks.of(model.config, tokenizer)
    source = source_ids(model.config, tokenizer, marks, {0: text})[0]
    if target is None:
        target = translate(model, tokenizer, [text], beams=1)[0][0].text
    return [*source, *tokenizer.encode(target)][: model.config.context]


def _read_pair(model: Transformer, tokenizer: Tokenizer | None, text: str, target: str | None) -> Text:
    if tokenizer is None:
        source = _parse_ids(text, model.config.source_vocab_size or model.vocab_size)
        ids = _parse_ids(target or "0", model.vocab_size)
        return Text(_tensor(model, ids), _pieces(None, ids), _tensor(model, source), _pieces(None, source))
    marks = Marks.of(model.config, tokenizer)
    source = source_ids(model.config, tokenizer, marks, {0: text})[0]
    if target is None:
        max_tokens = max(1, model.config.context - len(marks.start))
        translation = translate(model, tokenizer, [text], beams=1, max_tokens=max_tokens)[0][0].text
        ids = [*marks.start, *tokenizer.encode(translation)][
            : model.config.context
        ]  # encoding may give other ids than the generated ones
    else:
        ids = [*marks.start, *tokenizer.encode(target)]
    _check_length(model, len(ids), "target")
    return Text(_tensor(model, ids), _pieces(tokenizer, ids), _tensor(model, source), _pieces(tokenizer, source))


def _check_length(model: Transformer, length: int, kind: str) -> None:
    longest = model.last_stack().longest
    if longest is not None and length > longest:
        raise HeddleError(f"the {kind} has {length} tokens, but the model has {longest} learned positions; shorten it")


def _parse_ids(text: str, vocab_size: int) -> list[int]:
    words = text.replace(",", " ").split()
    if invalid := [word for word in words if not (word.isascii() and word.isdigit() and int(word) < vocab_size)]:
        raise HeddleError(
            f"this run has no tokenizer, so the text must be ids from 0 to {vocab_size - 1}; got {invalid[0]!r}"
        )
    return [int(word) for word in words]


def _tensor(model: Transformer, ids: list[int]) -> Tensor:
    return torch.tensor([ids], dtype=torch.long, device=model.device)


def _pieces(tokenizer: Tokenizer | None, ids: list[int]) -> tuple[str, ...]:
    return tuple(str(id) if tokenizer is None else tokenizer.piece(id) for id in ids)
