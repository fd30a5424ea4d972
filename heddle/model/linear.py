"""Linear layers and language heads that choose by whom their products are computed.

- In training, by torch or, for some kinds of products in fp32, by oneDNN (`heddle.model.products`).
- In decoding on a CPU, by this processor's own products of few rows (`heddle.native.products`): torch multiplies one row on one
  thread, and eight rows at a third of the memory's rate.

Parameters, their names and checkpoints are those of the ordinary modules.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from heddle.config.train import ProductKind
from heddle.model.head import LanguageHead
from heddle.model.products import faster_kinds, linear, worth_measuring
from heddle.model.transformer import Transformer
from heddle.native.library import library, most_rows
from heddle.native.measured import measured_once
from heddle.native.products import NUMBERS, product
from heddle.nn.custom import without_custom


class Choosing:
    """Mixin for a module with a product: x weightᵀ + bias, computed in training or in decoding by other libraries.

    `train()` ends the products of decoding.

    Attributes:
        few_rows: whether passes without gradients use this processor's own products of few rows.
        by_onednn: the products that oneDNN computes (see `heddle.model.products`).
    """

    few_rows: bool = False
    by_onednn: tuple[ProductKind, ...] = ()

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x weightᵀ + bias."""
        if self.few_rows and _takes(x, weight, bias):
            return product(x, weight, bias=bias)
        return linear(x, weight, bias, self.by_onednn)

    def train(self, mode: bool = True) -> Any:
        """Set the mode, and use the products of training in training mode."""
        if mode:
            self.few_rows = False
        return super().train(mode)  # type: ignore[misc]


class ChoosingLinear(Choosing, nn.Linear):
    """A linear layer that chooses its library."""

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x, self.weight, self.bias)


class ChoosingHead(Choosing, LanguageHead):
    """A language head that chooses its library, with its own table or the token table."""


KINDS: dict[type[nn.Module], type[nn.Module]] = {nn.Linear: ChoosingLinear, LanguageHead: ChoosingHead}


def _takes(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether this product is one of few rows, without a gradient, of ordinary numbers on a CPU."""
    if torch.is_grad_enabled() or x.dtype != weight.dtype or x.dtype not in NUMBERS or x.device.type != "cpu":
        return False
    if torch.is_autocast_enabled("cpu") or not weight.is_contiguous() or not (bias is None or bias.dtype in NUMBERS):
        return False
    if torch.compiler.is_compiling():
        # A part of a decoding step, which chooses as it runs. Other compilers have products of their own.
        return torch.compiler.is_exporting()
    tensors = (x, weight) if bias is None else (x, weight, bias)
    if not all(type(tensor) in (Tensor, nn.Parameter) for tensor in tensors):
        return False
    return x.numel() <= most_rows(x.dtype) * x.shape[-1]


def use_few_rows(model: Transformer) -> Transformer:
    """Use this processor's own products of few rows in passes without gradients, until `model.train()`, and return the model.

    Nothing changes in training mode, on an accelerator, or on a machine without a C++ compiler.
    """
    if not model.training and model.device.type in ("cpu", "meta") and library() is not None:
        for module, _ in _multiplying(model):
            module.__class__ = KINDS.get(type(module), type(module))
            module.few_rows = True  # type: ignore[assignment]
    return model


def faster_products(model: Transformer, tokens: int) -> tuple[ProductKind, ...]:
    """The products of training that oneDNN computes faster on this CPU in fp32, measured once for this machine and cached.

    Args:
        model: only its shapes matter; it may be on the meta device.
        tokens: tokens in a pass.
    """
    products = [(module, (weight.shape[0], weight.shape[1])) for module, weight in _multiplying(model)]
    matrices = [shape for module, shape in products if isinstance(module, nn.Linear)]
    shapes = [shape for _, shape in products]
    if not worth_measuring(shapes, tokens):
        return ()
    about = {"shapes": sorted(shapes), "updated": sorted(matrices), "tokens": tokens}
    kinds = measured_once("products", about, lambda: list(faster_kinds(shapes, tokens, matrices)), steady=True)
    return tuple(kinds)


def use_products(model: Transformer, by_onednn: tuple[ProductKind, ...]) -> None:
    """Use oneDNN for these products in every linear layer and the language head, in training and inference."""
    for module, _ in _multiplying(model):
        module.__class__ = KINDS.get(type(module), type(module))
        module.by_onednn = by_onednn  # type: ignore[assignment]


def _multiplying(model: Transformer) -> Iterator[tuple[nn.Module, Tensor]]:
    """Every linear layer and the language head, each with the weight it multiplies by."""
    for module in without_custom(model):
        # Not other subclasses, which may compute something else.
        if type(module) in KINDS or isinstance(module, Choosing):
            yield module, module.weight if isinstance(module, nn.Linear) else model.head_weight()
