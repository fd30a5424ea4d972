"""What a training in memory reports: a reader that remembers."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from heddle.display import Listed, displayed, wrapped
from heddle.errors import pluralize
from heddle.train.curves import draw
from heddle.train.evaluate import Evaluation
from heddle.train.model_selection import SelectedWeights
from heddle.train.report import Report
from heddle.weights.adapter import Adapter


@displayed(".losses, .validation, .reports, .evaluation, .plot()")
@dataclass
class History:
    """What happened in a training.

    Attributes:
        reports: of every step and every evaluation, in order; a run writes the same to `metrics.jsonl`.
        evaluation: the score of the validation data at the end; None without any.
        weights: which weights the model has at the end: the last, their moving average, or the best.
        epochs: how many times everything to train on was read; None: batches do not say.
        adapter: what adapters learned, which those weights contain; None if none were trained.
    """

    reports: list[Report] = field(default_factory=Listed)
    evaluation: Evaluation | None = None
    weights: SelectedWeights | None = None
    epochs: float | None = None
    adapter: Adapter | None = None

    def __call__(self, report: Report) -> None:
        """Remember a report."""
        self.reports.append(report)

    @property
    def losses(self) -> list[float]:
        """The training loss of each step, in nats per target."""
        return Listed(report.values["loss"] for report in self.reports if "loss" in report.values)

    @property
    def validation(self) -> list[float]:
        """The validation loss of each evaluation during training, in nats per target."""
        return Listed(report.values["validation_loss"] for report in self.reports if "validation_loss" in report.values)

    def plot(self) -> Any:
        """Draw losses, learning rate and gradient norm over the steps; return matplotlib's `Figure`.

        Raises:
            HeddleError: matplotlib is not installed.
        """
        return draw(["fit"], [[{"step": report.step, **report.values} for report in self.reports]])

    def _lines(self) -> Iterator[str]:
        losses, scores = self.losses, self.validation
        read = "" if self.epochs is None else f", {self.epochs:.3g} epochs"
        change = f", loss {losses[0]:.4f} -> {losses[-1]:.4f}" if losses else ""
        yield f"History: {pluralize(len(losses), 'step')}{read}{change}"
        if scores:
            yield f"  {pluralize(len(scores), 'evaluation')}, validation loss {scores[0]:.4f} -> {scores[-1]:.4f}"
        if self.evaluation is not None:
            metrics = {"loss": self.evaluation.loss, **self.evaluation.metrics}
            yield f"  validation {', '.join(f'{name} {value:.4g}' for name, value in metrics.items())}"
            if self.evaluation.note:
                yield from wrapped(self.evaluation.note)
        if self.weights is not None:
            yield f"  the model has {self.weights}"
