"""One training step: batch -> loss -> gradient -> update."""

from collections.abc import Callable
from math import isfinite, isnan, nan

import torch
from torch import Tensor

from heddle.checks import at_least, checked
from heddle.data.batch import Batch
from heddle.errors import HeddleError
from heddle.parallel.parts import in_turn
from heddle.tasks.objective import Loss
from heddle.train.optimizer import Optimizer

Reduce = Callable[[Tensor], Tensor]
"""Sums a tensor over all ranks; every rank gets the sum."""


def alone(tensor: Tensor) -> Tensor:
    """The sum over ranks for a single process: the tensor itself."""
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
    """Update the parameters once; return (mean plain loss in nats per target, norm of the gradient before clipping).

    If either is NaN or infinite, nothing is updated and the gradients are kept for inspection.

    The loss is the sum over all targets divided by their count over the WHOLE batch, so splitting the batch into micro-batches
    or among ranks changes nothing (except dropout), even if the targets are spread unevenly.

    Args:
        objective: from a batch to its loss, as `task.objective` returns it, possibly compiled or wrapped.
        optimizer: the optimizer of the objective's model.
        batch: this rank's rows.
        accumulate: number of micro-batches.
        factor: factor on the highest learning rates.
        clip: largest norm of the gradient; 0: no clipping.
        reduce: sums over ranks. With several ranks, the objective's wrapper must leave the MEAN of the ranks' gradients, as
            `DistributedDataParallel` and FSDP do.

    Raises:
        HeddleError: no row of the batch has a target.
    """
    count, ranks = reduce(torch.stack([batch.weights.sum(), batch.weights.new_ones(())]))
    share = count / ranks  # dividing by it turns the mean over ranks into the sum over ranks divided by the count
    parts, loads = list[Tensor](), list[Tensor]()
    backward = in_turn if optimizer.parts is None else optimizer.parts.backward
    for loss in backward(objective, batch.split(accumulate), share):
        optimizer.collect()
        parts.append(loss.plain)
        loads = [a + b for a, b in zip(loads, loss.loads, strict=True)] if loads else list(loss.loads)
    # The one place of a step where the host waits for the device.
    mean, *loads = optimizer.measure(reduce(sum(parts[1:], parts[0])) / count, *(reduce(load) for load in loads))
    plain, norm = mean.item(), optimizer.norms.total().item()
    if isnan(plain) and not count:
        raise HeddleError("no row of this step has a target, so there is nothing to learn: give more rows per step")
    if not isfinite(plain):
        return plain, nan
    if isfinite(norm):
        optimizer.update(factor, clip)
        optimizer.balance(loads)
    return plain, norm
