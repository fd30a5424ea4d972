"""Packing documents into rows of equal length, so that nothing is dropped and hardly anything is padding."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from heddle.checks import at_least, checked, wrong

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Pieces:
    """Documents cut to pieces of at most `length` tokens; only the last piece of a document may be shorter.

    Attributes:
        document: Int[P], the document that each piece is of.
        start: Int[P], its first token, counted from the document's.
        size: Int[P], its tokens, at least 1.
        length: the largest possible size.
    """

    document: Ints
    start: Ints
    size: Ints
    length: int

    @classmethod
    def of(cls, lengths: npt.NDArray[np.integer], length: int) -> "Pieces":
        """The pieces of documents of these lengths, in order; a document of 0 tokens has none."""
        counts = -(-np.asarray(lengths, dtype=np.int64) // length)
        document = np.repeat(np.arange(len(lengths)), counts)
        start = within(counts) * length
        return cls(document, start, np.minimum(lengths[document] - start, length), length)


def within(counts: Ints) -> Ints:
    """Int[Σ counts], 0 … count - 1 for each of `counts`, in order."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


@checked(length=at_least(1))
def best_fit(sizes: npt.NDArray[np.integer], length: int) -> tuple[Ints, int]:
    """Pack pieces into rows of `length` tokens by best fit decreasing (Ding et al. 2024, "Fewer truncations", algorithm 1).

    The largest piece comes first, and each goes into the row with the least room that still holds it. Pieces of one size are
    placed together: the fullest row that has room takes as many as fit before any other row is the fullest. The time therefore
    grows with the number of different sizes, not of pieces.

    Args:
        sizes: Int[P], tokens of each piece, from 1 to `length`. Equal sizes are placed in the order given.
        length: tokens per row.

    Returns:
        Int[P], the row of each piece, and the number of rows, which depends on the sizes alone, not on their order.

    Raises:
        HeddleError: a size outside 1 … `length`.
    """
    sizes = np.asarray(sizes)
    if sizes.size and (sizes.dtype.kind not in "iu" or not 0 < sizes.min() <= sizes.max() <= length):
        raise wrong("best_fit", "sizes", sizes, f"an array of whole numbers from 1 to {length}")
    rows = np.empty(len(sizes), dtype=np.int64)
    used = 0
    room: dict[int, list[Ints]] = {}  # the rows that have room for so many tokens, in groups
    has = 0  # bit r: there are rows with room for r tokens
    order = np.argsort(-sizes.astype(np.int64), kind="stable")
    values, counts = np.unique(sizes, return_counts=True)
    ends = len(sizes) - np.cumsum(counts) + counts
    for size, count, end in zip(values[::-1].tolist(), counts[::-1].tolist(), ends[::-1].tolist(), strict=True):
        members = order[end - count : end]
        while len(members):
            fitting = has >> size
            if fitting:
                space = size + (fitting & -fitting).bit_length() - 1
                group = room[space].pop()
                if not room[space]:
                    has &= ~(1 << space)
            else:
                space, wanted = length, -(-len(members) // (length // size))
                group, used = np.arange(used, used + wanted), used + wanted
            each = space // size
            taken = min(len(members), len(group) * each)
            rows[members[:taken]] = group[np.arange(taken) // each]
            full, rest = divmod(taken, each)
            parts = ((group[:full], each), (group[full : full + 1], rest), (group[full + 1 :], 0))
            for part, number in parts:
                if len(part) and (left := space - number * size):
                    room.setdefault(left, []).append(part)
                    has |= 1 << left
            members = members[taken:]
    return rows, used
