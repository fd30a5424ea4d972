"""Norms over the last axis, statistics in fp32 whatever the input's precision. Gains and shifts are kept in fp32, too."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.config.model import LayerNormConfig, RMSNormConfig


class LayerNorm(nn.Module):
    """(x - mean) / √(var + eps) · gain + shift, with the biased variance (L1-09, L0-48; golden `layernorm`)."""

    def __init__(self, dim: int, eps: float = 1e-5, bias: bool = True) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(dim))
        self.bias = nn.Parameter(torch.empty(dim)) if bias else None

    def forward(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        # torch's own kernel keeps the statistics in fp32 for bf16 input, in one pass.
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.layer_norm(x, self.weight.shape, self.weight.to(x.dtype), bias, self.eps)


class RMSNorm(nn.Module):
    """x / √(mean(x²) + eps) · gain (L2-31; Zhang and Sennrich 2019, eq. 4)."""

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(dim))

    def forward(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * scale).to(x.dtype) * self.weight.to(x.dtype)


def make_norm(config: LayerNormConfig | RMSNormConfig, dim: int) -> nn.Module:
    """The norm a config describes, over vectors of width `dim`."""
    if isinstance(config, LayerNormConfig):
        return LayerNorm(dim, config.eps, config.bias)
    return RMSNorm(dim, config.eps)
