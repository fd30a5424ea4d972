"""A task that reads the user's own batches."""

from collections.abc import Iterable, Iterator, Sized
from typing import Any

import numpy as np

from heddle.data.batch import Batch
from heddle.data.corpus import Corpus
from heddle.errors import HeddleError, article
from heddle.model.transformer import Transformer
from heddle.tasks.objective import CrossEntropy
from heddle.tasks.task import DataSpec, EvalSet, ExampleIndices, Task


class BatchesTask(Task):
    """Batches in their given order, starting over at the end. Evaluation scores all held-out batches.

    Args:
        batches: batches to train on: a list, a `DataLoader`, or an iterator with at least one batch per step.
        held_out: batches to evaluate on, or None.
        model: the model to train.
        inner: the task with the objective and the metrics; None: cross-entropy.
    """

    repeats = False  # each batch is read once, in the thread that trains

    def __init__(
        self, batches: Iterable[Any], held_out: Iterable[Any] | None, model: Transformer, inner: Task | None
    ) -> None:
        super().__init__(None if inner is None else inner.config, DataSpec(Corpus(), model.config))
        self.inner, self.batches = inner, batches
        self.scored = [] if held_out is None else [checked_batch(each) for each in held_out]
        self.remaining: Iterator[Any] = iter(batches)
        self.step, self.count = -1, 0
        self.last: Batch | None = None

    def examples(self, step: int) -> ExampleIndices:
        """The number of the step."""
        return ExampleIndices(np.array([step]))

    def batch(self, examples: ExampleIndices) -> Batch:
        """The next batch, or the current one again if the step is the same."""
        number = int(examples.places[0])
        if examples.held_out:
            return self.scored[number]
        if self.last is None or number != self.step:
            self.step, self.last = number, self._next()
        return self.last

    def held_out(self, rows: int, most: int | None = None) -> EvalSet:
        """All held-out batches, as they are."""
        if not self.scored:
            raise HeddleError("validation: there are no batches to score")
        return EvalSet(
            tuple(ExampleIndices(np.array([number]), held_out=True) for number in range(len(self.scored))), 1.0
        )

    def objective(self, model: Transformer, label_smoothing: float = 0.0, z_loss: float = 0.0) -> CrossEntropy:
        """The inner task's, or cross-entropy."""
        if self.inner is None:
            return super().objective(model, label_smoothing, z_loss)
        return self.inner.objective(model, label_smoothing, z_loss)

    def metrics(self, means: dict[str, float], share: float) -> dict[str, float]:
        """The metrics of the inner task."""
        return super().metrics(means, share) if self.inner is None else self.inner.metrics(means, share)

    def steps_per_epoch(self) -> float:
        """The number of batches.

        Raises:
            HeddleError: the batches have no length.
        """
        if isinstance(self.batches, Sized):
            return float(len(self.batches))
        raise HeddleError("data: batches without a length have no epochs: give steps, or a list")

    def epochs(self, steps: int) -> float | None:
        """None for batches without a length."""
        return steps / len(self.batches) if isinstance(self.batches, Sized) and len(self.batches) else None

    def describe(self, examples: ExampleIndices) -> str:
        """The step's number."""
        return f"batch of step {int(examples.places[0]) + 1}"

    def _next(self) -> Batch:
        for batch in self.remaining:
            self.count += 1
            return checked_batch(batch)
        # An iterator cannot start over.
        if iter(self.batches) is self.batches or not self.count:
            raise HeddleError(
                f"data: ended after {self.count} of the batches that training needs; give one for each step, or a list"
            )
        self.remaining = iter(self.batches)
        return self._next()


def checked_batch(batch: Any) -> Batch:
    """Check that the user's iterable yielded a batch, and return it.

    Raises:
        HeddleError: it did not.
    """
    if not isinstance(batch, Batch):
        raise HeddleError(f"data: began with a heddle.data.Batch, but then gave {article(type(batch).__name__)}")
    return batch
