"""How often words are neighbours: GloVe's counts, weighted by distance."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from heddle.progress import Pace
from heddle.vectors.corpus import WordCorpus

PAIRS = 1 << 22  # pairs to sort at a time: 32 MiB, and as much again while they are added up
DISTANCES = 256  # more than any window: a key is a pair's number times this, plus its distance


class Counts(NamedTuple):
    """N pairs of words that are neighbours at least once, the first word's id no larger than the second's.

    Attributes:
        first, second: Int[N], ids.
        sums: Float[N], the sum of 1 / distance over all places where they are neighbours, in either order.
    """

    first: npt.NDArray[np.int64]
    second: npt.NDArray[np.int64]
    sums: npt.NDArray[np.float64]


Sums = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]


def count_pairs(corpus: WordCorpus, window: int, tell: Callable[[str], None] | None = None) -> Counts:
    """X of Pennington et al. 2014, 4.2: words that are d apart, in the same document, count 1/d for each other.

    A word that is its own neighbour counts for both of its places. Apart from the result, memory is bounded: the text is read in
    pieces, and the sums of pieces are merged as soon as two have similar sizes.
    """
    size = len(corpus.words)
    piece = max(1, PAIRS // window)
    sums: list[Sums] = []
    pace = Pace(tell)
    for start in range(0, len(corpus.ids), piece):
        sums.append(_sums(_keys(corpus, start, piece, window)))
        while len(sums) > 1 and len(sums[-2][0]) < 2 * len(sums[-1][0]):
            sums.append(_merge(sums.pop(), sums.pop()))
        pace.report(start, lambda rate: f"{start:,} words counted, {rate:,.0f} words/s")  # noqa: B023
    while len(sums) > 1:
        sums.append(_merge(sums.pop(), sums.pop()))
    pairs, weights = sums[0]
    first, second = np.divmod(pairs, size)
    return Counts(first, second, np.where(first == second, 2 * weights, weights))


def _keys(corpus: WordCorpus, start: int, piece: int, window: int) -> npt.NDArray[np.int64]:
    """The keys of all pairs whose first word is in a piece of the text."""
    size, stop = len(corpus.words), min(start + piece, len(corpus.ids))
    ids = corpus.ids[start : stop + window].astype(np.int64)
    document = np.searchsorted(corpus.starts, np.arange(start, start + len(ids)), side="right")
    keys = []
    for distance in range(1, window + 1):
        count = min(stop - start, len(ids) - distance)
        if count < 1:
            break
        one, other = ids[:count], ids[distance : distance + count]
        pair = np.minimum(one, other) * size + np.maximum(one, other)
        same = document[:count] == document[distance : distance + count]
        keys.append(pair[same] * DISTANCES + distance)
    return np.concatenate(keys) if keys else np.empty(0, np.int64)


def _sums(keys: npt.NDArray[np.int64]) -> Sums:
    """Each pair once, in order, with the sum of 1 / distance. Sorting the keys in place is faster than an argsort."""
    keys.sort()
    pairs = keys // DISTANCES
    return _sum_equal_pairs(pairs, 1.0 / (keys - pairs * DISTANCES))


def _merge(one: Sums, other: Sums) -> Sums:
    pairs = np.concatenate([one[0], other[0]])
    order = np.argsort(pairs, kind="stable")  # a stable sort merges two sorted halves quickly
    return _sum_equal_pairs(pairs[order], np.concatenate([one[1], other[1]])[order])


def _sum_equal_pairs(pairs: npt.NDArray[np.int64], weights: npt.NDArray[np.float64]) -> Sums:
    if not len(pairs):
        return pairs, weights
    starts = np.flatnonzero(np.concatenate([[True], pairs[1:] != pairs[:-1]]))
    return pairs[starts], np.add.reduceat(weights, starts)
