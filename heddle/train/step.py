"""One training step: batch -> loss -> gradient -> every parameter turned. The whole of training, once the rest is set up."""

from collections.abc import Callable
from math import isfinite, nan

import torch

from heddle.checks import at_least, checked
from heddle.data.batch import Batch
from heddle.train.objective import Loss
from heddle.train.optimizer import Optimizer


@checked(accumulate=at_least(1), factor=at_least(0), clip=at_least(0))
def train_step(
    objective: Callable[[Batch], Loss],
    optimizer: Optimizer,
    batch: Batch,
    accumulate: int,
    factor: float,
    clip: float,
) -> tuple[float, float]:
    """Turn the parameters once; returns (mean loss in nats per target, norm of the gradient before clipping).

    If either is not finite, nothing is turned and the gradients are left to be looked at.

    The loss is the sum over all target tokens divided by their count over the WHOLE batch, so cutting the batch into
    micro-batches changes nothing (dropout aside), however unevenly the targets fall.
    """
    count = batch.weights.sum()
    total = torch.zeros((), device=count.device)
    loads: list[torch.Tensor] = []
    for part in batch.split(accumulate):
        loss = objective(part)
        ((loss.total + loss.extra) / count).backward()
        optimizer.collect()
        total = total + loss.total.detach()
        loads = [a + b for a, b in zip(loads, loss.loads, strict=True)] if loads else list(loss.loads)
    mean = (total / count).item()
    norm = optimizer.step(factor, clip) if isfinite(mean) else nan
    if isfinite(norm):
        optimizer.balance(loads)
    return mean, norm
