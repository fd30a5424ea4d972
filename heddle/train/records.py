"""What tasks that learn from records have in common: which records a step reads, and which are scored."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from heddle.data.buckets import EMPTY, Buckets, held_out_records
from heddle.data.records import Records
from heddle.errors import HeddleError
from heddle.nn.layout import Layout
from heddle.train.task import Examples, HeldOut, Reading, Task, listed

Lengths = npt.NDArray[np.int64]


class RecordTask(Task):
    """A task whose examples are records of similar length, each once per epoch.

    A subclass says how long a record is and how many targets it has, and makes batches. The place of an example is the number
    of its record, or `EMPTY` for a row of padding.

    Raises:
        HeddleError: the records lack a column, or none has a target.
    """

    def __init__(self, config: Any, reading: Reading) -> None:
        super().__init__(config, reading)
        for held_out in (False, True):
            part = reading.corpus.validation if held_out else reading.corpus.train
            missing = [] if part is None else sorted(set(config.fields) - set(reading.records(held_out).columns))
            if missing:
                raise HeddleError(f"the task {config.kind!r} reads records with {' and '.join(missing)}")
        self.buckets = None
        if reading.corpus.train is not None:
            records = reading.records(held_out=False)
            if not self.targets(records).any():
                raise HeddleError(f"no record has a target for the task {config.kind!r}")
            self.buckets = Buckets(self.lengths(records), reading.rows, reading.batch_tokens, reading.multiple)

    @abstractmethod
    def lengths(self, records: Records) -> Lengths:
        """Int[R], tokens of each record's row, which decide what is batched with it; at most the context."""

    @abstractmethod
    def targets(self, records: Records) -> Lengths:
        """Int[R], how many targets each record has."""

    def examples(self, step: int) -> Examples:
        """The records of one step: every record once per epoch, in an order keyed by (seed, epoch)."""
        if self.buckets is None:
            self.reading.records(held_out=False)
            raise AssertionError  # the line above has raised
        rows = self.buckets.read(step, self.reading.seed)
        # A number for each row that no other step has; empty rows draw nothing.
        return Examples(rows, keys=step * (1 << 20) + np.arange(len(rows)))

    def steps_per_epoch(self) -> float:
        """Steps that read every record once."""
        return 0.0 if self.buckets is None else float(self.buckets.batches)

    def held_out(self, rows: int, most: int | None = None) -> HeldOut:
        """Every held-out record that has a target once, in batches of similar length; or an even sample of them."""
        records = self.reading.records(held_out=True)
        batches, share = held_out_records(self.lengths(records), self.targets(records), rows, most)
        if not batches:
            raise HeddleError(f"no held-out record has a target for the task {self.config.kind!r}")
        return HeldOut(tuple(Examples(each, held_out=True) for each in batches), share)

    def places(self, examples: Examples) -> Lengths:
        """Numbers of the records."""
        numbers: Lengths = examples.places[examples.places != EMPTY]
        return numbers

    def size(self, held_out: bool) -> int:
        """All records are read; those that have a target are scored."""
        records = self.reading.records(held_out)
        return int(np.count_nonzero(self.targets(records))) if held_out else len(records)

    def epoch(self, number: int) -> Iterator[Examples]:
        """All batches of similar length."""
        count = 0 if self.buckets is None else self.buckets.batches
        return map(self.examples, range(number * count, (number + 1) * count))

    def describe(self, examples: Examples) -> str:
        """Numbers of the records."""
        return f"{'validation' if examples.held_out else 'training'} records {listed(examples)}"


def padded(rows: Sequence[npt.ArrayLike], fill: int, width: int | None = None) -> npt.NDArray[np.int64]:
    """Int[B T], rows of different lengths filled up to `width`, or to the longest, and at least one, with `fill`."""
    longest = max(1, *(len(np.asarray(row)) for row in rows))
    found = np.full((len(rows), longest if width is None else width), fill, dtype=np.int64)
    for number, row in enumerate(rows):
        found[number, : len(np.asarray(row))] = row
    return found


def padded_layout(rows: Sequence[npt.ArrayLike], width: int) -> Layout:
    """The layout of rows filled up to `width` tokens."""
    lengths = [len(np.asarray(row)) for row in rows]
    return Layout.whole(len(rows), width) if min(lengths) == width else Layout.padded(lengths, width)
