"""Texts as rows of ids, framed as in training, and forward passes over these rows in batches of similar length."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from heddle.data.records import Column, Records
from heddle.errors import TextError, article, pluralize, room_for
from heddle.model.evaluating import evaluating
from heddle.model.transformer import Transformer
from heddle.native.cores import WORKERS, share_cores, side_by_side
from heddle.nn.layout import Layout
from heddle.tasks.records import padded, padded_layout
from heddle.tasks.rows.framing import (
    Frame,
    check_frame,
)
from heddle.text.tokenizer import Tokenizer
from heddle.weights.special_tokens import around_read, check_ids

# Maximum number of tokens of a batch, including padding, unless a single row has more. A CPU computes small batches faster, whose
# vectors stay in its caches; with many small ones, an accelerator waits for launches.
TOKENS = {"cpu": 1024}
MOST_TOKENS = 8192  # on other devices
Progress = Callable[[int, int], None]
"""Called with the number of finished texts and the total."""
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class InputRow:
    """The model's input for a text or a pair of texts.

    Attributes:
        ids: the ids, framed and truncated.
        second: number of ids before the second text of a pair; all of them if there is none.
        cut: whether the text, or the longer one of a pair, was truncated.
    """

    ids: list[int]
    second: int
    cut: bool


def frame_for(model: Transformer, tokenizer: Tokenizer, texts: int = 1) -> Frame:
    """The frame of special tokens that a model was trained with.

    Args:
        texts: 2 for pairs.

    Raises:
        HeddleError: the tokenizer belongs to another model, the context has no room for a text, or there is no separator for pairs.
    """
    check_ids(model.config, tokenizer)
    frame = Frame(model.config.longest_text(), *around_read(model.config, tokenizer))
    check_frame(frame, texts)
    return frame


def frame_rows(
    frame: Frame, texts: Sequence[Sequence[int]], pairs: Sequence[Sequence[int]] | None = None
) -> list[InputRow]:
    """Put ids of texts, or of pairs of texts, into a frame, as in training."""
    columns = {"text": Column.of(texts)}
    if pairs is not None:
        columns["pair"] = Column.of(pairs)
    records = Records(columns)
    cut = (frame.full_lengths(records) > frame.context).tolist()
    return [InputRow(*frame.row(records, number), cut[number]) for number in range(len(records))]


def check_text(where: str, number: int, text: Any, expected: str = "a text") -> str:
    """Return the text if it is a string that is not empty.

    Raises:
        TextError: it is not.
    """
    if not isinstance(text, str):
        raise TextError(f"{where}: texts: item", number, f"is {article(type(text).__name__)}, but must be {expected}")
    if not text.strip():
        raise TextError(f"{where}: texts: item", number, "is empty; leave it out")
    return text


def check_texts(where: str, texts: Sequence[Any]) -> None:
    """Raise a `TextError` if a text, or a text of a pair, is not a string or is empty."""
    for number, text in enumerate(texts):
        for part in text if isinstance(text, tuple | list) else (text,):
            check_text(where, number, part)


def is_blank(text: Any) -> bool:
    """Whether a text is empty or only whitespace. Training skips such texts."""
    return isinstance(text, str) and not text.strip()


def predict_nonempty(
    where: str, texts: Sequence[Any], is_empty: Callable[[Any], bool], predict: Callable[[list[Any]], Sequence[Result]]
) -> list[Result | None]:
    """Call `predict` with the texts that are not empty. The result of others is None, and a warning counts them.

    Raises:
        TextError: a text is invalid; the error has its number among all texts.
    """
    nonempty = [number for number, text in enumerate(texts) if not is_empty(text)]
    if len(nonempty) < len(texts):
        empty = pluralize(len(texts) - len(nonempty), "text")
        warnings.warn(
            f"{where}: {empty} of {len(texts):,} empty or only whitespace: the result is None or NaN", stacklevel=4
        )
    try:
        results = predict([texts[number] for number in nonempty])
    except TextError as error:
        raise TextError(error.name, nonempty[error.number], error.fault) from None
    all_results: list[Result | None] = [None] * len(texts)
    for number, result in zip(nonempty, results, strict=True):
        all_results[number] = result
    return all_results


def batches(lengths: Sequence[int], tokens: int = MOST_TOKENS) -> Iterator[list[int]]:
    """Indices of rows, the longest first, in batches of similar length with at most `tokens` tokens including padding."""
    order = sorted(range(len(lengths)), key=lambda number: -lengths[number])
    while order:
        rows = max(1, tokens // max(1, lengths[order[0]]))
        yield order[:rows]
        order = order[rows:]


def forward_batches(
    model: Transformer, rows: Sequence[InputRow], progress: Progress | None = None
) -> Iterator[tuple[list[int], Tensor, Layout]]:
    """Run the model over all rows. Yield the indices of a batch's rows, their hidden states [B T D] and their layout.

    For an encoder-decoder they are the hidden states of the encoder.
    """
    device, learns, done = model.device.type, torch.is_grad_enabled(), 0

    def compute(numbers: list[int]) -> tuple[list[int], Tensor, Layout]:
        share_cores()
        size = f"{pluralize(len(numbers), 'row')} of {len(rows[numbers[0]].ids):,} tokens"  # the first is the longest
        with room_for(size, "use shorter texts, or a smaller model"), torch.set_grad_enabled(learns):
            return numbers, *_hidden(model, [rows[number] for number in numbers])

    batched = batches([len(row.ids) for row in rows], TOKENS.get(device, MOST_TOKENS))
    for numbers, hidden, layout in side_by_side(compute, batched, workers=WORKERS if device == "cpu" else 1):
        yield numbers, hidden, layout
        done += len(numbers)
        if progress:
            progress(done, len(rows))


def _hidden(model: Transformer, rows: Sequence[InputRow]) -> tuple[Tensor, Layout]:
    ids = [row.ids for row in rows]
    tokens = torch.from_numpy(padded(ids, 0)).to(model.device)
    layout = padded_layout([len(row) for row in ids], tokens.shape[1]).to(model.device)
    if len(model.config.stacks()) == 2:
        # A call with a cache stores the encoder's output there. The decoder reads one token that does not matter.
        cache = model.new_cache(len(rows))
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
def evaluation(model: Transformer) -> Iterator[None]:
    """Evaluation mode without gradients. Afterwards the model returns to its mode."""
    with evaluating(model), torch.no_grad():
        yield
