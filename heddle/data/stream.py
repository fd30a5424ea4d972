"""The documents of a part as one stream of ids, each between its start ids and its end-of-text id."""

import numpy as np
import numpy.typing as npt

from heddle.data.corpus import Part

Ids = npt.NDArray[np.int64]


class Stream:
    """The ids of a part, each document between the ids that start a text and the id that ends it.

    If the same id starts and ends a text, it appears once between two documents. The first document gets no start if it is the end
    of a text that was cut, and the last one no end if it is cut. If the first document has start ids, the stream is a ring: its
    first id follows the last one.

    Args:
        part: the documents.
        start: the ids that start a text; may be empty.

    Attributes:
        length: number of ids.
        ring: whether the first id follows the last one.
        closes: whether the first id also ends the last document, so that it is a target there.
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
        """The ids at these places, of any shape; places wrap around in a ring."""
        offsets = places % self.length if self.ring else places
        text = np.searchsorted(self._places, offsets, side="right") - 1
        inside = offsets - self._places[text] - self.marks[text]
        return ids_at(self.part, self._own[text], inside, self.start)


def marks_of(part: Part, start: tuple[int, ...]) -> Ids:
    """Int[documents], number of start ids of each document."""
    marks = np.full(len(part.starts) - 1, len(start), dtype=np.int64)
    marks[0] *= part.begins
    return marks


def ids_at(part: Part, first: Ids, inside: Ids, start: Ids) -> Ids:
    """The ids at places relative to the texts' own first ids.

    Args:
        part: the texts.
        first: where each text's own ids start in the part.
        inside: the places; negative ones have the ids of `start`, and the place after the part's last id has the separator.
        start: the ids that start a text.
    """
    places, last = first + inside, len(part.tokens) - 1
    ids: Ids = np.asarray(part.tokens)[np.clip(places, 0, last)].astype(np.int64)
    if part.separator is not None:
        ids[places > last] = part.separator
    if len(start):
        ids = np.where(inside < 0, start[np.minimum(inside, -1) % len(start)], ids)
    return ids
