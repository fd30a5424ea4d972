"""Packing documents or records into rows of equal length, with nothing dropped and little padding."""

from dataclasses import dataclass
from math import ceil

import numpy as np
import numpy.typing as npt

from heddle.checks import at_least, checked, wrong
from heddle.data.order import epoch_key, evenly_spaced, permute

Ints = npt.NDArray[np.int64]
LEAST = 4  # rows in a sample; fewer would not give a standard error


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

    The largest piece comes first, and each goes into the row with the least sufficient room. Pieces of one size are placed
    together: the fullest row with room takes as many as fit before any other row is the fullest. The time therefore grows with
    the number of different sizes, not of pieces.

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
    room: dict[int, list[Ints]] = {}  # by free tokens: the rows with so many, in groups
    room_bits = 0  # bit r is set if a row has room for r tokens
    order = np.argsort(-sizes.astype(np.int64), kind="stable")
    values, counts = np.unique(sizes, return_counts=True)
    ends = len(sizes) - np.cumsum(counts) + counts
    for size, count, end in zip(values[::-1].tolist(), counts[::-1].tolist(), ends[::-1].tolist(), strict=True):
        members = order[end - count : end]
        while len(members):
            fitting = room_bits >> size
            if fitting:
                space = size + (fitting & -fitting).bit_length() - 1
                group = room[space].pop()
                if not room[space]:
                    room_bits &= ~(1 << space)
            else:
                space, new_rows = length, -(-len(members) // (length // size))
                group, used = np.arange(used, used + new_rows), used + new_rows
            each = space // size
            placed = min(len(members), len(group) * each)
            rows[members[:placed]] = group[np.arange(placed) // each]
            full, rest = divmod(placed, each)
            parts = ((group[:full], each), (group[full : full + 1], rest), (group[full + 1 :], 0))
            for part, number in parts:
                if len(part) and (left := space - number * size):
                    room.setdefault(left, []).append(part)
                    room_bits |= 1 << left
            members = members[placed:]
    return rows, used


class Packing:
    """Which pieces share a row, as a pure function of (seed, epoch).

    Pieces are packed anew in each epoch, so that the same ones do not meet again; the number of rows stays the same. Row `n` of
    epoch `e` has the number `e * rows + n`.

    Args:
        sizes: Int[P], tokens of each piece, from 1 to `length`.
        length: tokens per row.
        seed: decides which pieces share a row, and the order of the rows; None: the pieces are always packed the same way, in
            their own order, for evaluation.

    Attributes:
        rows: rows per epoch.
        padding: share of their tokens that are padding.
    """

    def __init__(self, sizes: npt.NDArray[np.integer], length: int, seed: int | None = None) -> None:
        self.sizes, self.length, self.seed = np.asarray(sizes, dtype=np.int64), length, seed
        self.rows = best_fit(self.sizes, length)[1]
        self.padding = 1 - float(self.sizes.sum()) / (max(self.rows, 1) * length)
        self._planned: dict[int, tuple[Ints, Ints]] = {}

    def read(self, numbers: Ints) -> list[Ints]:
        """The pieces of each of these rows, in their order in the row."""
        pieces = []
        for number in numbers.tolist():
            epoch, row = divmod(number, self.rows)
            order, starts = self._plan(epoch)
            pieces.append(order[starts[row] : starts[row + 1]])
        return pieces

    def held_out(self, rows: int, targets: Ints, most: int | None = None) -> tuple[list[Ints], float]:
        """The rows that evaluation scores, in batches, and their share of all targets.

        Args:
            rows: rows per batch.
            targets: Int[P], targets of each piece.
            most: targets to score; if there are more, an even sample of the rows, always the same. None: all.
        """
        chosen, total = np.arange(self.rows), int(targets.sum())
        if not total:
            return [], 0.0
        if most is not None and most < total:
            chosen = evenly_spaced(self.rows, min(self.rows, max(LEAST, ceil(most * self.rows / total))))
        scored = sum(int(targets[each].sum()) for each in self.read(chosen))
        return [chosen[start : start + rows] for start in range(0, len(chosen), rows)], scored / total

    def _plan(self, epoch: int) -> tuple[Ints, Ints]:
        """Int[P], the pieces in the order of the rows, and Int[rows + 1], where each row's pieces start, then the total."""
        if epoch not in self._planned:
            order, key = np.arange(len(self.sizes)), 0
            if self.seed is not None:
                key = epoch_key(self.seed, epoch)
                order = permute(order, len(order), key)
            rows, count = best_fit(self.sizes[order], self.length)
            if self.seed is not None:
                rows = permute(rows, count, key + 1)
            starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=count))])
            # A step reads rows of two epochs at most.
            latest = list(self._planned.items())[-1:]
            self._planned = dict([*latest, (epoch, (order[np.argsort(rows, kind="stable")], starts))])
        return self._planned[epoch]
