"""Norms over the last axis. Statistics are computed in fp32 or wider for every input dtype; gains and shifts stay fp32."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from heddle.config.layers import LayerNormConfig, NoNormConfig, RMSNormConfig
from heddle.nn.numeric import wide_dtype

# Numbers to normalise at a time: half a MiB in fp32, so that all passes over them stay in a core's cache.
IN_CACHE = 1 << 17
PARTS = 64  # maximum number of parts


class LayerNorm(nn.Module):
    """(x - mean) / √(var + eps) · gain + shift, with the biased variance (L1-09, L0-48; golden `layernorm`).

    Args:
        dim: D.
        eps: added to the variance; with 0, a constant row has no defined value (L0-50).
        bias: whether to learn a shift.
        unbiased: divide the variance by D - 1 instead of D (D-04).
        eps_outside: add eps to the standard deviation instead, as in The Annotated Transformer.
    """

    def __init__(
        self, dim: int, eps: float = 1e-5, bias: bool = True, unbiased: bool = False, eps_outside: bool = False
    ) -> None:
        super().__init__()
        self.eps = eps
        self.unbiased = unbiased
        self.eps_outside = eps_outside
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim)) if bias else None

    def forward(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        if self.eps > 0 and not (self.unbiased or self.eps_outside):
            # torch's own kernel keeps the statistics in fp32 for bf16 input, in one pass.
            return F.layer_norm(x, self.weight.shape, self.weight.to(x.dtype), bias, self.eps)
        wide = x.to(wide_dtype(x.dtype))
        centred = wide - wide.mean(-1, keepdim=True)
        count = x.shape[-1] - int(self.unbiased)
        if self.eps_outside:
            # vector_norm, not the root of a sum of squares: the root's gradient is infinite for a constant row.
            deviation = torch.linalg.vector_norm(centred, dim=-1, keepdim=True) / count**0.5 + self.eps
        else:
            deviation = (centred.square().sum(-1, keepdim=True) / count + self.eps).sqrt()
        normed = (centred / deviation).to(x.dtype) * self.weight.to(x.dtype)
        return normed if bias is None else normed + bias


class RMSNorm(nn.Module):
    """x / √(mean(x²) + eps) · gain (L2-31; Zhang and Sennrich 2019, eq. 4).

    On CUDA, torch's own kernel does all of it at once. Elsewhere torch would launch several, so heddle's gradient is used.
    """

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        if x.is_cuda:
            return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)
        if torch.is_grad_enabled():
            out: Tensor = _RMSNorm.apply(x, self.weight, self.eps)  # type: ignore[no-untyped-call]
            return out
        normed, _ = rms_normed(x, self.eps)
        return normed.to(x.dtype) * self.weight.to(x.dtype)


def rms_normed(x: Float[Tensor, "*rows D"], eps: float) -> tuple[Float[Tensor, "*rows D"], Float[Tensor, "*rows 1"]]:
    """x divided by its root mean square, and the factor 1 / √(mean(x²) + eps), both in fp32 or wider."""
    wide = x.to(wide_dtype(x.dtype))
    length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    scale = torch.rsqrt(length.square() / x.shape[-1] + eps)
    return wide * scale, scale


class _RMSNorm(torch.autograd.Function):
    """RMSNorm with a gradient written by hand: it saves no copy of x in fp32, and takes less time.

    With n = x · scale and a gradient g of the output, dx = scale · (g · gain - n · mean(g · gain · n)).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        ctx.rows, gain = _rows(x), weight.to(x.dtype)
        if ctx.rows >= len(x):  # splitting would take a tenth of a short norm's time
            normed, scale = rms_normed(x, eps)
            ctx.save_for_backward(x, weight, scale)
            normed = normed.to(x.dtype)
            # In place it takes no memory, but see `numeric.in_dtype`.
            return normed * gain if torch.compiler.is_compiling() else normed.mul_(gain)
        out, scales = torch.empty_like(x), []
        for rows, target in zip(x.split(ctx.rows), out.split(ctx.rows), strict=True):
            normed, scale = rms_normed(rows, eps)
            torch.mul(normed.to(x.dtype), gain, out=target)
            scales.append(scale)
        ctx.save_for_backward(x, weight, *scales)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, *scales = ctx.saved_tensors
        if len(scales) == 1:
            x_gradient, weight_gradient = _gradients(x, gradient, weight, scales[0])
            return x_gradient.to(x.dtype), weight_gradient, None
        x_gradient, weight_gradient = torch.empty_like(x), torch.zeros_like(weight)
        parts = zip(*(tensor.split(ctx.rows) for tensor in (x, gradient, x_gradient)), scales, strict=True)
        for rows, above, target, scale in parts:
            of_rows, of_weight = _gradients(rows, above, weight, scale)
            target.copy_(of_rows)
            weight_gradient += of_weight
        return x_gradient, weight_gradient, None


def _gradients(x: Tensor, above: Tensor, weight: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of x and of the gain from the gradient `above` of an RMS norm's output, in the dtype of `scale`."""
    normed, above = x * scale, above.to(scale.dtype)
    product = above * normed
    weight_gradient = product.sum_to_size(weight.shape)
    mean = (product * weight).mean(-1, keepdim=True)  # of each row by itself, unlike a product of matrices
    return (above * weight).sub_(normed.mul_(mean)).mul_(scale), weight_gradient


def _rows(x: Tensor) -> int:
    """Along the first axis, the length of parts of about `IN_CACHE` numbers, or of `PARTS` larger ones.

    Only a CPU has such a cache: a GPU takes all rows at once, as do tensors without numbers, which tell how much memory is needed.
    A compiler splits by itself. It may compile only the forward pass, so the backward pass must use the stored number.
    """
    plain = type(x) is Tensor and x.device.type == "cpu" and not torch.compiler.is_compiling()
    if x.dim() == 1 or not x.numel() or not plain:
        return len(x)
    return max(1, IN_CACHE * len(x) // x.numel(), -(-len(x) // PARTS))


def make_norm(config: LayerNormConfig | RMSNormConfig | NoNormConfig, dim: int) -> nn.Module:
    """Build the norm that a config describes, for vectors of width `dim`."""
    if isinstance(config, LayerNormConfig):
        return LayerNorm(dim, config.eps, config.bias, config.unbiased, config.eps_outside)
    return RMSNorm(dim, config.eps) if isinstance(config, RMSNormConfig) else nn.Identity()
