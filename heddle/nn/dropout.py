"""Dropout with an explicit mask, in both conventions of the lectures (D-03)."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn


def drop(x: Float[Tensor, "..."], keep: Float[Tensor, "..."], rate: float) -> Float[Tensor, "..."]:
    """Inverted dropout with the mask `keep`: kept values are divided by 1 - rate, so inference needs no factor (L0-63)."""
    return x * keep / (1.0 - rate)


def keep_mask(like: Float[Tensor, "..."], rate: float) -> Bool[Tensor, "..."]:
    """A mask of the elements to keep, each with probability 1 - rate.

    On a CPU, torch generates random numbers sequentially, and `bernoulli_` uses 64 random bits per element. Here 16 bits decide, so
    the probability is a multiple of 2^-16, and the mask takes a fifth of the time.
    """
    if like.device.type != "cpu":
        return torch.empty(like.shape, dtype=torch.bool, device=like.device).bernoulli_(1.0 - rate)
    bits = torch.randint(-(2**63), 2**63 - 1, (-(-like.numel() // 4),)).view(torch.int16)
    threshold = min(max(round(rate * 2**16), 1), 2**16 - 1) - 2**15
    return (bits[: like.numel()] >= threshold).view(like.shape)


class Dropout(nn.Module):
    """Drops each element with probability `rate` while training (Srivastava et al. 2014; L0-57, L0-62).

    Args:
        rate: probability of dropping a value; the retain probability, p in deck 000, is 1 - rate (L0-60).
        classic: training does not scale and inference multiplies by 1 - rate (L0-61), instead of the reverse.
        shared: one mask for all rows of a batch (axis 0; L0-58, D-54) instead of one per row.

    Raises:
        ValueError: `rate` is not in [0, 1).
    """

    def __init__(self, rate: float, classic: bool = False, shared: bool = False) -> None:
        super().__init__()
        if not 0.0 <= rate < 1.0:
            raise ValueError(f"dropout rate must be in [0, 1), got {rate}")
        self.rate = rate
        self.classic = classic
        self.shared = shared

    @property
    def active(self) -> bool:
        """Whether values change: in training, and with the classic convention in inference too."""
        return self.rate > 0.0 and (self.training or self.classic)

    @property
    def standard(self) -> bool:
        """Whether this is the dropout of torch's fused kernels: inverted, with a mask for each element."""
        return not (self.classic or self.shared)

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        if not self.active:
            return x
        if not self.training:
            return x * (1.0 - self.rate)
        keep = self.keep(x).to(x.dtype)
        return x * keep if self.classic else drop(x, keep, self.rate)

    def keep(self, x: Float[Tensor, "..."]) -> Bool[Tensor, "..."]:
        """The mask of the elements of x to keep, of one row if all rows share it."""
        return keep_mask(x[:1] if self.shared else x, self.rate)

    def extra_repr(self) -> str:
        return f"rate={self.rate}, classic={self.classic}, shared={self.shared}"
