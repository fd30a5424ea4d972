"""Products of few rows, as decoding needs them: each weight is read once, at the rate of the memory.

torch multiplies one row on one thread, or needs a second copy of the weights in another layout. The library reads them as they lie
in memory, in fp32, in bf16, or rounded to groups of 8 or 4 bits. See `rows.cpp` for the kinds of weights.
"""

import ctypes
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from heddle.native.library import library
from heddle.native.measured import measured_once

GROUP = 32  # neighbours in a row of weights in 8 or 4 bits, and in a row of inputs, that share a scale
KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2, torch.uint8: 3}  # of weights, by their dtype
NUMBERS = (torch.float32, torch.bfloat16)
MANY = 192  # rows from which unpacking weights may pay
PIECE = 1 << 22  # numbers that are unpacked at a time
SIZE, ROUNDS = 1024, 5  # of the products that are timed: width and outputs, and how often


def product(
    x: Float[Tensor, "*rows D"], weight: Tensor, scales: Tensor | None = None, bias: Float[Tensor, " F"] | None = None
) -> Float[Tensor, "*rows F"]:
    """x weightᵀ + bias on a CPU, in the dtype of x. It has no gradient.

    Args:
        x: in fp32 or bf16.
        weight: Float[F D] in fp32 or bf16; or Int8[F w] in groups of 8 bits, or UInt8[F w/2] of 4 bits, where w is D rounded up to
            whole groups, for 4 bits to pairs of groups.
        scales: of the groups, BFloat16[F g].
        bias: in fp32 or bf16.
    """
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    multiply: Callable[..., Tensor] = _multiply
    if torch.compiler.is_compiling():
        multiply = _few_rows
    elif scales is not None and len(rows) >= MANY and unpacks(weight.dtype):
        multiply = _unpacked
    out: Tensor = multiply(rows, weight, scales, bias).view(*x.shape[:-1], len(weight))
    return out


def unpacks(dtype: torch.dtype) -> bool:
    """Whether many rows are multiplied faster with unpacked weights by torch, measured once for this processor."""
    measured: bool = measured_once("unpacked-weights", {"dtype": str(dtype)}, partial(_measure, dtype))
    return measured


def _measure(dtype: torch.dtype) -> bool:
    width = SIZE if dtype == torch.int8 else SIZE // 2
    x, weight = torch.randn(2 * MANY, SIZE), torch.randint(0, 100, (SIZE, width)).to(dtype)
    scales = torch.rand(SIZE, SIZE // GROUP).to(torch.bfloat16)
    seconds: dict[Callable[..., Tensor], list[float]] = {_multiply: [], _unpacked: []}
    for _ in range(ROUNDS):
        for multiply, times in seconds.items():
            begin = time.perf_counter()
            multiply(x, weight, scales, None)
            times.append(time.perf_counter() - begin)
    return median(seconds[_unpacked]) < median(seconds[_multiply])


def rounded_inputs(x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
    """x as a product with weights in groups rounds it: each group to scale · q, q from -127 to 127."""
    width = x.shape[-1]
    groups: Tensor = F.pad(x.float(), (0, -width % GROUP)).unflatten(-1, (-1, GROUP))
    scales = (groups.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-30)
    rounded: Tensor = (groups / scales).round() * scales
    return rounded.flatten(-2)[..., :width].to(x.dtype)


def _multiply(x: Tensor, weight: Tensor, scales: Tensor | None, bias: Tensor | None) -> Tensor:
    native = library()
    assert native is not None
    out = x.new_empty(len(x), len(weight))
    narrow, narrow_bias = x.dtype == torch.bfloat16, bias is not None and bias.dtype == torch.bfloat16
    tensors = (_address(tensor) for tensor in (x, weight, scales, bias, out))
    sizes = (ctypes.c_int64(size) for size in (len(x), len(weight), x.shape[1]))
    # Not OpenMP's number, which each thread has for itself.
    threads = torch.get_num_threads()
    native.heddle_product(KINDS[weight.dtype], narrow, narrow_bias, *tensors, *sizes, threads)
    return out


def _unpacked(x: Tensor, weight: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
    """The same product by torch: of the rounded rows with the weights as ordinary numbers, a piece of these at a time."""
    native, threads, width = library(), torch.get_num_threads(), x.shape[1]
    assert native is not None
    rows, out = x.new_empty(x.shape, dtype=torch.float32), x.new_empty(len(x), len(weight))
    row, inputs = ctypes.c_int64(width), ctypes.c_int64(len(x))
    native.heddle_round(x.dtype == torch.bfloat16, _address(x), _address(rows), inputs, row, threads)
    step = max(1, PIECE // width)
    piece = x.new_empty(min(step, len(weight)), width, dtype=torch.float32)
    for start in range(0, len(weight), step):
        part, of_part = weight[start : start + step], scales[start : start + step]
        count, kind = ctypes.c_int64(len(part)), KINDS[weight.dtype]
        native.heddle_unpack(kind, _address(part), _address(of_part), _address(piece), count, row, threads)
        added = None if bias is None else bias[start : start + step].float()
        out[:, start : start + step] = F.linear(rows, piece[: len(part)], added)
    return out


def _address(tensor: Tensor | None) -> ctypes.c_void_p | None:
    return None if tensor is None else ctypes.c_void_p(tensor.data_ptr())


# Registered as a torch operator, so that a compiled step calls the library.
_few_rows = torch.library.custom_op(
    "heddle::few_rows",
    _multiply,
    mutates_args=(),
    schema="(Tensor x, Tensor weight, Tensor? scales, Tensor? bias) -> Tensor",
)


@_few_rows.register_fake
def _(x: Tensor, weight: Tensor, scales: Tensor | None, bias: Tensor | None) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])  # a length would fix the number of rows
