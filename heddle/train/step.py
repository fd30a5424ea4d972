"""One training step: batch -> loss -> gradient -> every parameter updated. The whole of training, once the rest is set up."""

from collections.abc import Callable
from math import isfinite, nan

import torch
from torch import Tensor

from heddle.checks import at_least, checked
from heddle.data.batch import Batch
from heddle.train.objective import Loss
from heddle.train.optimizer import Optimizer

Reduce = Callable[[Tensor], Tensor]
"""A tensor summed over all ranks, on every rank the same."""


def alone(tensor: Tensor) -> Tensor:
    """The sum over the ranks of one process: what it has."""
    return tensor


@checked(accumulate=at_least(1), factor=at_least(0), clip=at_least(0))
def train_step(
    objective: Callable[[Batch], Loss],
    optimizer: Optimizer,
    batch: Batch,
    accumulate: int,
    factor: float,
    clip: float,
    reduce: Reduce = alone,
) -> tuple[float, float]:
    """Update the parameters once; returns (mean loss in nats per target, norm of the gradient before clipping).

    If either is NaN or infinite, nothing is updated and the gradients are left to be looked at.

    The loss is the sum over all targets divided by their count over the WHOLE batch, so cutting the batch into micro-batches,
    or among ranks, changes nothing (dropout aside), however unevenly the targets fall.

    Args:
        objective: from a batch to its loss, as a task gives it, compiled or wrapped.
        optimizer: of the objective's model.
        batch: this rank's rows.
        accumulate: micro-batches to cut them into.
        factor: of the highest learning rates.
        clip: largest norm of the gradient; 0: any.
        reduce: sums over ranks. Where there are several, the objective's wrapper must leave the MEAN of the ranks' gradients,
            as `DistributedDataParallel` and FSDP do.
    """
    count, ranks = reduce(torch.stack([batch.weights.sum(), batch.weights.new_ones(())]))
    share = count / ranks  # the mean over ranks of what is divided by it is the sum over ranks divided by the count
    total = torch.zeros((), device=count.device)
    loads: list[Tensor] = []
    for part in batch.split(accumulate):
        loss = objective(part)
        ((loss.total + loss.extra) / share).backward()
        optimizer.collect()
        total = total + loss.total.detach()
        loads = [a + b for a, b in zip(loads, loss.loads, strict=True)] if loads else list(loss.loads)
    mean = (reduce(total) / count).item()
    norm = optimizer.step(factor, clip) if isfinite(mean) else nan
    if isfinite(norm):
        optimizer.balance([reduce(load) for load in loads])
    return mean, norm
