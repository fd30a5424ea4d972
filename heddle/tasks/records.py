"""What tasks that learn from records have in common: which records a step reads, and which are scored."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from heddle.data.records import Records
from heddle.errors import HeddleError
from heddle.nn.layout import Layout
from heddle.tasks.extent import Extent
from heddle.tasks.record_rows import LAYOUTS, RecordRows
from heddle.tasks.task import DataSpec, EvalSet, ExampleIndices, Task, listed, stream

Lengths = npt.NDArray[np.int64]
Chosen = npt.NDArray[np.bool_]


class RecordTask(Task):
    """A task whose examples are records, each once per epoch.

    A subclass says how long a record is and how many targets it has, and makes batches of the rows that `rows` describes.

    Raises:
        HeddleError: the records lack a column, or none has a target.
    """

    def __init__(self, config: Any, spec: DataSpec) -> None:
        super().__init__(config, spec)
        self._rows: dict[bool, RecordRows] = {}
        for held_out in (False, True):
            part = spec.corpus.validation if held_out else spec.corpus.train
            missing = [] if part is None else sorted(set(config.fields) - set(spec.records(held_out).columns))
            if missing:
                raise HeddleError(f"the task {config.kind!r} reads records with {' and '.join(missing)}")
        if spec.corpus.train is not None and not self.rows(held_out=False).targets.any():
            raise HeddleError(f"no record has a target for the task {config.kind!r}")

    @abstractmethod
    def lengths(self, records: Records) -> Lengths:
        """Int[R], tokens of each record, which decide what it shares a batch or a row with; at most the context."""

    @abstractmethod
    def targets(self, records: Records) -> Lengths:
        """Int[R], how many targets each record has."""

    def asked(self, records: Records) -> Lengths:
        """Int[R], how many targets each record has whatever the context; by default, those that it has within it."""
        return self.targets(records)

    def shortened(self, records: Records) -> Chosen:
        """Bool[R], which records are read without their ends; by default, those that lose targets."""
        found: Chosen = self.targets(records) < self.asked(records)
        return found

    def extent(self) -> Extent:
        """How many of the targets of the held-out records are scored."""
        records = self.spec.records(held_out=True)
        asked, scored = self.asked(records), self.targets(records)
        return Extent(
            targets=int(asked.sum()),
            cut=int((asked - scored).sum()),
            examples=len(records),
            shortened=int(self.shortened(records).sum()),
            left_out=int((scored == 0).sum()),
            blank=records.blank,
        )

    def rows(self, held_out: bool) -> RecordRows:
        """How the records to score, or those to train on, are put into rows.

        Raises:
            HeddleError: there are none.
        """
        if held_out not in self._rows:
            records = self.spec.records(held_out)
            made = LAYOUTS[self.spec.layout]
            self._rows[held_out] = made(self.spec, self.lengths(records), self.targets(records), held_out)
        return self._rows[held_out]

    def examples(self, step: int) -> ExampleIndices:
        """The rows of one step: every record once per epoch, in an order keyed by (seed, epoch)."""
        return self.rows(held_out=False).examples(step)

    def steps_per_epoch(self) -> float:
        """Steps that read every record once."""
        return 0.0 if self.spec.corpus.train is None else self.rows(held_out=False).steps_per_epoch

    def shapes(self) -> list[tuple[int, int]]:
        """Those of the rows."""
        return self.rows(held_out=False).shapes()

    def held_out(self, rows: int, most: int | None = None) -> EvalSet:
        """Every held-out record that has a target once, or an even sample of them."""
        batches, share = self.rows(held_out=True).held_out(rows, most)
        if not batches:
            raise HeddleError(f"no held-out record has a target for the task {self.config.kind!r}")
        return EvalSet(tuple(ExampleIndices(each, held_out=True) for each in batches), share)

    def places(self, examples: ExampleIndices) -> Lengths:
        """Numbers of the records."""
        return np.concatenate(self.rows(examples.held_out).records(examples.places))

    def size(self, held_out: bool) -> int:
        """All records are read; those that have a target are scored."""
        rows = self.rows(held_out)
        return int(np.count_nonzero(rows.targets)) if held_out else len(rows.targets)

    def epoch(self, number: int) -> Iterator[ExampleIndices]:
        """All rows, which are those of whole steps if steps have different numbers of rows."""
        if self.spec.corpus.train is None:
            return iter(())
        rows = self.rows(held_out=False)
        count, steps = rows.epoch(), int(rows.steps_per_epoch)
        if count is None:
            return map(self.examples, range(number * steps, (number + 1) * steps))
        return stream(self, number * count, count)

    def describe(self, examples: ExampleIndices) -> str:
        """Numbers of the records."""
        how = "packed rows of the " if self.spec.layout == "pack" else ""
        part, found = "validation" if examples.held_out else "training", replace(examples, places=self.places(examples))
        return f"{how}{part} records {listed(found)}"


def padded(rows: Sequence[npt.ArrayLike], fill: int, width: int | None = None) -> npt.NDArray[np.int64]:
    """Int[B T], rows of different lengths filled up to `width`, or to the longest, and at least one, with `fill`."""
    longest = max(1, *(len(np.asarray(row)) for row in rows))
    found = np.full((len(rows), longest if width is None else width), fill, dtype=np.int64)
    for number, row in enumerate(rows):
        found[number, : len(np.asarray(row))] = row
    return found


def padded_layout(lengths: Sequence[int], width: int) -> Layout:
    """The layout of rows of these lengths filled up to `width` tokens."""
    return Layout.whole(len(lengths), width) if min(lengths) == width else Layout.padded(lengths, width)
