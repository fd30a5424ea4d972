"""Numerics shared by many layers."""

import torch
from jaxtyping import Float
from torch import Tensor


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """fp32, or `dtype` if it is wider: the precision of statistics, sums over tokens and softmax."""
    return torch.promote_types(dtype, torch.float32)


def capped(scores: Float[Tensor, "..."], cap: float | None) -> Float[Tensor, "..."]:
    """cap · tanh(scores / cap): close to the scores while they are small, never beyond ±cap (Gemma 2, section 2)."""
    return scores if cap is None else cap * (scores / cap).tanh()
