"""Texts as rows of ids, in the frame that training gave them, and passes over these rows in batches of similar length."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from heddle.data.records import Column, Records
from heddle.errors import TextError, article, pluralize
from heddle.model.cores import share_cores
from heddle.model.evaluating import evaluating
from heddle.model.transformer import Transformer
from heddle.nn.layout import Layout
from heddle.tasks.framing import Frame, check_frame
from heddle.tasks.records import padded, padded_layout
from heddle.text.tokenizer import Tokenizer
from heddle.weights.special_tokens import around_read, check_ids

TOKENS = 8192  # most padded tokens of a batch, unless a single row has more
Done = Callable[[int, int], None]
"""Called with the number of texts done so far, and of all."""
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class InputRow:
    """What a model reads for one text, or for one pair.

    Attributes:
        ids: the ids, framed and cut.
        second: how many of them come before the second text of a pair; all of them if there is none.
        cut: whether the text, or the longer one of a pair, lost its end.
    """

    ids: list[int]
    second: int
    cut: bool


def frame_for(model: Transformer, tokenizer: Tokenizer, texts: int = 1) -> Frame:
    """The frame in which a model was trained to read texts.

    Args:
        texts: 2 for pairs.

    Raises:
        HeddleError: the tokenizer is another model's, the context has no room for a text, or nothing can separate two texts.
    """
    check_ids(model.config, tokenizer)
    frame = Frame(model.config.longest_text(), *around_read(model.config, tokenizer))
    check_frame(frame, texts)
    return frame


def framed(
    frame: Frame, texts: Sequence[Sequence[int]], pairs: Sequence[Sequence[int]] | None = None
) -> list[InputRow]:
    """Rows of texts that are ids, with their pairs if there are any: the ids that training would read."""
    columns = {"text": Column.of(texts)}
    if pairs is not None:
        columns["pair"] = Column.of(pairs)
    records = Records(columns)
    cut = (frame.full_lengths(records) > frame.context).tolist()
    return [InputRow(*frame.row(records, number), cut[number]) for number in range(len(records))]


def check_text(where: str, number: int, text: Any, needed: str = "a text") -> str:
    """A text that is one and has more than blanks, which training leaves out.

    Raises:
        TextError: it is something else.
    """
    if not isinstance(text, str):
        raise TextError(f"{where}: texts: item", number, f"is {article(type(text).__name__)}, but {needed} is needed")
    if not text.strip():
        raise TextError(f"{where}: texts: item", number, "is empty; leave it out")
    return text


def check_texts(where: str, texts: Sequence[Any]) -> None:
    """Refuse texts, or texts of pairs, that are none or have nothing but blanks.

    Raises:
        TextError: there is one.
    """
    for number, text in enumerate(texts):
        for part in text if isinstance(text, tuple | list) else (text,):
            check_text(where, number, part)


def is_blank(text: Any) -> bool:
    """Whether a text, a text of a pair, or every word of a list, has nothing but blanks: what training leaves out."""
    return isinstance(text, str) and not text.strip()


def predicted(
    where: str, texts: Sequence[Any], blank: Callable[[Any], bool], call: Callable[[list[Any]], Sequence[Result]]
) -> list[Result | None]:
    """A result for each text; None for those that are blank, and a warning says how many.

    Raises:
        TextError: of one of the texts, by its number among all of them.
    """
    there = [number for number, text in enumerate(texts) if not blank(text)]
    if len(there) < len(texts):
        left = pluralize(len(texts) - len(there), "text")
        warnings.warn(
            f"{where}: {left} of {len(texts):,} with nothing but blanks: no result, which is None or NaN", stacklevel=4
        )
    try:
        results = call([texts[number] for number in there])
    except TextError as error:
        raise TextError(error.name, there[error.number], error.fault) from None
    found: list[Result | None] = [None] * len(texts)
    for number, result in zip(there, results, strict=True):
        found[number] = result
    return found


def batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Numbers of rows, the longest first, in batches of similar length with at most `TOKENS` padded tokens."""
    order = sorted(range(len(lengths)), key=lambda number: -lengths[number])
    while order:
        rows = max(1, TOKENS // max(1, lengths[order[0]]))
        yield order[:rows]
        order = order[rows:]


def passes(
    model: Transformer, rows: Sequence[InputRow], progress: Done | None = None
) -> Iterator[tuple[list[int], Tensor, Layout]]:
    """The numbers of a batch's rows, their hidden vectors [B T D] and their layout, batch by batch.

    Of an encoder-decoder, the hidden vectors are the encoder's.
    """
    done = 0
    for numbers in batches([len(row.ids) for row in rows]):
        share_cores()
        some = [rows[number] for number in numbers]
        yield numbers, *_hidden(model, some)
        done += len(numbers)
        if progress:
            progress(done, len(rows))


def _hidden(model: Transformer, rows: Sequence[InputRow]) -> tuple[Tensor, Layout]:
    ids = [row.ids for row in rows]
    tokens = torch.from_numpy(padded(ids, 0)).to(model.device)
    layout = padded_layout([len(row) for row in ids], tokens.shape[1]).to(model.device)
    if len(model.config.stacks()) == 2:
        cache = model.new_cache(len(rows))  # a call with a cache leaves the encoder's output there
        model(tokens[:, :1] * 0, source=tokens, source_layout=layout, cache=cache)
        assert cache.encoded is not None
        return cache.encoded.hidden, layout
    types = None
    if model.config.last()[1].entry.types > 1 and any(row.second < len(row.ids) for row in rows):
        types = torch.from_numpy(
            padded([[int(place >= row.second) for place in range(len(row.ids))] for row in rows], 0)
        )
        types = types.to(model.device)
    return model(tokens, layout, types=types).hidden, layout


@contextmanager
def predicting(model: Transformer) -> Iterator[None]:
    """Evaluation mode without gradients inside; after it the mode that the model had."""
    with evaluating(model), torch.no_grad():
        yield
