"""Dropout with its mask in the open, in the convention that predicts without any change (D-03)."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


def drop(x: Float[Tensor, "..."], keep: Float[Tensor, "..."], rate: float) -> Float[Tensor, "..."]:
    """Inverted dropout with a given mask: kept values are divided by 1 - rate in training, prediction does nothing (L0-63)."""
    return x * keep / (1.0 - rate)


class Dropout(nn.Module):
    """Drops each element with probability `rate` while training; the identity in evaluation (L0-57, L0-62).

    Raises:
        ValueError: `rate` is not in [0, 1).
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0.0 <= rate < 1.0:
            raise ValueError(f"dropout is the rate of dropped values, in [0, 1); got {rate}")
        self.rate = rate

    @property
    def active(self) -> bool:
        """Whether anything would be dropped now."""
        return self.training and self.rate > 0.0

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        if not self.active:
            return x
        return drop(x, torch.empty_like(x).bernoulli_(1.0 - self.rate), self.rate)

    def extra_repr(self) -> str:
        return f"rate={self.rate}"
