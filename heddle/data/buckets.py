"""Batches of records of similar length, as a pure function of (seed, step)."""

from math import ceil

import numpy as np
import numpy.typing as npt

from heddle.data.order import Indices, epoch_key, evenly_spaced, permute

EMPTY = -1
"""The number of a row without a record: only padding, which fills a batch with too few records."""
WIDTH = 8  # records are padded to multiples of this many tokens before they are compared


class Buckets:
    """Batches of records of similar length; every record is read once per epoch.

    A batch has `rows` records, or as many as fit into `tokens` with padding, in multiples of `multiple`. Records that do not fill
    a batch of their width join the next wider one, so only one batch per epoch has empty rows. Every epoch has the same number of
    batches; (seed, epoch) decides which records share a batch, and the order of the batches.

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
        remaining = width = 0
        for width, count in zip(*(each.tolist() for each in np.unique(self.widths, return_counts=True)), strict=True):
            full, remaining = divmod(remaining + count, self.capacity(width))
            self.batches += full
            self.places += full * self.capacity(width) * width
        if remaining:
            self.batches += 1
            self.places += self._last(remaining) * width
        self._epoch_plan: tuple[tuple[int, int], list[Indices]] | None = None

    def capacity(self, width: int) -> int:
        """Rows of a full batch of this width."""
        if self.tokens is None:
            return self.rows
        return max(self.tokens // width // self.multiple, 1) * self.multiple

    def _last(self, remaining: int) -> int:
        """Rows of the batch for the last records."""
        return self.rows if self.tokens is None else ceil(remaining / self.multiple) * self.multiple

    def shapes(self) -> list[tuple[int, int]]:
        """(rows, tokens per row) of the widest batch and of the one with the most tokens."""
        shapes = [(self.capacity(width), width) for width in np.unique(self.widths).tolist()]
        return list({max(shapes, key=lambda shape: shape[1]), max(shapes, key=lambda shape: shape[0] * shape[1])})

    def read(self, step: int, seed: int) -> Indices:
        """Int[B], the records that step `step` (from 0) reads; `EMPTY` for rows without one."""
        epoch, number = divmod(step, self.batches)
        plan = self._epoch_plan
        if plan is None or plan[0] != (seed, epoch):
            plan = self._epoch_plan = (seed, epoch), self._plan(seed, epoch)
        return plan[1][number]

    def _plan(self, seed: int, epoch: int) -> list[Indices]:
        """The batches of one epoch, in order."""
        key = epoch_key(seed, epoch)
        order = permute(np.arange(len(self.widths)), len(self.widths), key)
        order = order[np.argsort(self.widths[order], kind="stable")]
        ends = np.cumsum(np.unique(self.widths, return_counts=True)[1])
        batches: list[Indices] = []
        remaining = order[:0]
        for width, members in zip(np.unique(self.widths), np.split(order, ends[:-1]), strict=True):
            rows, records = self.capacity(int(width)), np.concatenate([remaining, members])
            full = len(records) // rows * rows
            batches += np.split(records[:full], full // rows) if full else []
            remaining = records[full:]
        if len(remaining):
            batches.append(np.concatenate([remaining, np.full(self._last(len(remaining)) - len(remaining), EMPTY)]))
        return [batches[number] for number in permute(np.arange(len(batches)), len(batches), key + 1)]


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
