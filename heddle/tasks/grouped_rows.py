"""Groups of records that are contrasted with each other; each row of a batch is one group."""

from math import ceil

import numpy as np

from heddle.data.order import epoch_key, evenly_spaced, permute
from heddle.errors import pluralize
from heddle.tasks.record_rows import Numbers, RecordRows
from heddle.tasks.task import DataSpec, ExampleIndices

LEAST = 4  # groups in a sample; fewer would not give a standard error


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
            chosen = evenly_spaced(self.groups, min(self.groups, max(LEAST, ceil(most * self.groups / total))))
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
        """A group's texts cost as much as rows of their own, since they do not see each other; `lengths` counts both texts of a
        pair."""
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
