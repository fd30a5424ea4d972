"""Rotating pairs of channels, as rotary positions do (Su et al. 2021, eq. 15)."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from heddle.nn.numeric import in_dtype


class Rotation(NamedTuple):
    """Factors [b 1 T r] on each rotated channel and on the other of its pair, and whether pairs are neighbouring channels."""

    cos: Tensor
    sin: Tensor
    neighbours: bool = False


def rotate(x: Float[Tensor, "B h T d"], rotation: Rotation | None) -> Float[Tensor, "B h T d"]:
    """Rotate each pair of channels of `x` by its position's angle, in fp32 or wider; with None, return `x` itself.

    Channels beyond the rotated ones are unchanged.
    """
    if rotation is None:
        return x
    if not torch.is_grad_enabled():
        return rotated(x, *rotation)
    return _Rotate.apply(x, *rotation)  # type: ignore[no-untyped-call]


def rotated(x: Tensor, cos: Tensor, sin: Tensor, neighbours: bool) -> Tensor:
    """Rotate each pair (u, v) to (u cos - v sin, v cos + u sin)."""
    if x.device.type != "cpu" and not torch.compiler.is_compiling():
        return _rotated_in_few_launches(x, cos, sin, neighbours)
    paired, unrotated = x.split((cos.shape[-1], x.shape[-1] - cos.shape[-1]), dim=-1)
    if neighbours:
        first, second, cos, sin = paired[..., ::2], paired[..., 1::2], cos[..., 1::2], sin[..., 1::2]
        turned = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1).flatten(-2)
    else:  # few passes over whole rows: the other channel of each pair is half a row away
        wide = paired.to(torch.promote_types(x.dtype, cos.dtype), memory_format=torch.contiguous_format)
        turned = wide * cos + wide.roll(wide.shape[-1] // 2, -1) * sin
    return (
        torch.cat((in_dtype(turned, x.dtype), unrotated), dim=-1) if unrotated.shape[-1] else in_dtype(turned, x.dtype)
    )


def _rotated_in_few_launches(x: Tensor, cos: Tensor, sin: Tensor, neighbours: bool) -> Tensor:
    """Two for each channel of a pair, which read and write it in its place, whatever the dtype of x."""
    out, width = torch.empty_like(x, memory_format=torch.contiguous_format), cos.shape[-1]
    first = slice(0, width, 2) if neighbours else slice(width // 2)
    second = slice(1, width, 2) if neighbours else slice(width // 2, width)
    u, v, cos, sin = x[..., first], x[..., second], cos[..., second], sin[..., second]
    torch.addcmul(u * cos, v, sin, value=-1, out=out[..., first])
    torch.addcmul(v * cos, u, sin, out=out[..., second])
    if width < x.shape[-1]:
        out[..., width:] = x[..., width:]
    return out


class _Rotate(torch.autograd.Function):
    """The rotation; the gradient of x is the gradient of the output, rotated back, for which only the angles are saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, neighbours: bool) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.neighbours = neighbours
        return rotated(x, cos, sin, neighbours)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        cos, sin = ctx.saved_tensors
        return rotated(gradient, cos, -sin, ctx.neighbours), None, None, None
