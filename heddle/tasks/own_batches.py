"""The user's own batches as a task: what they are read from, and how, is the user's affair."""

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
    """Batches in the order given, again from the start where they end. Evaluation scores all of the held-out ones.

    Args:
        batches: to train on: a list, a `DataLoader`, or an iterator with at least as many as there are steps.
        held_out: to evaluate on, or None.
        model: the model to train.
        inner: the task whose objective and metrics count; None: cross-entropy.
    """

    def __init__(
        self, batches: Iterable[Any], held_out: Iterable[Any] | None, model: Transformer, inner: Task | None
    ) -> None:
        super().__init__(None if inner is None else inner.config, DataSpec(Corpus(), model.config))
        self.inner, self.given = inner, batches
        self.scored = [] if held_out is None else [checked_batch(each) for each in held_out]
        self.left: Iterator[Any] = iter(batches)
        self.step, self.found = -1, 0
        self.last: Batch | None = None

    def examples(self, step: int) -> ExampleIndices:
        """The number of the step."""
        return ExampleIndices(np.array([step]))

    def batch(self, examples: ExampleIndices) -> Batch:
        """The next batch, or the present one once more."""
        number = int(examples.places[0])
        if examples.held_out:
            return self.scored[number]
        if self.last is None or number != self.step:
            self.step, self.last = number, self._next()
        return self.last

    def held_out(self, rows: int, most: int | None = None) -> EvalSet:
        """All held-out batches, as they are."""
        if not self.scored:
            raise HeddleError("validation: there is no batch to score")
        return EvalSet(
            tuple(ExampleIndices(np.array([number]), held_out=True) for number in range(len(self.scored))), 1.0
        )

    def objective(self, model: Transformer, label_smoothing: float = 0.0, z_loss: float = 0.0) -> CrossEntropy:
        """The inner task's, or cross-entropy."""
        if self.inner is None:
            return super().objective(model, label_smoothing, z_loss)
        return self.inner.objective(model, label_smoothing, z_loss)

    def metrics(self, means: dict[str, float], share: float) -> dict[str, float]:
        """What the inner task reports of its objective's sums."""
        return super().metrics(means, share) if self.inner is None else self.inner.metrics(means, share)

    def steps_per_epoch(self) -> float:
        """One for each batch.

        Raises:
            HeddleError: what they come from has no length.
        """
        if isinstance(self.given, Sized):
            return float(len(self.given))
        raise HeddleError("data: batches without a length have no epochs: give steps, or a list")

    def epochs(self, steps: int) -> float | None:
        """None for batches without a length."""
        return steps / len(self.given) if isinstance(self.given, Sized) and len(self.given) else None

    def describe(self, examples: ExampleIndices) -> str:
        """The step's number."""
        return f"batch of step {int(examples.places[0]) + 1}"

    def _next(self) -> Batch:
        for batch in self.left:
            self.found += 1
            return checked_batch(batch)
        # What is its own iterator cannot start again.
        if iter(self.given) is self.given or not self.found:
            raise HeddleError(
                f"data: ended after {self.found} of the batches that training needs; give one for each step, or a list"
            )
        self.left = iter(self.given)
        return self._next()


def checked_batch(batch: Any) -> Batch:
    """A batch, which the user's iterable must give.

    Raises:
        HeddleError: it is something else.
    """
    if not isinstance(batch, Batch):
        raise HeddleError(f"data: began with a heddle.data.Batch, but then gave {article(type(batch).__name__)}")
    return batch
