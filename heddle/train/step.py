"""One training step: batch -> loss -> gradient -> every parameter turned. The whole of training, once the rest is set up."""

from collections.abc import Callable
from math import isfinite, nan

import torch

from heddle.data.batch import Batch
from heddle.train.objective import Loss
from heddle.train.optimizer import Optimizer


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
    for part in batch.split(accumulate):
        loss = objective(part)
        (loss.total / count).backward()
        optimizer.collect()
        total = total + loss.total.detach()
    mean = (total / count).item()
    return mean, optimizer.step(factor, clip) if isfinite(mean) else nan
