"""LoRA: low-rank adapters on linear layers whose weights stay frozen (Hu et al. 2021).

`adapt` adds two factors to each layer of a finished model, under the layer's name; `merge` adds their product to the layer's
weight and removes them. No other names change.
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
from heddle.model.linear import ChoosingLinear
from heddle.model.transformer import Transformer
from heddle.nn.custom import without_custom
from heddle.nn.dropout import Dropout
from heddle.nn.experts import Experts

A, B = "lora_a", "lora_b"


class AdaptedLinear(ChoosingLinear):
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
    """Add an adapter to each linear layer that the patterns match, and return the model; without a config, do nothing.

    A is uniform within ±1/√D, like a linear layer's weight in torch, and B is 0, so that the model's outputs stay the same, bit for
    bit.

    Args:
        seed: of A.

    Raises:
        HeddleError: a pattern matches no linear layer, or a stack of experts.
    """
    if config is None:
        return model
    for linear in find_layers(model, config.layers).values():
        layer: Any = linear
        outputs, inputs = layer.weight.shape
        layer.__class__ = AdaptedLinear
        layer.lora_a = nn.Parameter(layer.weight.new_empty(config.rank, inputs))
        layer.lora_b = nn.Parameter(layer.weight.new_empty(outputs, config.rank))
        layer.adapter_dropout = Dropout(config.dropout).train(layer.training)
        layer.factor = config.alpha / config.rank
    if model.device.type != "meta":
        parameters = dict(model.named_parameters())
        for name, values in initial_factors({name: tuple(each.shape) for name, each in parameters.items()}, seed):
            parameters[name].data.copy_(values)
    return model


def initial_factors(shapes: Mapping[str, tuple[int, ...]], seed: int) -> Iterator[tuple[str, Tensor]]:
    """The values that `adapt` gives the adapters among parameters of these shapes, one after another."""
    generator = torch.Generator().manual_seed(seed)
    for name, shape in shapes.items():
        if name.endswith(f".{A}"):
            bound = 1 / sqrt(shape[1])
            yield name, torch.empty(shape).uniform_(-bound, bound, generator=generator)
        elif name.endswith(f".{B}"):
            yield name, torch.zeros(()).expand(shape)


@torch.no_grad()
def merge(model: Transformer, weights: Mapping[str, Tensor] | None = None) -> None:
    """Add every adapter to its layer's weight, W + (alpha / rank) · B A, and remove it.

    Args:
        weights: tensors by name to read and to change; None: the model's parameters.
    """
    tensors = dict(model.named_parameters()) if weights is None else weights
    for name, layer in adapted(model):
        tensors[f"{name}.weight"].addmm_(tensors[f"{name}.{B}"], tensors[f"{name}.{A}"], alpha=layer.factor)
        del layer.lora_a, layer.lora_b, layer.adapter_dropout, layer.factor
        layer.__class__ = ChoosingLinear


def adapted(model: nn.Module) -> list[tuple[str, Any]]:
    """The layers that have an adapter, with their names."""
    return [(name, module) for name, module in model.named_modules() if isinstance(module, AdaptedLinear)]


def find_layers(model: Transformer, patterns: tuple[str, ...]) -> dict[str, nn.Linear]:
    """The linear layers of the stacks whose names match any of the patterns.

    Layers inside a user's modules are excluded, since these may read a layer's weights instead of calling it. A head is trained in
    full instead.

    Raises:
        HeddleError: a pattern matches no linear layer, or a stack of experts.
    """
    layers = dict(_linear_layers(model))
    stacks = [name for name, module in model.named_modules() if isinstance(module, Experts)]
    for pattern in patterns:
        setting = f"lora: layers = {pattern!r}"
        if stacked := [name for name in stacks if fnmatchcase(name, pattern) or fnmatchcase(f"{name}.up", pattern)]:
            raise HeddleError(
                f"{setting} matches {stacked[0]}, a stack of experts, which cannot have adapters: "
                "match other layers, such as *.mixer.*"
            )
        if not any(fnmatchcase(name, pattern) for name in layers):
            similar = get_close_matches(pattern, layers, n=3, cutoff=0.0)
            names = f"Similar names: {', '.join(similar)}" if similar else "There are none"
            raise HeddleError(f"{setting} matches no linear layer of this model's stacks. {names}")
    return {name: layer for name, layer in layers.items() if any(fnmatchcase(name, pattern) for pattern in patterns)}


def _linear_layers(model: Transformer) -> Iterator[tuple[str, nn.Linear]]:
    adaptable = set(without_custom(model))
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and module in adaptable and name.startswith(("encoder.", "decoder.")):
            yield name, module
