"""Which records each step reads: batches of similar length, as a pure function of (seed, step)."""

from math import ceil

import numpy as np
import numpy.typing as npt

from heddle.data.order import Indices, epoch_key, evenly_spaced, permute

EMPTY = -1
"""The number of a row without a record: it is padding only, and fills a batch that has too few records."""
WIDTH = 8  # records are padded to multiples of this many tokens before they are compared


class Buckets:
    """Batches of records of similar length; every record is read once per epoch.

    A batch holds `rows` records, or as many as fit into `tokens` with padding, in multiples of `multiple`. Records that do not fill
    a batch of their width join the next wider one, so only one batch per epoch has empty rows. Every epoch has the same number of
    batches; which records meet in them, and their order, depend on (seed, epoch).

    Args:
        lengths: Int[R], tokens of each record.
        rows: records per batch, if `tokens` is None.
        tokens: padded tokens per batch.
        multiple: with `tokens`, rows are a multiple of this, so that ranks and micro-batches divide them. A batch has at least this
            many rows, even if they have more than `tokens` tokens.

    Attributes:
        batches: batches per epoch.
        places: tokens per epoch, padding included.
    """

    def __init__(
        self, lengths: npt.NDArray[np.integer], rows: int, tokens: int | None = None, multiple: int = 8
    ) -> None:
        self.widths = -(-np.maximum(lengths, 1) // WIDTH) * WIDTH
        self.rows, self.tokens, self.multiple = rows, tokens, multiple
        self.batches = self.places = 0
        left = width = 0
        for width, count in zip(*(each.tolist() for each in np.unique(self.widths, return_counts=True)), strict=True):
            full, left = divmod(left + count, self.capacity(width))
            self.batches += full
            self.places += full * self.capacity(width) * width
        if left:
            self.batches += 1
            self.places += self._last(left) * width
        self._kept: tuple[tuple[int, int], list[Indices]] | None = None

    def capacity(self, width: int) -> int:
        """Rows of a full batch of this width."""
        if self.tokens is None:
            return self.rows
        return max(self.tokens // width // self.multiple, 1) * self.multiple

    def _last(self, left: int) -> int:
        """Rows of the batch for the last records."""
        return self.rows if self.tokens is None else ceil(left / self.multiple) * self.multiple

    def shapes(self) -> list[tuple[int, int]]:
        """Rows and tokens of a row, of the widest batch and of the one with the most places."""
        found = [(self.capacity(width), width) for width in np.unique(self.widths).tolist()]
        return list({max(found, key=lambda shape: shape[1]), max(found, key=lambda shape: shape[0] * shape[1])})

    def read(self, step: int, seed: int) -> Indices:
        """Int[B], the records that step `step` (from 0) reads; `EMPTY` for rows without one."""
        epoch, number = divmod(step, self.batches)
        if self._kept is None or self._kept[0] != (seed, epoch):
            self._kept = (seed, epoch), self._plan(seed, epoch)
        return self._kept[1][number]

    def _plan(self, seed: int, epoch: int) -> list[Indices]:
        """The batches of one epoch, in order."""
        key = epoch_key(seed, epoch)
        order = permute(np.arange(len(self.widths)), len(self.widths), key)
        order = order[np.argsort(self.widths[order], kind="stable")]
        ends = np.cumsum(np.unique(self.widths, return_counts=True)[1])
        found: list[Indices] = []
        left = order[:0]
        for width, members in zip(np.unique(self.widths), np.split(order, ends[:-1]), strict=True):
            rows, waiting = self.capacity(int(width)), np.concatenate([left, members])
            full = len(waiting) // rows * rows
            found += np.split(waiting[:full], full // rows) if full else []
            left = waiting[full:]
        if len(left):
            found.append(np.concatenate([left, np.full(self._last(len(left)) - len(left), EMPTY)]))
        return [found[number] for number in permute(np.arange(len(found)), len(found), key + 1)]


def held_out_records(
    lengths: npt.NDArray[np.integer], targets: npt.NDArray[np.integer], rows: int, most: int | None = None
) -> tuple[list[Indices], float]:
    """The records that evaluation scores, in batches of similar length, and their share of all targets.

    Args:
        lengths: Int[R], tokens of each record.
        targets: Int[R], targets of each record; records without one are left out.
        rows: records per batch.
        most: targets to score; if there are more, an even sample of about this many, always the same. None: all.
    """
    records = np.flatnonzero(targets)
    total = int(targets.sum())
    if most is not None and most < total:
        # At least four, so that a standard error can be estimated.
        records = records[evenly_spaced(len(records), min(len(records), max(4, round(len(records) * most / total))))]
    chosen = records[np.argsort(lengths[records], kind="stable")]
    batches = [chosen[start : start + rows] for start in range(0, len(chosen), rows)]
    return batches, float(targets[chosen].sum() / total) if total else 0.0
