"""How a text, or a pair of texts, becomes the ids that a model reads."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from heddle.data.records import Records
from heddle.errors import HeddleError
from heddle.train.task import Reading

Ids = npt.NDArray[np.int64]
# Names of the token before a text, and of the one after it: BERT's and RoBERTa's.
BEGINNINGS, ENDS = ("[CLS]", "<s>"), ("[SEP]", "</s>")


@dataclass(frozen=True, slots=True)
class Frame:
    """Rows of ids `[CLS] text [SEP]`, or `[CLS] text [SEP] pair [SEP]` (Devlin et al. 2019, 3).

    A tokenizer without these two has its own: `<s>` and `</s>`, or the end of a text after each text; without any of them, a text
    has no marks. A text that does not fit loses its end; of a pair, the longer text does.

    Attributes:
        context: most ids in a row.
        begin: the id before the first text, or None.
        end: the id after each text, or None.
    """

    context: int
    begin: int | None = None
    end: int | None = None

    @property
    def start(self) -> int:
        """Where the first text starts."""
        return 0 if self.begin is None else 1

    def marks(self, texts: int) -> int:
        """How many ids of a row are not those of its texts."""
        return self.start + (0 if self.end is None else texts)

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
        before, after = ([] if each is None else [each] for each in (self.begin, self.end))
        return [*before, *ids[: self.context - self.marks(1)].tolist(), *after]

    def row(self, records: Records, record: int) -> tuple[list[int], int]:
        """The ids of one record, and how many of them are before its second text; of a single text, all of them."""
        text = records.columns["text"][record]
        if "pair" not in records.columns:
            first = self.alone(text)
            return first, len(first)
        before, after = ([] if each is None else [each] for each in (self.begin, self.end))
        pair = records.columns["pair"][record]
        text_kept, pair_kept = self.kept(len(text), len(pair))
        first = [*before, *text[:text_kept].tolist(), *after]
        return [*first, *pair[:pair_kept].tolist(), *after], len(first)


def frame_of(reading: Reading, texts: int) -> Frame:
    """The frame of a run's texts, by the special tokens of its tokenizer, or else by the ids of an imported model.

    Args:
        reading: the model and the tokenizer.
        texts: how many texts a row may have.

    Raises:
        HeddleError: the context has no room for a text, or nothing can separate two texts.
    """
    special = {} if reading.tokenizer is None else dict(reading.tokenizer.special)
    ids = reading.model.ids
    begin = next((special[name] for name in BEGINNINGS if name in special), None if ids is None else ids.begin)
    end = next((special[name] for name in ENDS if name in special), None)
    if end is None and reading.tokenizer is not None:
        end = reading.tokenizer.end_of_text
    if end is None and ids is not None:
        end = next(iter(ids.ends()), None)
    if texts > 1 and end is None:
        raise HeddleError(f"pairs of texts need a token between them: add {ENDS[0]} to special_tokens")
    frame = Frame(reading.length, begin, end)
    if reading.length < frame.marks(texts) + texts:
        raise HeddleError(
            f"context = {reading.length} has no room for {frame.marks(texts)} special tokens and a text: "
            f"set context={frame.marks(texts) + texts} or more"
        )
    return frame
