"""The order of the data as a pure function of (seed, step): nothing is shuffled, stored or replayed.

A permutation of ``range(n)`` is computed index by index with a Feistel network (a bijection for any round function; Luby and
Rackoff 1988), and cycle-walking reduces its power-of-four domain to ``n`` (Black and Rogaway 2002).
"""

import numpy as np
import numpy.typing as npt

from heddle.checks import at_least, between, checked, wrong
from heddle.errors import HeddleError

Indices = npt.NDArray[np.int64]
_U64 = np.uint64
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: neighbouring seeds land far apart
_ROUNDS = 8


@checked(n=between(1, 2**63 - 1))
def permute(indices: npt.NDArray[np.integer], n: int, seed: int) -> Indices:
    """Apply the permutation of ``range(n)`` given by ``seed`` to ``indices``, of any shape, in O(1) memory.

    Raises:
        HeddleError: an index outside ``range(n)``, or ``n`` outside 1 .. 2^63 - 1.
    """
    indices = np.asarray(indices)
    if indices.size and (indices.dtype.kind not in "iu" or int(indices.min()) < 0 or int(indices.max()) >= n):
        raise wrong("permute", "indices", indices, f"an array of whole numbers from 0 to {n - 1}")
    half = max(1, ((n - 1).bit_length() + 1) // 2)
    keys = _keys(seed, np.arange(_ROUNDS, dtype=_U64))
    values = _feistel(indices.astype(_U64).ravel(), half, keys)
    # The domain is at most 4 n, so a walk is a few steps long; it ends because a bijection's orbits are cycles.
    while (outside := np.flatnonzero(values >= _U64(n))).size:
        values[outside] = _feistel(values[outside], half, keys)
    return values.astype(np.int64).reshape(indices.shape)


@checked()
def windows_per_epoch(store_length: int, context: int, ring: bool = False) -> int:
    """How many windows of ``context + 1`` tokens one epoch has; the same in every epoch.

    Args:
        ring: whether the first token follows the last one, so that no token is left over.

    Raises:
        HeddleError: the store is shorter than one window.
    """
    if context < 1:
        raise HeddleError(f"context must be at least 1, not {context}")
    if store_length < context + 1:
        raise HeddleError(
            f"the training part has {store_length} tokens, but a context of {context} needs at least {context + 1}: "
            "give more text or a shorter context"
        )
    return store_length // context if ring else max(1, (store_length - context) // context)


@checked(step=at_least(0), batch=at_least(1))
def windows(store_length: int, context: int, seed: int, step: int, batch: int, ring: bool = False) -> Indices:
    """Start offsets [B] of the windows that step ``step`` (from 0) reads: tokens ``start .. start + context`` each.

    Entry j is example ``step * batch + j``, so the sequence of examples does not depend on batches, micro-batches or ranks.
    Each epoch visits its windows once, in an order keyed by (seed, epoch). Consecutive windows are ``context`` apart, so no
    target is seen twice in an epoch, and the whole grid is shifted by a hash of (seed, epoch), so windows differ between
    epochs. In a ring, the store's first token follows its last one, so a window may begin anywhere.

    Raises:
        HeddleError: the store is shorter than one window.
    """
    count = windows_per_epoch(store_length, context, ring)
    example, end = step * batch, (step + 1) * batch
    starts = np.empty(batch, dtype=np.int64)
    filled = 0
    while example < end:
        epoch, first = divmod(example, count)
        taken = min(end - example, count - first)
        key = epoch_key(seed, epoch)
        # A store shorter than two contexts has less room to shift than a whole context.
        room = store_length if ring else min(context, store_length - count * context)
        offset = int(_keys(key, np.array([_ROUNDS], dtype=_U64))[0]) % room
        order = permute(np.arange(first, first + taken), count, key)
        starts[filled : filled + taken] = (offset + order * context) % store_length
        example += taken
        filled += taken
    return starts


@checked(store_length=at_least(1))
def targets_left_out(store_length: int, context: int) -> int:
    """How many of the ``store_length - 1`` targets one epoch leaves out; every epoch leaves out different ones.

    They are fewer than two windows: the grid needs room to shift, and the rest does not fill a window.
    """
    return store_length - 1 - windows_per_epoch(store_length, context) * context


@checked(length=at_least(0), most=at_least(0))
def held_out_windows(length: int, context: int, most: int | None = None) -> list[tuple[int, int]]:
    """Windows (start, end) that score every target of a held-out text once: ``length - 1`` targets in all.

    Inputs are ``tokens[start:end]``, targets ``tokens[start + 1 : end + 1]``; windows do not overlap, and the last may be
    shorter. A text of one token has no target, hence no window.

    Args:
        most: take only this many windows, spread evenly over the text: one from each of as many equal stretches, at a place
            chosen by a hash, so that the sample is independent of periods in the text. Equal arguments give equal windows.
    """
    if context < 1:
        raise HeddleError(f"context must be at least 1, not {context}")
    count = -(-(length - 1) // context)
    chosen = range(count) if most is None or most >= count else evenly_spaced(count, most).tolist()
    return [(k * context, min((k + 1) * context, length - 1)) for k in chosen]


def epoch_key(seed: int, epoch: int) -> int:
    """The seed of an epoch's order."""
    return int(_keys(seed, np.array([epoch], dtype=_U64))[0])


def evenly_spaced(count: int, samples: int) -> Indices:
    """One of each of ``wanted`` equal stretches of ``range(count)``, chosen by a hash; ``wanted`` is at most ``count``."""
    edges = np.arange(samples + 1, dtype=np.int64) * count // samples
    places = _keys(0, np.arange(samples, dtype=_U64)) % np.diff(edges).astype(_U64)
    return edges[:-1] + places.astype(np.int64)


def _feistel(values: npt.NDArray[np.uint64], half: int, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """One pass over values of ``2 * half`` bits."""
    bits, mask = _U64(half), _U64((1 << half) - 1)
    left, right = values >> bits, values & mask
    for key in keys:
        left, right = right, left ^ (_scramble(right ^ key) & mask)
    return (left << bits) | right


def _scramble(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014); unsigned products wrap, as they should."""
    x = (x ^ (x >> _U64(30))) * _U64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> _U64(27))) * _U64(0x94D049BB133111EB)
    return x ^ (x >> _U64(31))


def _keys(seed: int, streams: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """A 64-bit key for each of ``streams`` under ``seed``, which may be any integer."""
    start = _scramble(np.array([int(seed) & _MASK], dtype=_U64))
    return _scramble(start + (streams + _U64(1)) * _U64(_GOLDEN))
