"""Weight quantization to int8 or int4 for decoding on a CPU: a step of one row mostly reads weights, so fewer bytes take less time.

Weights are quantized once, when a trained model is loaded: those of linear layers and the language head, but not tables, norms,
biases, experts and convolutions. An int4 model has its head in int8, since the head's rounding affects the probabilities directly.

- int8: a row w becomes q · scale, q from -127 to 127, one scale for each row. On processors with 8-bit integer products,
  the inputs of each product are quantized in the same way, one scale for each token; elsewhere, they are multiplied in bf16.
- int4: groups of 32 neighbours in a row become zero + (q - 8) · scale, q from 0 to 15; the range is the one with the least squared
  error.
"""

from typing import Any, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.config.decoding import WeightKind
from heddle.errors import HeddleError, did_you_mean
from heddle.model.head import LanguageHead, Scores
from heddle.model.packing import PrepackedLinear, unpack
from heddle.model.products import has_onednn
from heddle.model.stack import Stack
from heddle.model.transformer import Transformer
from heddle.nn.custom import without_custom

GROUP = 32  # neighbours with one scale in int4; kernels support 32, 64, 128 and 256, and read this many numbers at once
LEAST = 16  # minimum outputs and inputs of a layer to quantize; a gate with one output saves nothing
ROWS = 16  # above, int8 weights are dequantized first: the kernel takes equally long for each row
SHRINKS = [1 - step / 16 for step in range(6)]  # of the range of a group in int4
LAYERS = (nn.Linear, PrepackedLinear)  # not other subclasses, which may compute something else


class Int8(nn.Module):
    """A matrix in 8 bits: row f is `values[f] · scales[f]` (Dettmers et al. 2022, eq. 5, by rows).

    With few rows of x, torch's kernel for 8-bit weights multiplies them in bf16; with more, ordinary numbers are rounded where
    the kernel rounds, so that the products of a row do not depend on the number of rows, up to the last bit.

    Args:
        weight: Float[F D].
    """

    values: Int[Tensor, "F D"]
    scales: Float[Tensor, " F"]

    def __init__(self, weight: Float[Tensor, "F D"]) -> None:
        super().__init__()
        self.inputs = weight.shape[1]
        wide = F.pad(weight.detach().float(), (0, -self.inputs % GROUP))  # the kernel reads this many numbers at once
        # The kernel needs scales in bf16, so round them before the values, which then compensate for it.
        scales = (wide.abs().amax(1, keepdim=True) / 127).clamp(min=1e-30).to(torch.bfloat16)
        values = (wide / scales.float()).round().clamp(-127, 127).to(torch.int8)
        self.register_buffer("values", values)
        self.register_buffer("scales", scales[:, 0].contiguous())

    def unpacked(self, dtype: torch.dtype) -> Float[Tensor, "F D"]:
        """The matrix as ordinary numbers."""
        return self.values[:, : self.inputs].to(dtype) * self.scales.to(dtype)[:, None]

    def as_multiplied(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        """x as the product rounds it: to bf16, as ordinary numbers."""
        return x.to(torch.bfloat16).to(x.dtype)

    def product(self, x: Float[Tensor, "n D"]) -> Float[Tensor, "n F"]:
        """x weightᵀ, in the dtype of x."""
        if len(x) > ROWS:
            # Products in bf16 would be slow on processors without it; fp32 represents all of these numbers exactly.
            sums = F.linear(self.as_multiplied(x), self.values[:, : self.inputs].to(x.dtype))
            return (sums * self.scales.to(x.dtype)).to(torch.bfloat16).to(x.dtype)
        rows = x.to(torch.bfloat16)  # with rows in fp32, the kernel is ten times slower
        rows = rows if self.inputs == self.values.shape[1] else F.pad(rows, (0, -self.inputs % GROUP))
        out: Tensor = torch.ops.aten._weight_int8pack_mm(rows, self.values, self.scales)
        return out.to(x.dtype)


class IntegerInt8(nn.Module):
    """A matrix in 8 bits with integer products: x is quantized to 8 bits, too, by rows (Dettmers et al. 2022, eq. 5).

    Integer sums are exact, so the products of a row do not depend on the other rows.

    Args:
        weight: Float[F D].
    """

    values: Tensor  # [D F], in oneDNN's layout
    scales: Float[Tensor, " F"]
    zeros: Int[Tensor, " F"]

    def __init__(self, weight: Float[Tensor, "F D"]) -> None:
        super().__init__()
        matrix = weight.detach().float()
        values, scales = _by_rows(matrix)
        self.register_buffer("values", torch.ops.onednn.qlinear_prepack(values.to(torch.int8), None))
        self.register_buffer("scales", scales[:, 0].contiguous())
        self.register_buffer("zeros", torch.zeros(len(matrix), dtype=torch.int32))

    def unpacked(self, dtype: torch.dtype) -> Float[Tensor, "F D"]:
        """The matrix as ordinary numbers."""
        return self.values.to_dense().T.to(dtype) * self.scales.to(dtype)[:, None]

    def as_multiplied(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        """x as the product rounds it: to 8 bits, as ordinary numbers."""
        rows, scales = _by_rows(x.float())
        return (rows * scales).to(x.dtype)

    def product(self, x: Float[Tensor, "n D"]) -> Float[Tensor, "n F"]:
        """x weightᵀ, in the dtype of x."""
        rows, scales = _by_rows(x.float())
        # oneDNN's fast kernel needs unsigned rows: 128 represents 0.
        unsigned, weights = (rows + 128).to(torch.uint8), (self.values, self.scales, self.zeros)
        out: Tensor = torch.ops.onednn.qlinear_pointwise(
            unsigned, 1.0, 128, *weights, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return (out * scales).to(x.dtype)

    def __getstate__(self) -> dict[str, Any]:
        buffers = {**self._buffers, "values": self.values.to_dense()}  # a tensor in oneDNN's layout cannot be copied
        return {**self.__dict__, "_buffers": buffers}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.values = torch.ops.onednn.qlinear_prepack(self.values.T.contiguous(), None)


def _by_rows(x: Float[Tensor, "*rows D"]) -> tuple[Float[Tensor, "*rows D"], Float[Tensor, "*rows 1"]]:
    """Each row quantized to -127 … 127, and its scale."""
    scales = (x.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-30)
    return (x / scales).round(), scales


def multiplies_integers() -> bool:
    """Whether oneDNN's sums of 8-bit products are exact and fast here: on processors with AVX-512 VNNI or better.

    On others, sums of two products may exceed 16 bits.
    """
    if not has_onednn():
        return False
    probe = IntegerInt8(torch.ones(64, 64))
    exact = bool((probe.product(torch.ones(2, 64)) - 64).abs().max() < 1e-3)
    return exact and torch.backends.cpu.get_cpu_capability().startswith("AVX512")


class Int4(nn.Module):
    """A matrix in 4 bits: groups of 32 numbers, each with a scale and a zero.

    Args:
        weight: Float[F D], where D is a multiple of 32.
    """

    values: Tensor  # two numbers in a byte, in the kernel's order
    scales: Float[Tensor, "g F 2"]

    def __init__(self, weight: Float[Tensor, "F D"]) -> None:
        super().__init__()
        self.outputs = len(weight)
        wide = F.pad(weight.detach().float(), (0, 0, 0, -len(weight) % 16))  # the kernel needs a multiple of 16 rows
        groups = wide.unflatten(1, (-1, GROUP))
        values, scales, zeros = _nearest(groups)
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(values.flatten(1), 1)
        scales_and_zeros = torch.stack((scales, zeros), -1)[:, :, 0].transpose(0, 1).contiguous()
        self.register_buffer("values", packed)
        self.register_buffer("scales", scales_and_zeros)

    def product(self, x: Float[Tensor, "n D"]) -> Float[Tensor, "n F"]:
        """x weightᵀ, in the dtype of x."""
        rows = x.to(torch.bfloat16)
        out: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(rows, self.values, GROUP, self.scales)
        return out[:, : self.outputs].to(x.dtype)


def _nearest(groups: Float[Tensor, "F g n"]) -> tuple[Tensor, Tensor, Tensor]:
    """Each group in 4 bits: values 0 … 15, scales and zeros [F g 1] in bf16, with the least squared error among `SHRINKS`."""
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    best: list[Tensor] = []
    for shrink in SHRINKS:
        scales = ((high - low) * (shrink / 15)).clamp(min=1e-30).to(torch.bfloat16)
        zeros = ((low + high) / 2 + scales.float() / 2).to(torch.bfloat16)  # the range 0 … 15 lies around 7.5
        values = ((groups - zeros.float()) / scales.float() + 8).round().clamp(0, 15)
        error = (zeros.float() + (values - 8) * scales.float() - groups).square().sum(-1, keepdim=True)
        candidate = [values, scales, zeros, error]
        better = error < best[3] if best else torch.ones_like(error, dtype=torch.bool)
        best = [torch.where(better, new, old) for new, old in zip(candidate, best or candidate, strict=True)]
    return best[0].to(torch.int32), best[1], best[2]


Matrix = Int8 | IntegerInt8 | Int4


class QuantizedLinear(nn.Module):
    """A linear layer with weights in 8 or 4 bits.

    Args:
        weights: the matrix [F D].
        bias: Float[F], or None.
    """

    def __init__(self, weights: Matrix, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.weights, self.bias = weights, bias

    def forward(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows F"]:
        out = product(x, self.weights)
        return out if self.bias is None else out + self.bias


class QuantizedHead(LanguageHead):
    """A language head with a table in 8 bits. A tied token table does not change."""

    weights: Int8 | IntegerInt8

    def forward(self, hidden: Float[Tensor, "*rows D"], layout: Any, table: Tensor) -> Float[Tensor, "*rows V"]:
        features = super().features(hidden)
        bias = None if self.bias is None else self.bias.to(features.dtype)
        out = product(features, self.weights)
        return Scores(table, self.vocab_size, None, self.cap).finish(out if bias is None else out + bias)

    def features(self, hidden: Float[Tensor, "*rows D"], layout: Any = None) -> Float[Tensor, "*rows D"]:
        """The features as the product rounds them, so that a loss matches generation."""
        return self.weights.as_multiplied(super().features(hidden, layout))

    def scoring(self, table: Float[Tensor, "V E"]) -> Scores:
        """Scores by the quantized table."""
        return Scores(self.weights.unpacked(table.dtype), self.vocab_size, self.bias, self.cap)


def product(x: Float[Tensor, "*rows D"], weights: Matrix) -> Float[Tensor, "*rows F"]:
    """x weightᵀ."""
    return weights.product(x.reshape(-1, x.shape[-1]).contiguous()).view(*x.shape[:-1], -1)


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
    unpack(model)  # prepacked weights are copies of the originals
    quantized = 0
    int8: type[Int8 | IntegerInt8] = IntegerInt8 if multiplies_integers() else Int8
    head: Any = model.head

    def matrix(weight: Tensor) -> Matrix:
        return Int4(weight) if kind == "int4" and weight.shape[1] % GROUP == 0 else int8(weight)

    own_modules = set(without_custom(model))
    parts = [part for part in (model.encoder, model.decoder, head) if isinstance(part, Stack | LanguageHead)]
    for parent in [module for part in parts for module in part.modules() if module in own_modules]:
        for name, child in list(parent.named_children()):
            if type(child) in LAYERS and isinstance(child, nn.Linear) and min(child.weight.shape) >= LEAST:
                setattr(parent, name, QuantizedLinear(matrix(child.weight), child.bias).train(child.training))
                quantized += 1
    if not quantized:
        raise HeddleError(f"weights = {kind!r}: this model has no linear layers to quantize")
    if isinstance(head, LanguageHead):
        weights = int8(model.head_weight()).train(head.training)
        head.__class__, head.weights, head.weight = QuantizedHead, weights, None
    return model


def weight_bytes(model: nn.Module) -> int:
    """Bytes of a model's weights, quantized or not."""
    return sum(tensor.numel() * tensor.element_size() for tensor in (*model.parameters(), *model.buffers()))
