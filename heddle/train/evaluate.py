"""Scoring what was held out: every target once, or an even sample of the examples."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import fsum, sqrt

import torch

from heddle.checks import at_least, checked
from heddle.model.transformer import Transformer
from heddle.train.task import Task


@dataclass(frozen=True)
class Evaluation:
    """How well held-out examples are predicted.

    Attributes:
        loss: nats per target.
        standard_error: of `loss` as an estimate for everything held out; 0 where all of it was scored, None where a
            single example of several says nothing about it.
        tokens: number of targets scored.
        share: of all held-out targets, those that were scored.
        metrics: what the task reports beside the loss, such as perplexity.
    """

    loss: float
    standard_error: float | None
    tokens: int
    share: float
    metrics: Mapping[str, float]

    def to_dict(self) -> dict[str, float | None]:
        """Everything in one table, as a run keeps it."""
        shown = {"loss": self.loss, "standard_error": self.standard_error, **self.metrics}
        return {**shown, "tokens": self.tokens, "share": self.share}


@checked(rows=at_least(1))
@torch.no_grad()
def evaluate(
    model: Transformer,
    task: Task,
    rows: int = 16,
    progress: Callable[[int, int], None] | None = None,
    most: int | None = None,
) -> Evaluation:
    """Score what a task holds out.

    Args:
        model: in any precision; it is put into evaluation mode and back.
        task: which examples, and what is a target in them.
        rows: examples at a time.
        progress: hears the examples scored so far and all that will be.
        most: targets to score; of more an even sample of about so many is scored, the same one every time. None: all.

    Raises:
        HeddleError: the model cannot do what the task asks, or nothing is held out.
    """
    objective, training = task.objective(model), model.training
    chosen = task.held_out(rows, most)
    examples = sum(len(each.places) for each in chosen.batches)
    sums: dict[str, list[float]] = {}
    weights: list[float] = []
    tokens = 0
    model.eval()
    for each in chosen.batches:
        batch = task.batch(each).to(model.device)
        for name, values in objective.by_row(batch).items():
            sums.setdefault(name, []).extend(values.tolist())
        counted = batch.weights.flatten(1) if batch.weights.dim() > 1 else batch.weights[:, None]
        weights += counted.sum(1, dtype=torch.float64).tolist()
        tokens += int((counted > 0).sum())
        if progress:
            progress(len(weights), examples)
    model.train(training)
    means = {name: fsum(values) / fsum(weights) for name, values in sums.items()}
    error = _standard_error(sums["loss"], weights, chosen.share)
    return Evaluation(means["loss"], error, tokens, chosen.share, task.metrics(means, chosen.share))


def _standard_error(nats: list[float], weights: list[float], share: float) -> float | None:
    """Of a mean over examples drawn without replacement (Cochran 1977, ratio estimator): what is not drawn varies as much."""
    if share == 1:
        return 0.0
    if len(nats) < 2:
        return None
    mean, number = fsum(nats) / fsum(weights), len(nats)
    squares = fsum((nat - mean * weight) ** 2 for nat, weight in zip(nats, weights, strict=True))
    return sqrt((1 - share) * number / (number - 1) * squares) / fsum(weights)
