"""Norms and activations linearized at one forward pass, for direct logit attribution.

A norm divides by a factor that depends on the token, and an activation multiplies by one. With these factors frozen at their values
in the pass, the map from the residual stream to a score is affine, and its parts add up to the score exactly (Elhage et al. 2021).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from heddle.errors import HeddleError, article
from heddle.nn.norm import LayerNorm, RMSNorm

Vectors = Float[Tensor, "B P D"]
Pulled = tuple[Vectors, Float[Tensor, "B P"]]
"""The direction pulled back through a map, and the contribution of the map's bias to the score."""


@dataclass(frozen=True)
class Affine:
    """The affine map x → A x + b of a norm, an activation or a linear layer in one pass.

    Attributes:
        pull: from a direction u at the output to (Aᵀ u, u · b), since u · (A x + b) = (Aᵀ u) · x + u · b.
    """

    pull: Callable[[Vectors], Pulled]


def identity() -> Affine:
    """The map x → x."""
    return Affine(lambda u: (u, u.new_zeros(u.shape[:-1])))


def norm_at(norm: nn.Module, x: Vectors) -> Affine:
    """A norm with its statistics frozen at x.

    Raises:
        HeddleError: the norm is not one of heddle's.
    """
    if isinstance(norm, nn.Identity):
        return identity()
    if isinstance(norm, RMSNorm):
        return _rms(norm, x)
    if isinstance(norm, LayerNorm):
        return _layer_norm(norm, x)
    raise HeddleError(f"attribution does not support {article(type(norm).__name__)}")


def _rms(norm: RMSNorm, x: Vectors) -> Affine:
    factor = norm.weight.to(x.dtype) * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.eps)
    return Affine(lambda u: (u * factor, u.new_zeros(u.shape[:-1])))


def _layer_norm(norm: LayerNorm, x: Vectors) -> Affine:
    centred = x - x.mean(-1, keepdim=True)
    variance = centred.square().sum(-1, keepdim=True) / (x.shape[-1] - int(norm.unbiased))
    deviation = variance.sqrt() + norm.eps if norm.eps_outside else (variance + norm.eps).sqrt()
    factor = norm.weight.to(x.dtype) / deviation

    def pull(u: Vectors) -> Pulled:
        scaled = u * factor
        shift = u.new_zeros(u.shape[:-1]) if norm.bias is None else u @ norm.bias.to(u.dtype)
        return scaled - scaled.mean(-1, keepdim=True), shift

    return Affine(pull)


def activation_at(activation: Callable[[Tensor], Tensor], x: Vectors) -> Affine:
    """An activation as the factor act(x) / x, or as a bias where x is 0."""
    value, near = activation(x), x.abs() < 1e-12
    factor = torch.where(near, 0.0, value / torch.where(near, 1.0, x))
    return Affine(lambda u: (u * factor, (u * torch.where(near, value, 0.0)).sum(-1)))


def linear(layer: nn.Linear) -> Affine:
    def pull(u: Vectors) -> Pulled:
        shift = u.new_zeros(u.shape[:-1]) if layer.bias is None else u @ layer.bias.to(u.dtype)
        return u @ layer.weight.to(u.dtype), shift

    return Affine(pull)
