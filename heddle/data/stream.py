"""The documents of a part as one stream of ids, with what starts and ends a text around each."""

import numpy as np
import numpy.typing as npt

from heddle.data.corpus import Part

Ids = npt.NDArray[np.int64]


class Stream:
    """The ids of a part, each document between the ids that start a text and the id that ends it.

    Where one id does both, it stands between two documents once. The first document gets no start if it is the end of a text that
    was cut, and the last one no end if it is cut. Where the first document starts, the stream is a ring: its first id follows the
    last one.

    Args:
        part: the documents.
        start: the ids that start a text; none if nothing does.

    Attributes:
        length: ids of the stream.
        ring: whether its first id follows its last one.
        closes: whether its first id is also the end of its last document, and a target as such.
    """

    def __init__(self, part: Part, start: tuple[int, ...]) -> None:
        self.part, self.start = part, np.array(start, dtype=np.int64)
        both = start == (part.separator,)
        self._own = part.starts[:1] if both else part.starts[:-1]  # where each text's own ids are in the part
        self.marks = marks_of(part, start)[: len(self._own)]
        self._places = self._own + np.cumsum(self.marks) - self.marks  # where each text is in the stream
        ends = part.separator is not None and part.ends and not (both and part.begins)
        self.length = len(part.tokens) + int(self.marks.sum()) + (ends and bool(start))
        self.ring = bool(start) and part.begins
        self.closes = self.ring and part.ends and both

    def at(self, places: Ids) -> Ids:
        """The ids at these places, of any shape; those of a ring go round."""
        wanted = places % self.length if self.ring else places
        text = np.searchsorted(self._places, wanted, side="right") - 1
        inside = wanted - self._places[text] - self.marks[text]
        return ids_at(self.part, self._own[text], inside, self.start)


def marks_of(part: Part, start: tuple[int, ...]) -> Ids:
    """Int[documents], how many ids start each document."""
    marks = np.full(len(part.starts) - 1, len(start), dtype=np.int64)
    marks[0] *= part.begins
    return marks


def ids_at(part: Part, first: Ids, inside: Ids, start: Ids) -> Ids:
    """The ids of texts at places that count from their own first ids.

    Args:
        part: the texts.
        first: where each text's own ids start in the part.
        inside: the places; the ids before a text's own are those of `start`, and after the part's last one is its end.
        start: the ids that start a text.
    """
    places, last = first + inside, len(part.tokens) - 1
    found: Ids = np.asarray(part.tokens)[np.clip(places, 0, last)].astype(np.int64)
    if part.separator is not None:
        found[places > last] = part.separator
    if len(start):
        found = np.where(inside < 0, start[np.minimum(inside, -1) % len(start)], found)
    return found
