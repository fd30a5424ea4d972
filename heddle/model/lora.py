"""Adapters of low rank beside linear layers, for fine-tuning that leaves the layers' weights as they are (Hu et al. 2021).

They are put on the finished model and taken off it again: `adapt` adds two factors to each layer, under the layer's name, and
`merge` adds their product to the layer's weight. In between, no other name changes.
"""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from math import sqrt
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.config.train import LoRAConfig
from heddle.errors import HeddleError
from heddle.model.packing import PackedLinear
from heddle.model.transformer import Transformer
from heddle.nn.custom import without_custom
from heddle.nn.dropout import Dropout
from heddle.nn.experts import Experts

A, B = "lora_a", "lora_b"


class AdaptedLinear(PackedLinear):
    """W x + b + (alpha / rank) · B A dropout(x), with A [rank D] and B [F rank] (Hu et al. 2021, eq. 3)."""

    lora_a: nn.Parameter
    lora_b: nn.Parameter
    adapter_dropout: Dropout
    factor: float

    def forward(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows F"]:
        low = F.linear(self.adapter_dropout(x), self.lora_a)
        return torch.add(self.product(x, self.weight, self.bias), F.linear(low, self.lora_b), alpha=self.factor)


def is_adapter(name: str) -> bool:
    """Whether a parameter is a factor of an adapter."""
    return name.endswith((f".{A}", f".{B}"))


def adapt(model: Transformer, config: LoRAConfig | None, seed: int = 0) -> Transformer:
    """Put an adapter on each linear layer that the patterns name, and return the model; without a config, nothing is done.

    A is uniform within ±1/√D, as a linear layer's weight is in torch, and B is 0, so that the model computes what it did before,
    bit for bit.

    Args:
        seed: of A.

    Raises:
        HeddleError: a pattern matches no linear layer, or a stack of experts.
    """
    if config is None:
        return model
    generator = torch.Generator().manual_seed(seed)
    for found in find_layers(model, config.layers).values():
        layer: Any = found
        outputs, inputs = layer.weight.shape
        layer.__class__ = AdaptedLinear
        layer.lora_a = nn.Parameter(layer.weight.new_empty(config.rank, inputs))
        layer.lora_b = nn.Parameter(layer.weight.new_zeros(outputs, config.rank))
        layer.adapter_dropout = Dropout(config.dropout).train(layer.training)
        layer.factor = config.alpha / config.rank
        if not layer.weight.is_meta:
            drawn = torch.empty(config.rank, inputs).uniform_(-1 / sqrt(inputs), 1 / sqrt(inputs), generator=generator)
            layer.lora_a.data.copy_(drawn)
    return model


@torch.no_grad()
def merge(model: Transformer, weights: Mapping[str, Tensor] | None = None) -> None:
    """Add every adapter to its layer's weight, W + (alpha / rank) · B A, and take it off.

    Args:
        weights: the tensors by name that hold the values to read and to change; None: the model's own.
    """
    held = dict(model.named_parameters()) if weights is None else weights
    for name, layer in adapted(model):
        held[f"{name}.weight"].addmm_(held[f"{name}.{B}"], held[f"{name}.{A}"], alpha=layer.factor)
        del layer.lora_a, layer.lora_b, layer.adapter_dropout, layer.factor
        layer.__class__ = PackedLinear


def adapted(model: nn.Module) -> list[tuple[str, Any]]:
    """The layers that have an adapter, with their names."""
    return [(name, module) for name, module in model.named_modules() if isinstance(module, AdaptedLinear)]


def find_layers(model: Transformer, patterns: tuple[str, ...]) -> dict[str, nn.Linear]:
    """The linear layers of the stacks whose names match any of the patterns.

    A user's own modules have none: whether they call their layers, or only read their weights, is theirs to decide. A head is
    trained in full instead.

    Raises:
        HeddleError: a pattern matches no linear layer, or a stack of experts.
    """
    layers = dict(_linear_layers(model))
    stacks = [name for name, module in model.named_modules() if isinstance(module, Experts)]
    for pattern in patterns:
        where = f"lora: layers = {pattern!r}"
        if stacked := [name for name in stacks if fnmatchcase(name, pattern) or fnmatchcase(f"{name}.up", pattern)]:
            raise HeddleError(
                f"{where} matches {stacked[0]}, a stack of experts, which cannot have adapters: "
                "name the layers beside it, such as *.mixer.*"
            )
        if not any(fnmatchcase(name, pattern) for name in layers):
            near = get_close_matches(pattern, layers, n=3, cutoff=0.0)
            names = f"Near names: {', '.join(near)}" if near else "It has none"
            raise HeddleError(f"{where} matches no linear layer of this model's stacks. {names}")
    return {name: layer for name, layer in layers.items() if any(fnmatchcase(name, each) for each in patterns)}


def _linear_layers(model: Transformer) -> Iterator[tuple[str, nn.Linear]]:
    own = set(without_custom(model))
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and module in own and name.startswith(("encoder.", "decoder.")):
            yield name, module
