"""How a text, or a pair of texts, becomes the ids that a model reads."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from heddle.data.records import Records
from heddle.errors import HeddleError
from heddle.text.tokenizer import Around
from heddle.train.task import Reading

Ids = npt.NDArray[np.int64]
# Names of the token before a text, and of the one after it: BERT's and RoBERTa's.
BEGINNINGS, ENDS = ("[CLS]", "<s>"), ("[SEP]", "</s>")


@dataclass(frozen=True, slots=True)
class Frame:
    """Rows of ids `[CLS] text [SEP]`, or `[CLS] text [SEP] pair [SEP]` (Devlin et al. 2019, 3).

    A text that does not fit loses its end; of a pair, the longer text does.

    Attributes:
        context: most ids in a row.
        begin: the ids before the first text.
        between: the ids between the two texts of a pair.
        end: the ids after the last text.
    """

    context: int
    begin: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    end: tuple[int, ...] = ()

    @property
    def start(self) -> int:
        """Where the first text starts."""
        return len(self.begin)

    def marks(self, texts: int) -> int:
        """How many ids of a row are not those of its texts."""
        return len(self.begin) + (len(self.between) if texts > 1 else 0) + len(self.end)

    def needed(self, records: Records) -> Ids:
        """Int[R], how many ids the row of each record would have if nothing were cut off."""
        texts = [records.columns[name].lengths for name in ("text", "pair") if name in records.columns]
        found: Ids = np.sum(texts, axis=0) + self.marks(len(texts))
        return found

    def kept(self, text: int, pair: int) -> tuple[int, int]:
        """How many ids of each text of a pair are kept."""
        room = self.context - self.marks(2)
        first = min(text, max(room - pair, room - room // 2))
        return first, min(pair, room - first)

    def alone(self, ids: npt.NDArray[np.integer]) -> list[int]:
        """The row of a single text."""
        return [*self.begin, *ids[: self.context - self.marks(1)].tolist(), *self.end]

    def row(self, records: Records, record: int) -> tuple[list[int], int]:
        """The ids of one record, and how many of them are before its second text; of a single text, all of them."""
        text = records.columns["text"][record]
        if "pair" not in records.columns:
            first = self.alone(text)
            return first, len(first)
        pair = records.columns["pair"][record]
        text_kept, pair_kept = self.kept(len(text), len(pair))
        first = [*self.begin, *text[:text_kept].tolist(), *self.between]
        return [*first, *pair[:pair_kept].tolist(), *self.end], len(first)


def frame_of(reading: Reading, texts: int) -> Frame:
    """The frame of a run's texts.

    A published tokenizer says itself what it puts around texts. Otherwise the marks are the special tokens `[CLS]` and `[SEP]`, or
    `<s>` and `</s>`; without them, the end of a text comes after each text, or an imported model's own ids do; without any of
    these, a text has no marks.

    Args:
        reading: the model and the tokenizer.
        texts: how many texts a row may have.

    Raises:
        HeddleError: the context has no room for a text, or nothing can separate two texts.
    """
    around = None if reading.tokenizer is None else reading.tokenizer.around
    begin, between, end = around if around is not None and any(around) else _named(reading)
    if texts > 1 and not between:
        raise HeddleError(f"pairs of texts need a token between them: add {ENDS[0]} to special_tokens")
    frame = Frame(reading.length, begin, between, end)
    if reading.length < frame.marks(texts) + texts:
        raise HeddleError(
            f"context = {reading.length} has no room for {frame.marks(texts)} special tokens and a text: "
            f"set context={frame.marks(texts) + texts} or more"
        )
    return frame


def _named(reading: Reading) -> Around:
    """The marks of a tokenizer that does not say what it puts around texts."""
    special = {} if reading.tokenizer is None else dict(reading.tokenizer.special)
    ids = reading.model.ids
    begin = next((special[name] for name in BEGINNINGS if name in special), None if ids is None else ids.begin)
    end = next((special[name] for name in ENDS if name in special), None)
    if end is None and reading.tokenizer is not None:
        end = reading.tokenizer.end_of_text
    if end is None and ids is not None:
        end = next(iter(ids.ends()), None)
    after = () if end is None else (end,)
    return Around(() if begin is None else (begin,), after, after)
