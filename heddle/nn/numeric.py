"""What layers do to numbers, whatever layer it is."""

import torch
from jaxtyping import Float
from torch import Tensor


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """fp32, or the dtype itself where that is wider: what statistics, sums over tokens and softmax are computed in."""
    return torch.promote_types(dtype, torch.float32)


def capped(scores: Float[Tensor, "..."], cap: float | None) -> Float[Tensor, "..."]:
    """cap · tanh(scores / cap): about the same for small scores, never beyond ±cap (Gemma 2, section 2)."""
    return scores if cap is None else cap * (scores / cap).tanh()
