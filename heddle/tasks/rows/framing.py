"""Putting a text, or a pair of texts, between special tokens in a row."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from heddle.data.records import Records
from heddle.errors import HeddleError
from heddle.tasks.task import DataSpec
from heddle.text.tokenizer import Around
from heddle.weights.special_tokens import ENDS, around_texts

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Frame:
    """Rows of ids `[CLS] text [SEP]`, or `[CLS] text [SEP] pair [SEP]` (Devlin et al. 2019, 3).

    A text that does not fit loses its end; in a pair, the longer text loses its end.

    Attributes:
        context: maximum ids in a row.
        begin: the ids before the first text.
        between: the ids between the two texts of a pair.
        end: the ids after the last text.
    """

    context: int
    begin: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    end: tuple[int, ...] = ()

    @property
    def around(self) -> Around:
        """The ids around texts."""
        return Around(self.begin, self.between, self.end)

    @property
    def start(self) -> int:
        """Where the first text starts."""
        return len(self.begin)

    def marks(self, texts: int) -> int:
        """Number of special ids in a row."""
        return len(self.begin) + (len(self.between) if texts > 1 else 0) + len(self.end)

    def full_lengths(self, records: Records) -> Ids:
        """Int[R], ids in the row of each record before cropping."""
        texts = [records.columns[name].lengths for name in ("text", "pair") if name in records.columns]
        lengths: Ids = np.sum(texts, axis=0) + self.marks(len(texts))
        return lengths

    def cropped_lengths(self, text: int, pair: int) -> tuple[int, int]:
        """How many ids of each text of a pair fit."""
        room = self.context - self.marks(2)
        shorter = min(text, pair, room // 2)
        longer = min(max(text, pair), room - shorter)
        return (longer, shorter) if text > pair else (shorter, longer)

    def single_row(self, ids: npt.NDArray[np.integer]) -> list[int]:
        """The row of a text without a pair."""
        return self.around.row(ids[: self.context - self.marks(1)].tolist())[0]

    def row(self, records: Records, record: int) -> tuple[list[int], int]:
        """The ids of one record, and how many of them come before its second text; without a second text, all of them."""
        text = records.columns["text"][record]
        if "pair" not in records.columns:
            first = self.single_row(text)
            return first, len(first)
        pair = records.columns["pair"][record]
        text_kept, pair_kept = self.cropped_lengths(len(text), len(pair))
        return self.around.row(text[:text_kept].tolist(), pair[:pair_kept].tolist())


def frame_of(spec: DataSpec, texts: int) -> Frame:
    """The frame of a run's texts, with the marks of `around_texts`.

    Args:
        spec: the model and the tokenizer.
        texts: how many texts a row may have.

    Raises:
        HeddleError: the context has no room for a text, or nothing can separate two texts.
    """
    frame = Frame(spec.length, *around_texts(spec.model, spec.tokenizer))
    check_frame(frame, texts)
    return frame


def check_frame(frame: Frame, texts: int) -> None:
    """Refuse a frame without room for so many texts.

    Raises:
        HeddleError: as in `frame_of`.
    """
    if texts > 1 and not frame.between:
        raise HeddleError(f"pairs of texts need a token between them: add {ENDS[0]} to special_tokens")
    if frame.context < frame.marks(texts) + texts:
        raise HeddleError(
            f"context = {frame.context} has no room for {frame.marks(texts)} special tokens and a text: "
            f"set context={frame.marks(texts) + texts} or more"
        )
