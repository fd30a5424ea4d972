"""The base class of tasks that learn from records: which records a step reads, and which are scored."""

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
from heddle.tasks.rows.records import (
    LAYOUTS,
    RecordRows,
)
from heddle.tasks.task import DataSpec, EvalSet, ExampleIndices, Task, listed, stream

Lengths = npt.NDArray[np.int64]
Chosen = npt.NDArray[np.bool_]


class RecordTask(Task):
    """A task whose examples are records, each once per epoch.

    A subclass decides how long a record is and how many targets it has, and makes batches from the rows of `rows`.

    Raises:
        HeddleError: the records lack a column, or no record has a target.
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
        """Int[R], tokens of each record, at most the context; records of similar length share a batch or a row."""

    @abstractmethod
    def targets(self, records: Records) -> Lengths:
        """Int[R], number of targets of each record."""

    def all_targets(self, records: Records) -> Lengths:
        """Int[R], number of targets of each record with an unlimited context; by default, the same as `targets`."""
        return self.targets(records)

    def shortened(self, records: Records) -> Chosen:
        """Bool[R], whether each record loses its end; by default, whether it loses targets."""
        is_shortened: Chosen = self.targets(records) < self.all_targets(records)
        return is_shortened

    def extent(self) -> Extent:
        """How many of the targets of the held-out records are scored."""
        records = self.spec.records(held_out=True)
        all_targets, scored = self.all_targets(records), self.targets(records)
        return Extent(
            targets=int(all_targets.sum()),
            cut=int((all_targets - scored).sum()),
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
            layout = LAYOUTS[self.spec.layout]
            self._rows[held_out] = layout(self.spec, self.lengths(records), self.targets(records), held_out)
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
        """The number of records that training reads; of held-out ones, those with a target."""
        rows = self.rows(held_out)
        return int(np.count_nonzero(rows.targets)) if held_out else len(rows.targets)

    def epoch(self, number: int) -> Iterator[ExampleIndices]:
        """All rows; if steps have different numbers of rows, those of complete steps."""
        if self.spec.corpus.train is None:
            return iter(())
        rows = self.rows(held_out=False)
        count, steps = rows.epoch(), int(rows.steps_per_epoch)
        if count is None:
            return map(self.examples, range(number * steps, (number + 1) * steps))
        return stream(self, number * count, count)

    def describe(self, examples: ExampleIndices) -> str:
        """Numbers of the records."""
        prefix = "packed rows of the " if self.spec.layout == "pack" else ""
        part, described = (
            "validation" if examples.held_out else "training",
            replace(examples, places=self.places(examples)),
        )
        return f"{prefix}{part} records {listed(described)}"


def padded(rows: Sequence[npt.ArrayLike], fill: int, width: int | None = None) -> npt.NDArray[np.int64]:
    """Int[B T], rows of different lengths padded with `fill` to `width`, or to the longest row, and to at least one."""
    longest = max(1, *(len(np.asarray(row)) for row in rows))
    table = np.full((len(rows), longest if width is None else width), fill, dtype=np.int64)
    for number, row in enumerate(rows):
        table[number, : len(np.asarray(row))] = row
    return table


def padded_layout(lengths: Sequence[int], width: int) -> Layout:
    """The layout of rows of these lengths, padded to `width` tokens."""
    return Layout.whole(len(lengths), width) if min(lengths) == width else Layout.padded(lengths, width)
