"""Uniform numbers, and the id at which a distribution reaches one."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from heddle.nn.numeric import on_device, wide_dtype


def precision(logits: Tensor) -> torch.dtype:
    """The precision to sample in: float64 on a CPU; elsewhere, where it is slow or missing, fp32 or that of wider logits."""
    return torch.float64 if logits.device.type == "cpu" else wide_dtype(logits.dtype)


def at_levels(probabilities: Float[Tensor, "B V"], levels: Sequence[float]) -> Int[Tensor, " B"]:
    """The first id of each row at which the cumulative distribution exceeds the level.

    Probabilities are rounded to multiples of 2^-40. So their sums are exact in any order, and a GPU draws the same ids each time.
    Sums in fp32 would miss the CPU's id six to fifty times as often.
    """
    cumulative = (probabilities * (1 << 40)).long().cumsum(-1)
    level = on_device([[int(level * (1 << 32))] for level in levels], probabilities.device)
    # Both factors have 32 bits at most, so the product has no more than 63.
    reached = cumulative > ((cumulative[:, -1:] >> 10) * level >> 22)
    return reached.view(torch.uint8).argmax(-1)


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1), the same on every machine: Philox keyed by the seed (Salmon et al. 2011), at `position`."""
    return np.random.Generator(np.random.Philox(key=seed, counter=position)).random()
