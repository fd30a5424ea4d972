"""How records become rows of tokens: one record per row, or several in a row that do not attend to each other.

A task that reads records decides how many tokens and targets each has, and what a row contains. `data.layout` chooses how rows are
made:

    concatenate   the default: a record has a row of its own, in batches of similar length
    pack          several complete records share a row of the model's context
"""

from abc import ABC, abstractmethod
from math import ceil

import numpy as np
import numpy.typing as npt

from heddle.config.data import TextLayout
from heddle.data.buckets import EMPTY, Buckets, held_out_records
from heddle.data.order import epoch_key, evenly_spaced, permute
from heddle.data.pack import Packing
from heddle.errors import pluralize
from heddle.tasks.task import DataSpec, ExampleIndices

LEAST_GROUPS = 4  # groups in a sample; fewer would not give a standard error

Numbers = npt.NDArray[np.int64]


class RecordRows(ABC):
    """The rows of one part, in an order that is a function of (seed, step).

    Args:
        spec: the records and the sizes.
        lengths: Int[R], tokens of each record.
        targets: Int[R], targets of each record.
        held_out: whether the records are held out, to be scored.
    """

    def __init__(self, spec: DataSpec, lengths: Numbers, targets: Numbers, held_out: bool) -> None:
        self.spec, self.lengths, self.targets = spec, lengths, targets

    @abstractmethod
    def examples(self, step: int) -> ExampleIndices:
        """The rows of one step: every record once per epoch."""

    @abstractmethod
    def held_out(self, rows: int, most: int | None = None) -> tuple[list[Numbers], float]:
        """The rows that evaluation scores, in batches, and their share of all targets.

        Args:
            rows: rows per batch.
            most: targets to score; if there are more, an even sample of about this many, always the same. None: all.
        """

    @abstractmethod
    def records(self, places: Numbers) -> list[Numbers]:
        """The records in each of these rows."""

    @property
    @abstractmethod
    def steps_per_epoch(self) -> float:
        """Steps that read every record once."""

    def epoch(self) -> int | None:
        """Rows of an epoch; None: steps have different numbers of rows."""
        return None

    def shapes(self) -> list[tuple[int, int]]:
        """Rows and tokens of a row, of the largest batches that a step reads."""
        return [(self.spec.rows, self.spec.length)]

    def remarks(self) -> list[str]:
        """How records share rows and how much is padding, in one line; empty if each record has its own row."""
        return []


class SeparateRecords(RecordRows):
    """A row for each record that has a target, in batches of similar length.

    The place of an example is its record, or `EMPTY` for a row of padding.
    """

    def __init__(self, spec: DataSpec, lengths: Numbers, targets: Numbers, held_out: bool) -> None:
        super().__init__(spec, lengths, targets, held_out)
        self.scorable = np.flatnonzero(targets)  # a batch of records without targets would have no loss
        self.buckets = Buckets(lengths[self.scorable], spec.rows, spec.batch_tokens, spec.multiple)

    def examples(self, step: int) -> ExampleIndices:
        numbers = self.buckets.read(step, self.spec.seed)
        rows = np.where(numbers == EMPTY, EMPTY, self.scorable[numbers])
        # Keys are unique among all steps; empty rows do not use theirs.
        return ExampleIndices(rows, keys=step * (1 << 20) + np.arange(len(rows)))

    def held_out(self, rows: int, most: int | None = None) -> tuple[list[Numbers], float]:
        """Every record that has a target, in batches of similar length, or an even sample."""
        return held_out_records(self.lengths, self.targets, rows, most)

    def records(self, places: Numbers) -> list[Numbers]:
        """The record of each row."""
        return [place[place != EMPTY] for place in places[:, None]]

    @property
    def steps_per_epoch(self) -> float:
        return float(self.buckets.batches)

    def shapes(self) -> list[tuple[int, int]]:
        return self.buckets.shapes()


class PackedRecords(RecordRows):
    """Several records per row of the context, packed by best fit; all rows are equally wide.

    The place of an example is its row's number in `Packing`.
    """

    def __init__(self, spec: DataSpec, lengths: Numbers, targets: Numbers, held_out: bool) -> None:
        super().__init__(spec, lengths, targets, held_out)
        self.packing = Packing(lengths, spec.length, None if held_out else spec.seed)

    def examples(self, step: int) -> ExampleIndices:
        return ExampleIndices(np.arange(step * self.spec.rows, (step + 1) * self.spec.rows))

    def held_out(self, rows: int, most: int | None = None) -> tuple[list[Numbers], float]:
        """All rows, always packed the same way, or an even sample."""
        return self.packing.held_out(rows, self.targets, most)

    def records(self, places: Numbers) -> list[Numbers]:
        """The records in each row, in order."""
        return self.packing.read(places)

    @property
    def steps_per_epoch(self) -> float:
        return self.packing.rows / self.spec.rows

    def epoch(self) -> int:
        return self.packing.rows

    def remarks(self) -> list[str]:
        pack = self.packing
        return [
            f"pack: {pluralize(len(self.lengths), 'record')} in {pluralize(pack.rows, 'row')} of {pack.length} tokens, "
            f"{pack.padding:.2%} of them padding; no record is dropped"
        ]


class GroupedRecords(RecordRows):
    """Groups of at least `size` records, sampled anew in each epoch; every record is in one, and sizes differ by at most one.

    The place of an example is its group's number: group `n` of epoch `e` has the number `e · groups + n`. A step has `batch`
    groups, or about as many as have `batch_tokens` tokens. Held-out records are always grouped the same way.

    Args:
        spec: the records and the sizes.
        lengths: Int[R], tokens of each record.
        targets: Int[R], targets of each record.
        held_out: whether the records are held out, to be scored.
        size: records in a group.
    """

    def __init__(self, spec: DataSpec, lengths: Numbers, targets: Numbers, held_out: bool, size: int) -> None:
        super().__init__(spec, lengths, targets, held_out)
        count = len(lengths)
        self.held_out_part, self.size, self.seed = held_out, size, 0 if held_out else spec.seed
        self.groups = max(1, count // size)
        self.largest = ceil(count / self.groups)
        self.starts = np.arange(self.groups + 1) * count // self.groups
        self.rows = spec.rows
        if spec.batch_tokens is not None:
            fitting = spec.batch_tokens / max(1.0, float(lengths.sum()) / self.groups)
            self.rows = max(1, int(fitting) // spec.multiple) * spec.multiple

    def examples(self, step: int) -> ExampleIndices:
        return ExampleIndices(np.arange(step * self.rows, (step + 1) * self.rows))

    def held_out(self, rows: int, most: int | None = None) -> tuple[list[Numbers], float]:
        """All groups, or an even sample of them."""
        total, chosen = int(self.targets.sum()), np.arange(self.groups)
        if most is not None and most < total:
            chosen = evenly_spaced(self.groups, min(self.groups, max(LEAST_GROUPS, ceil(most * self.groups / total))))
        scored = sum(int(self.targets[each].sum()) for each in self.records(chosen))
        return [chosen[start : start + rows] for start in range(0, len(chosen), rows)], scored / total

    def records(self, places: Numbers) -> list[Numbers]:
        """The records of each group."""
        groups = []
        for place in places.tolist():
            epoch, group = divmod(place, self.groups)
            members = np.arange(self.starts[group], self.starts[group + 1])
            groups.append(permute(members, len(self.lengths), epoch_key(self.seed, epoch)))
        return groups

    @property
    def steps_per_epoch(self) -> float:
        return self.groups / self.rows

    def epoch(self) -> int:
        return self.groups

    def shapes(self) -> list[tuple[int, int]]:
        """The texts of a group cost as much as rows of their own, and `lengths` counts both texts of a pair."""
        texts = 2 * self.rows * self.largest
        return [(texts, max(1, min(self.spec.length, ceil(float(self.lengths.mean()) / 2))))]

    def remarks(self) -> list[str]:
        count, tokens = len(self.lengths), self.rows * float(self.lengths.sum()) / self.groups
        step = f"a step has {pluralize(self.rows, 'group')}, about {tokens:,.0f} tokens"
        if few := self.too_few:
            return [few, step]
        return [
            f"{pluralize(count, 'pair')} in {pluralize(self.groups, 'group')} of {self.size} or a little more; {step}"
        ]

    @property
    def too_few(self) -> str:
        """A remark that there are fewer records than a group should have, which makes the task easier; else empty."""
        count, part = len(self.lengths), "held-out" if self.held_out_part else "training"
        return (
            f"only {count} {part} pairs for a group of {self.size}, so each is compared with fewer"
            if count < self.size
            else ""
        )


LAYOUTS: dict[TextLayout, type[RecordRows]] = {"concatenate": SeparateRecords, "pack": PackedRecords}
