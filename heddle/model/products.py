"""The library for fp32 products in training on a CPU: torch's default, or oneDNN where it was measured to be faster.

On x86, torch uses MKL for fp32 products, which on some processors leaves half of the vector width unused; oneDNN, which torch ships
for bf16, does not. A linear layer needs three products per step and Muon some more; either library may be faster for each kind:

    forward   y = x wᵀ + b      [N F] from [N D] and [F D]
    inputs    dx = dy w         [N D]
    weights   dw = dyᵀ x        [F D]
    update    x xᵀ, (x xᵀ) x    of matrices that Muon orthogonalises

Both round to fp32, but sum in different orders, so a run is reproducible bit for bit only with the same choice, which is made once
and stored in the run's config.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, get_args

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from heddle.config.train import ProductKind
from heddle.native.measured import one_thread

Shape = tuple[int, int]

PRODUCT_KINDS: tuple[ProductKind, ...] = get_args(ProductKind)

GAIN = 1.03  # minimum speedup for choosing oneDNN; less is noise
LEAST_WORK = 1e9  # FLOPs of a step's forward products; below this, no measurable gain
ROWS, LARGEST, UPDATED = 1024, 1 << 20, 4  # limits of the timed products: rows, elements of a weight, and matrices
TIMED, SECONDS = 7, 0.15  # products to time, and seconds after which fewer suffice


def has_onednn() -> bool:
    """Whether this build of torch has oneDNN's linear product."""
    enabled = torch.backends.mkldnn.is_available() and torch._C._get_mkldnn_enabled()
    return enabled and all(hasattr(torch.ops.mkldnn, name) for name in ("_linear_pointwise", "_reorder_linear_weight"))


def onednn(x: Tensor, weight: Tensor | None, bias: Tensor | None = None) -> Tensor:
    """x weightᵀ + bias by oneDNN; the weight may be in oneDNN's layout, and either may be transposed."""
    out: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, "none", [], "")
    return out


def product(x: Tensor, weight: Tensor, bias: Tensor | None, by_onednn: Sequence[ProductKind]) -> Tensor:
    """x weightᵀ + bias."""
    return onednn(x, weight, bias) if "forward" in by_onednn else F.linear(x, weight, bias)


def of_inputs(gradient: Tensor, weight: Tensor, by_onednn: Sequence[ProductKind]) -> Tensor:
    """The gradient of x [N D] from that of the output [N F]."""
    return onednn(gradient, weight.T) if "inputs" in by_onednn else gradient @ weight


def of_weights(gradient: Tensor, x: Tensor, by_onednn: Sequence[ProductKind]) -> Tensor:
    """The gradient of the weight [F D] from that of the output [N F]."""
    if "weights" not in by_onednn:
        return gradient.T @ x
    # oneDNN copies its first operand into rows, so put the narrower one first.
    return onednn(gradient.T, x.T) if gradient.shape[1] <= x.shape[1] else onednn(x.T, gradient.T).T


def batched(
    a: Tensor,
    b: Tensor,
    by_onednn: Sequence[ProductKind],
    base: Tensor | None = None,
    beta: float = 1.0,
    alpha: float = 1.0,
) -> Tensor:
    """alpha a bᵀ + beta base for each pair, [N m n] from [N m k] and [N n k]."""
    if "update" in by_onednn and is_eager_fp32(a, b):
        out = torch.stack([onednn(x, y) for x, y in zip(a, b, strict=True)])
        out = out if alpha == 1.0 else out.mul_(alpha)
        return out if base is None else out.add_(base, alpha=beta)
    return torch.bmm(a, b.mT) if base is None else torch.baddbmm(base, a, b.mT, beta=beta, alpha=alpha)


class _Linear(torch.autograd.Function):
    """F.linear, with the products in `by_onednn` computed by oneDNN and the others by torch."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, by_onednn: Sequence[ProductKind]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.by_onednn = by_onednn
        return product(x, weight, bias, by_onednn)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        rows = gradient.reshape(-1, weight.shape[0])
        x_gradient = of_inputs(rows, weight, ctx.by_onednn).view_as(x) if needs_x else None
        weight_gradient = of_weights(rows, x.reshape(-1, weight.shape[1]), ctx.by_onednn) if needs_weight else None
        return x_gradient, weight_gradient, rows.sum(0) if needs_bias else None, None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, by_onednn: Sequence[ProductKind]) -> Tensor:
    """F.linear, with the products in `by_onednn` computed by oneDNN; tensors that oneDNN does not take go to torch."""
    if not by_onednn or not is_eager_fp32(x, weight):
        return F.linear(x, weight, bias)
    out: Tensor = _Linear.apply(x, weight, bias, by_onednn)  # type: ignore[no-untyped-call]
    return out


def is_eager_fp32(*tensors: Tensor) -> bool:
    """Whether these are ordinary fp32 tensors on a CPU, outside compilation and autocast."""
    ordinary = all(type(t) in _ORDINARY and t.dtype == torch.float32 and t.device.type == "cpu" for t in tensors)
    return ordinary and not torch.compiler.is_compiling() and not torch.is_autocast_enabled("cpu")


_ORDINARY = (Tensor, torch.nn.Parameter)


def worth_measuring(layers: Sequence[Shape], rows: int) -> bool:
    """Whether oneDNN is available, and the products are large enough to measure a difference."""
    return has_onednn() and 2 * rows * sum(map(prod, layers)) >= LEAST_WORK


def faster_kinds(layers: Sequence[Shape], rows: int, updated: Sequence[Shape] = ()) -> tuple[ProductKind, ...]:
    """The kinds of products that oneDNN computes faster on this machine.

    For each shape [F D], both libraries are timed alternately by the processor time of one thread, which other programs do not
    affect, and the fastest time of each counts. The sums over all layers are compared, so each kind has one choice per model.

    Args:
        layers: shapes of the weights of linear layers.
        rows: N, tokens in a pass.
        updated: shapes of the matrices that Muon updates.
    """
    if not worth_measuring(layers, rows):
        return ()
    chosen = []
    with torch.inference_mode(), one_thread():
        for kind in PRODUCT_KINDS:
            of_torch = of_onednn = 0.0
            for shape, count in Counter(updated if kind == "update" else layers).items():
                call, share = _product(kind, shape, min(rows, ROWS))
                seconds = _times(call)
                of_torch += seconds[0] * count / share
                of_onednn += seconds[1] * count / share
            if of_onednn * GAIN < of_torch:
                chosen.append(kind)
    return tuple(chosen)


def _product(kind: ProductKind, shape: Shape, rows: int) -> tuple[Callable[[Sequence[ProductKind]], Tensor], float]:
    """A product to time, and its size as a multiple or a share of the full-size products."""
    if kind == "update":
        short, long = sorted(shape)
        x = torch.ones(min(UPDATED, max(1, LARGEST // (short * long))), short, long)
        return lambda by_onednn: batched(batched(x, x, by_onednn), x.mT, by_onednn), float(len(x))
    outputs, dim = min(shape[0], max(1, LARGEST // shape[1])), shape[1]
    x, gradient, weight = torch.ones(rows, dim), torch.ones(rows, outputs), torch.ones(outputs, dim)
    calls: dict[ProductKind, Callable[[Sequence[ProductKind]], Tensor]] = {
        "forward": lambda by_onednn: product(x, weight, None, by_onednn),
        "inputs": lambda by_onednn: of_inputs(gradient, weight, by_onednn),
        "weights": lambda by_onednn: of_weights(gradient, x, by_onednn),
    }
    return calls[kind], outputs / shape[0]


def _times(call: Callable[[Sequence[ProductKind]], Tensor]) -> tuple[float, float]:
    """Seconds of the product with torch and with oneDNN."""
    for by_onednn in ((), PRODUCT_KINDS):
        call(by_onednn)  # warm up: the first call allocates what later ones reuse
    times: tuple[list[float], list[float]] = ([], [])
    begin = time.thread_time()
    while not times[0] or (len(times[0]) < TIMED and time.thread_time() - begin < SECONDS):
        for by_onednn, seconds in zip(((), PRODUCT_KINDS), times, strict=True):
            start = time.thread_time()
            call(by_onednn)
            seconds.append(time.thread_time() - start)
    return min(times[0]), min(times[1])
