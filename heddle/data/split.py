"""Splitting texts into training and validation parts, so that the held-out share is close to the requested one."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from heddle.data.sources.documents import Description, held_out

# Sampling documents by hash holds out a share whose standard deviation is √((1 - f) / (f · K)) of f, where K documents of equal
# size would vary as much. With K = 9 / f it is at most a third.
MANY = 9
# With fewer documents, any document larger than 1/16 of the held-out bytes is cut instead: it could decide the share alone.
LARGE = 16

# Where a document may be cut, the best place first: after lines, after sentences, after whitespace.
BOUNDARIES = [re.compile(pattern) for pattern in (r"\n+", r"[.!?。！？]['\")\]]*\s+", r"\s+")]


@dataclass(frozen=True, slots=True)
class PartText:
    """A text, its part (`train` or `validation`) and its size in UTF-8 bytes."""

    part: str
    text: str
    size: int


@dataclass(frozen=True, slots=True)
class Split:
    """How documents are divided.

    Attributes:
        validation: the requested share.
        by: `characters`: the start of the only document is for training, its end for validation. `documents`: a hash of a
            document's content decides its part. `both`: large documents are cut, the hash decides for the others. `sources`:
            each document has its part.
        largest: documents above so many UTF-8 bytes are cut; None: none is.
    """

    validation: float
    by: Literal["characters", "documents", "both", "sources"]
    largest: int | None

    def divide(self, text: str, size: int, digest: bytes) -> Iterator[PartText]:
        """Yield a document of ``size`` bytes, uncut or in two; its SHA-256 decides the part of an uncut one."""
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
    """Split by whole documents if there are enough of them for the requested share; otherwise cut large ones.

    Args:
        validation: the share; None: every document has its `part`.
    """
    if validation is None:
        return Split(0.0, "sources", None)
    if described.documents == 1:
        return Split(validation, "characters", 0)
    smaller = min(validation, 1 - validation)
    equal_documents = described.bytes**2 / described.squares
    hashed_share = described.hashed / described.bytes
    if equal_documents * smaller >= MANY * (1 - smaller) and abs(hashed_share - validation) <= smaller / 2:
        return Split(validation, "documents", None)
    return Split(validation, "both", int(smaller * described.bytes / LARGE))


def _boundary(text: str, goal: int, reach: int) -> int:
    """The best place to cut, nearest to ``goal`` and at most ``reach`` characters away."""
    goal = max(1, goal)
    low, high = max(1, goal - reach), min(len(text), goal + reach)
    for pattern in BOUNDARIES:
        ends = [match.end() for match in pattern.finditer(text, low, high)]
        if ends:
            return min(ends, key=lambda end: abs(end - goal))
    return goal
