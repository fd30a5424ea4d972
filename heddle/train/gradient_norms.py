"""Norms of a gradient, by parameter, by layer and in all."""

from collections.abc import Mapping
from math import hypot
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from heddle.model.roles import layer_of


class GradientNorms(NamedTuple):
    """The L2 norm of each parameter's gradient; what clipping needs and what a run reports are the same pass over it.

    Attributes:
        names: the parameters that have a gradient.
        each: Float[P], their gradients' norms.
    """

    names: tuple[str, ...]
    each: Float[Tensor, " P"]

    @classmethod
    def of(cls, parameters: Mapping[str, Tensor]) -> "GradientNorms":
        """The norms of the gradients that these named parameters have, on their device."""
        gradients = {name: each.grad for name, each in parameters.items() if each.grad is not None}
        norms = torch._foreach_norm(list(gradients.values())) if gradients else []
        device = next((each.device for each in parameters.values()), None)
        return cls(tuple(gradients), torch.stack(list(norms)) if norms else torch.zeros(0, device=device))

    def total(self) -> Float[Tensor, ""]:
        """The norm of the whole gradient."""
        total: Tensor = torch.linalg.vector_norm(self.each)
        return total

    def by_layer(self) -> dict[str, float]:
        """The norm of each layer's gradient: `decoder.3`, `embedding`, `head`. Their squares add up to that of the total."""
        layers: dict[str, list[float]] = {}
        for name, norm in zip(self.names, self.each.tolist(), strict=True):
            layers.setdefault(layer_of(name), []).append(norm)
        return {layer: hypot(*norms) for layer, norms in layers.items()}
