"""Scoring held-out text: every target once, or an even sample of the examples."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import fsum, sqrt
from typing import Any

import torch

from heddle.checks import at_least, checked
from heddle.display import displayed, wrapped
from heddle.errors import room_for
from heddle.model.transformer import Transformer
from heddle.native.cores import share_cores
from heddle.parallel.ranks import Ranks
from heddle.tasks.extent import Extent
from heddle.tasks.task import Task

TOKENS = 4096  # of a batch of short rows, which would otherwise take longer to prepare than to compute
LEAST_ROWS, MOST_ROWS = 16, 64  # of a batch


@displayed(".metrics, .extent, .to_dict()")
@dataclass(frozen=True)
class Evaluation:
    """How well held-out examples are predicted.

    Attributes:
        loss: nats per target.
        standard_error: of `loss` as an estimate for everything held out; 0 if everything was scored, None if only one of
            several examples was.
        tokens: number of targets scored.
        share: share of all held-out targets that were scored; targets that are cut off count.
        metrics: what the task reports with the loss, such as perplexity.
        extent: what there is to score, and what no score can be of; None if the task does not know.
        note: the same in one line, for people; empty if everything can be scored.
    """

    loss: float
    standard_error: float | None
    tokens: int
    share: float
    metrics: Mapping[str, float]
    extent: Extent | None = None
    note: str = ""

    def _lines(self) -> Iterator[str]:
        error = "" if not self.standard_error else f" ± {self.standard_error:.4f}"
        yield f"Evaluation: loss {self.loss:.4f}{error} on {self.tokens:,} targets ({self.share:.1%} of all held out)"
        yield from (f"  {name:<20} {value:.6g}" for name, value in self.metrics.items())
        if self.note:
            yield from wrapped(self.note)

    @property
    def whole(self) -> bool:
        """Whether everything was scored that can be, and not a sample."""
        return self.standard_error == 0

    def unscored_counts(self) -> dict[str, int]:
        """The counts of what the score does not cover, without zeros."""
        return {} if self.extent is None else self.extent.unscored_counts()

    def to_dict(self) -> dict[str, float | None]:
        """All values as one flat table, as a run stores them."""
        score = {"loss": self.loss, "standard_error": self.standard_error, **self.metrics}
        counts = {} if self.extent is None else self.extent.to_dict()
        return {**score, "tokens": self.tokens, "share": self.share, **counts}


@checked(rows=at_least(1), most=at_least(1))
@torch.no_grad()
def evaluate(
    model: Transformer,
    task: Task,
    rows: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    most: int | None = None,
    ranks: Ranks | None = None,
) -> Evaluation:
    """Score what a task holds out.

    Args:
        model: in any precision; evaluated in evaluation mode, then returned to its previous mode.
        task: provides the examples and their targets.
        rows: examples per batch; None: 16, or up to 64 of few tokens.
        progress: called with the number of examples scored so far and in all.
        most: targets to score; if there are more, an even sample of about this many, always the same. None: all.
        ranks: processes that train the model together; each scores some of the batches. None: this one is alone.

    Raises:
        HeddleError: the model does not fit the task, or nothing is held out.
    """
    objective, training = task.objective(model), model.training
    chosen = task.held_out(rows or batch_rows(model.config.context), most)
    examples = sum(len(each.places) for each in chosen.batches)
    ranks, records, done = Ranks() if ranks is None else ranks, list[list[Any]](), 0
    model.eval()
    # All ranks do the same number of forward passes, for which they may need each other; the last may compute one for nothing.
    for first in range(0, len(chosen.batches), ranks.data_count):
        share_cores()
        each = chosen.batches[min(first + ranks.data_rank, len(chosen.batches) - 1)]
        batch = task.batch(each)
        size = f"{len(batch.tokens)} rows of {batch.tokens.shape[-1]:,} tokens to score"
        with room_for(size, "use fewer rows, a shorter context, or a smaller model"):
            scored = {name: values.tolist() for name, values in objective.by_row(batch.to(model.device)).items()}
        unread = {name: values.tolist() for name, values in task.unread(each).items()}
        # Counted on the host: a Mac's device has no fp64.
        counted = batch.weights.flatten(1) if batch.weights.dim() > 1 else batch.weights[:, None]
        records.append([scored, unread, counted.sum(1, dtype=torch.float64).tolist(), int((counted > 0).sum())])
        done += sum(len(each.places) for each in chosen.batches[first : first + ranks.data_count])
        if progress:
            progress(done, examples)
    model.train(training)
    gathered = ranks.gather(json.dumps(records))
    turns = zip(*(json.loads(gathered[reader]) for reader in ranks.readers), strict=True)
    sums, weights, tokens = _joined([record for turn in turns for record in turn][: len(chosen.batches)])
    means = {name: fsum(values) / fsum(weights) for name, values in sums.items()}
    error = _standard_error(sums["loss"], weights, chosen.share)
    extent, metrics = task.extent(), task.metrics(means, chosen.share)
    if extent is None:
        return Evaluation(means["loss"], error, tokens, chosen.share, metrics)
    note = extent.describe(task.config.counted, wrong=task.counts_unread)
    return Evaluation(means["loss"], error, tokens, chosen.share * extent.share, metrics, extent, note)


def _joined(records: Sequence[Sequence[Any]]) -> tuple[dict[str, list[float]], list[float], int]:
    """The sums of each example by name, the weights of each example, and the number of targets, from those of each batch."""
    sums: dict[str, list[float]] = {}
    weights: list[float] = []
    for scored, unread, of_batch, _ in records:
        for name, numbers in scored.items():
            sums.setdefault(name, []).extend(numbers)
        for name, numbers in unread.items():
            there = sums.setdefault(name, [])
            missing = there[len(weights) :] or [0.0] * len(numbers)
            there[len(weights) :] = [a + b for a, b in zip(missing, numbers, strict=True)]
        weights += of_batch
    return sums, weights, sum(tokens for *_, tokens in records)


def batch_rows(context: int) -> int:
    """Rows of a batch to score, for rows of up to `context` tokens."""
    return min(max(TOKENS // context, LEAST_ROWS), MOST_ROWS)


def _standard_error(nats: list[float], weights: list[float], share: float) -> float | None:
    """Standard error of a mean over examples drawn without replacement (Cochran 1977, ratio estimator)."""
    if share == 1:
        return 0.0
    if len(nats) < 2:
        return None
    mean, number = fsum(nats) / fsum(weights), len(nats)
    squares = fsum((nat - mean * weight) ** 2 for nat, weight in zip(nats, weights, strict=True))
    return sqrt((1 - share) * number / (number - 1) * squares) / fsum(weights)
