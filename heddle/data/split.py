"""Which part of a store a text goes to, so that the share held out is the share asked for."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from heddle.data.sources.documents import Description, held_out

# Documents drawn by hash hold out a share with a standard deviation of √((1 - f) / (f · K)) of f, where K is how many
# documents of equal size would vary as much. Nine per 1 / f bring it to a third.
MANY = 9
# With fewer documents, one larger than this part of what is to be held out would decide the share alone.
LARGE = 16

# Where a document may be cut, the best first: after lines, after sentences, after blanks.
BOUNDARIES = [re.compile(pattern) for pattern in (r"\n+", r"[.!?。！？]['\")\]]*\s+", r"\s+")]


@dataclass(frozen=True, slots=True)
class PartText:
    """A text and the part that it goes to, `train` or `validation`; ``size`` is its UTF-8 bytes."""

    part: str
    text: str
    size: int


@dataclass(frozen=True, slots=True)
class Split:
    """How documents are divided.

    Attributes:
        validation: the share asked for.
        by: `characters`: the start of the one document is for training, its end for validation. `documents`: each goes
            whole to one part, by a hash of its content. `both`: large ones are cut, the others go by their hash. `sources`:
            each says its part.
        largest: UTF-8 bytes up to which a document stays whole; None: all stay whole.
    """

    validation: float
    by: Literal["characters", "documents", "both", "sources"]
    largest: int | None

    def divide(self, text: str, size: int, digest: bytes) -> Iterator[PartText]:
        """Yield a document of ``size`` bytes, whole or in two; its SHA-256 decides where a whole one goes."""
        if self.largest is None or size <= self.largest:
            yield PartText("validation" if held_out(digest, self.validation) else "train", text, size)
            return
        cut = int(len(text) * (1 - self.validation))
        if self.by == "both":
            cut = _boundary(text, cut, int(len(text) * min(self.validation, 1 - self.validation) / 4))
        for part, piece in (("train", text[:cut]), ("validation", text[cut:])):
            if piece:
                yield PartText(part, piece, len(piece.encode()))


def choose_split(described: Description, validation: float | None) -> Split:
    """Split by whole documents if there are enough of them to hold out the share asked for; otherwise cut large ones.

    Args:
        validation: the share; None: every document says its part.
    """
    if validation is None:
        return Split(0.0, "sources", None)
    if described.documents == 1:
        return Split(validation, "characters", 0)
    smaller = min(validation, 1 - validation)
    alike = described.bytes**2 / described.squares
    drawn = described.hashed / described.bytes
    if alike * smaller >= MANY * (1 - smaller) and abs(drawn - validation) <= smaller / 2:
        return Split(validation, "documents", None)
    return Split(validation, "both", int(smaller * described.bytes / LARGE))


def _boundary(text: str, goal: int, reach: int) -> int:
    """The best place to cut, nearest to ``goal`` and at most ``reach`` characters away."""
    goal = max(1, goal)
    low, high = max(1, goal - reach), min(len(text), goal + reach)
    for pattern in BOUNDARIES:
        ends = [found.end() for found in pattern.finditer(text, low, high)]
        if ends:
            return min(ends, key=lambda end: abs(end - goal))
    return goal
