"""Weight quantization to int8 or int4 for decoding on a CPU: a step of one row mostly reads weights, so fewer bytes take less time.

Weights are quantized once, when a trained model is loaded: those of linear layers and the language head, but not tables, norms,
biases, experts and convolutions. An int4 model has its head in int8, since the head's rounding affects the probabilities directly.

Groups of 32 neighbours in a row have one scale, in bf16. A group becomes scale · q: in int8, q is from -127 to 127; in int4, from
-8 to 7, and the scale is the one with the least squared error. The inputs of a product are rounded to int8 in the same groups, so
that a group's products are summed as integers (`heddle.native.products`).
"""

from typing import Any, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.config.decoding import WeightKind
from heddle.errors import HeddleError, did_you_mean
from heddle.model.head import LanguageHead, Scores
from heddle.model.linear import ChoosingLinear
from heddle.model.stack import Stack
from heddle.model.transformer import Transformer
from heddle.native.library import library
from heddle.native.products import GROUP, product, rounded_inputs
from heddle.nn.custom import without_custom

LEAST = 16  # minimum outputs and inputs of a layer to quantize; a gate with one output saves nothing
ENDS = (
    5.5,
    6.0,
    6.5,
    7.0,
    7.5,
    8.0,
    8.5,
)  # in int4, the number that is the largest in its group becomes minus one of these
LAYERS = (nn.Linear, ChoosingLinear)  # not other subclasses, which may compute something else


class Rounded(nn.Module):
    """A matrix in groups: group g of row f is `scales[f, g] · values` (Dettmers et al. 2022, eq. 5, by groups).

    Integer sums are exact, so the products of a row do not depend on the other rows, unless there are `MANY`.

    Args:
        weight: Float[F D].
    """

    values: Tensor
    scales: Float[Tensor, "F g"]

    def __init__(self, weight: Float[Tensor, "F D"]) -> None:
        super().__init__()
        self.inputs = weight.shape[1]
        self.native = library() is not None  # once: a compiler cannot trace it
        groups = F.pad(weight.detach().float(), (0, -self.inputs % GROUP)).unflatten(1, (-1, GROUP))
        integers, scales = self.nearest(groups)
        self.register_buffer("values", self.packed(integers).contiguous())
        self.register_buffer("scales", scales[..., 0].contiguous())

    def nearest(self, groups: Float[Tensor, "F g n"]) -> tuple[Tensor, Tensor]:
        """The integers and scales [F g 1] of groups."""
        raise NotImplementedError

    def packed(self, integers: Int[Tensor, "F g n"]) -> Tensor:
        """The integers as they are stored."""
        raise NotImplementedError

    def integers(self) -> Int[Tensor, "F g n"]:
        """The stored integers."""
        raise NotImplementedError

    def unpacked(self, dtype: torch.dtype) -> Float[Tensor, "F D"]:
        """The matrix as ordinary numbers."""
        groups = self.integers().to(dtype) * self.scales.to(dtype)[..., None]
        return groups.flatten(1)[:, : self.inputs]

    def product(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows F"]:
        """x weightᵀ, in the dtype of x."""
        if self.native:
            return product(x, self.values, self.scales)
        return F.linear(rounded_inputs(x).float(), self.unpacked(torch.float32)).to(x.dtype)


class Int8(Rounded):
    """A matrix in 8 bits: Int8[F w], where w is D rounded up to whole groups."""

    def nearest(self, groups: Float[Tensor, "F g n"]) -> tuple[Tensor, Tensor]:
        # The scales are rounded before the values, which then compensate for it.
        scales = (groups.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-30).to(torch.bfloat16)
        return (groups / scales.float()).round().clamp(-127, 127).to(torch.int8), scales

    def packed(self, integers: Int[Tensor, "F g n"]) -> Tensor:
        return integers.flatten(1)

    def integers(self) -> Int[Tensor, "F g n"]:
        return self.values.unflatten(1, (-1, GROUP))


class Int4(Rounded):
    """A matrix in 4 bits: UInt8[F w/2], the first group of each pair in the lower halves of its bytes, each number plus 8."""

    def nearest(self, groups: Float[Tensor, "F g n"]) -> tuple[Tensor, Tensor]:
        # Of -8 ... 7, the side with one number more is for the larger side of the group.
        largest = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))
        best: list[Tensor] = []
        for end in ENDS:
            values = (groups / _away_from_zero(largest / -end).float()).round().clamp(-8, 7)
            # The least squares for these values, then the values for that.
            squares = values.square().sum(-1, keepdim=True).clamp(min=1)
            scales = _away_from_zero((values * groups).sum(-1, keepdim=True) / squares)
            values = (groups / scales.float()).round().clamp(-8, 7)
            error = (values * scales.float() - groups).square().sum(-1, keepdim=True)
            better = error < best[2] if best else torch.ones_like(error, dtype=torch.bool)
            candidate = [values, scales, error]
            best = [torch.where(better, new, old) for new, old in zip(candidate, best or candidate, strict=True)]
        return best[0].to(torch.int8), best[1]

    def packed(self, integers: Int[Tensor, "F g n"]) -> Tensor:
        bytes = (integers + 8).to(torch.uint8)
        pairs = F.pad(bytes, (0, 0, 0, bytes.shape[1] % 2)).unflatten(1, (-1, 2))
        return (pairs[:, :, 0] | pairs[:, :, 1] << 4).flatten(1)

    def integers(self) -> Int[Tensor, "F g n"]:
        pairs = self.values.unflatten(1, (-1, GROUP))
        bytes = torch.stack((pairs & 15, pairs >> 4), 2).flatten(1, 2)
        return bytes[:, : self.scales.shape[1]].to(torch.int8) - 8


def _away_from_zero(scales: Tensor) -> Tensor:
    """Scales in bf16, which may be negative but not 0."""
    tiny = torch.full_like(scales, 1e-30)
    return torch.where(scales.abs() < tiny, tiny, scales).to(torch.bfloat16)


class QuantizedLinear(nn.Module):
    """A linear layer with weights in 8 or 4 bits.

    Args:
        weights: the matrix [F D].
        bias: Float[F], or None.
    """

    def __init__(self, weights: Rounded, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.weights, self.bias = weights, bias

    def forward(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows F"]:
        out = self.weights.product(x)
        return out if self.bias is None else out + self.bias


class QuantizedHead(LanguageHead):
    """A language head with a table in 8 bits. A tied token table does not change."""

    weights: Int8

    def forward(self, hidden: Float[Tensor, "*rows D"], layout: Any, table: Tensor) -> Float[Tensor, "*rows V"]:
        features = super().features(hidden)
        bias = None if self.bias is None else self.bias.to(features.dtype)
        out = self.weights.product(features)
        return Scores(table, self.vocab_size, None, self.cap).finish(out if bias is None else out + bias)

    def features(self, hidden: Float[Tensor, "*rows D"], layout: Any = None) -> Float[Tensor, "*rows D"]:
        """The features as the product rounds them, so that a loss matches generation."""
        return rounded_inputs(super().features(hidden, layout))

    def scoring(self, table: Float[Tensor, "V E"]) -> Scores:
        """Scores by the quantized table."""
        return Scores(self.weights.unpacked(table.dtype), self.vocab_size, self.bias, self.cap)


@torch.no_grad()
def quantize(model: Transformer, kind: str) -> Transformer:
    """Quantize the weights of a trained model, in place, and return it. It can no longer be trained or saved.

    Args:
        model: on a CPU, in its precision for inference.
        kind: `int8`, `int4`, or `trained` for no change.

    Raises:
        HeddleError: the kind is unknown, the model is on another device, or has no linear layer.
    """
    if kind not in get_args(WeightKind):
        suggestion = did_you_mean(kind, get_args(WeightKind))
        raise HeddleError(f"weights = {kind!r} is not one of {', '.join(get_args(WeightKind))}.{suggestion}")
    if kind == "trained":
        return model
    if model.device.type != "cpu":
        raise HeddleError(f"weights = {kind!r} needs a model on a CPU, not on {model.device.type}: set device = cpu")
    if not round_weights(model, kind):
        raise HeddleError(f"weights = {kind!r}: this model has no linear layers to quantize")
    return model


@torch.no_grad()
def round_weights(model: Transformer, kind: str) -> int:
    """Quantize the weights of a model on any device, of which the meta device has shapes only; returns the number of layers."""
    quantized = 0
    head: Any = model.head
    matrix = Int4 if kind == "int4" else Int8
    own_modules = set(without_custom(model))
    parts = [part for part in (model.encoder, model.decoder, head) if isinstance(part, Stack | LanguageHead)]
    for parent in [module for part in parts for module in part.modules() if module in own_modules]:
        for name, child in list(parent.named_children()):
            if type(child) in LAYERS and isinstance(child, nn.Linear) and min(child.weight.shape) >= LEAST:
                setattr(parent, name, QuantizedLinear(matrix(child.weight), child.bias).train(child.training))
                quantized += 1
    if quantized and isinstance(head, LanguageHead):
        weights = Int8(model.head_weight()).train(head.training)
        head.__class__, head.weights, head.weight = QuantizedHead, weights, None
    return quantized


def weights_of(model: nn.Module) -> str:
    """The kind of a model's weights, as `quantize` takes it."""
    kinds = {type(module) for module in model.modules()}
    return "int4" if Int4 in kinds else "int8" if Int8 in kinds else "trained"


def weight_bytes(model: nn.Module) -> int:
    """Bytes of a model's weights, quantized or not."""
    return sum(tensor.numel() * tensor.element_size() for tensor in (*model.parameters(), *model.buffers()))
