"""The base class of tasks that read plain text: the layout makes the rows, and a task decides their targets."""

from collections.abc import Iterator
from typing import Any, ClassVar

from heddle.config.data import TextLayout
from heddle.model.transformer import Transformer
from heddle.tasks.extent import Extent
from heddle.tasks.isolation import check_isolation
from heddle.tasks.rows.documents import (
    Packed,
    Separate,
)
from heddle.tasks.rows.texts import (
    Concatenated,
    Ids,
    TextRows,
)
from heddle.tasks.task import DataSpec, EvalSet, ExampleIndices, Task, stream

LAYOUTS: dict[TextLayout, type[TextRows]] = {"concatenate": Concatenated, "documents": Separate, "pack": Packed}


class TextTask(Task):
    """A task whose examples are rows of a text (`heddle.tasks.rows.texts`).

    Attributes:
        ahead: 1 if it predicts the token after each one, 0 if it predicts tokens of the row.

    Raises:
        HeddleError: the training text or the held-out text is too short for a row.
    """

    ahead: ClassVar[int]

    def __init__(self, config: Any, spec: DataSpec) -> None:
        super().__init__(config, spec)
        self.rows = LAYOUTS[spec.layout](spec, self.ahead)

    def examples(self, step: int) -> ExampleIndices:
        """The rows of one step: every row once per epoch, in an order keyed by (seed, epoch)."""
        return self.rows.examples(step)

    def held_out(self, rows: int, most: int | None = None) -> EvalSet:
        """Rows that score every target once, or an even sample of them."""
        return self.rows.held_out(rows, most)

    def steps_per_epoch(self) -> float:
        """Steps in which every training row is read once."""
        return self.rows.steps_per_epoch

    def shapes(self) -> list[tuple[int, int]]:
        """The shapes of the rows."""
        return self.rows.shapes()

    def extent(self) -> Extent:
        """How many of the held-out tokens the layout reads."""
        return self.rows.extent()

    def places(self, examples: ExampleIndices) -> Ids:
        """The numbers of the examples: targets of windows, documents, or packed rows."""
        return self.rows.numbers(examples)

    def size(self, held_out: bool) -> int:
        """How many such numbers a part has."""
        return self.rows.size(held_out)

    def epoch(self, number: int) -> Iterator[ExampleIndices]:
        """All rows; if steps have different numbers of rows, those of complete steps."""
        count, steps = self.rows.epoch(), int(self.rows.steps_per_epoch)
        if count is None:
            return map(self.examples, range(number * steps, (number + 1) * steps))
        return stream(self, number * count, count)

    def remarks(self) -> list[str]:
        """How much of the text is not read, and how much is padding."""
        return self.rows.remarks()

    def describe(self, examples: ExampleIndices) -> str:
        """Where the rows are in the text."""
        return self.rows.describe(examples)

    def check_layout(self, model: Transformer) -> None:
        """Refuse a user's own mixer that mixes documents of one row, or tokens with padding.

        Raises:
            HeddleError: a document changes with its neighbours.
        """
        if self.spec.layout != "concatenate":
            check_isolation(model, self.spec.layout, self.spec.length)
