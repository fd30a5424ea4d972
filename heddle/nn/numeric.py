"""Numerics shared by many layers."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """fp32, or `dtype` if it is wider: the precision of statistics, sums over tokens and softmax."""
    return torch.promote_types(dtype, torch.float32)


def on_device(
    numbers: Sequence[object] | Tensor, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """These numbers, or rows of numbers, on a device. A GPU's earlier work is not waited for."""
    tensor = torch.as_tensor(numbers, dtype=dtype)
    # CUDA has read pageable memory when the call returns; on other devices the memory could be freed before it is read.
    return tensor if device is None else tensor.to(device, non_blocking=torch.device(device).type == "cuda")


def with_sinks(scores: Float[Tensor, "*b T S"], sinks: Float[Tensor, " H"] | None) -> Float[Tensor, "*b T s"]:
    """Scores with each head's sink as a last column, which takes its share of the softmax; unchanged without sinks
    (gpt-oss; Xiao et al. 2024, 3.3)."""
    if sinks is None:
        return scores
    column = sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
    return torch.cat((scores, column), -1)


def capped(scores: Float[Tensor, "..."], cap: float | None) -> Float[Tensor, "..."]:
    """cap · tanh(scores / cap): close to the scores while they are small, never beyond ±cap (Gemma 2, section 2)."""
    return scores if cap is None else cap * (scores / cap).tanh()
