"""Weights prepacked in oneDNN's layout, for fast products of few rows: decoding reads every weight once per step.

torch's fp32 product of one row runs on one thread, and that of eight rows reads weights at a third of the memory bandwidth. oneDNN
reads weights at full bandwidth once they are in its layout. The copies double the memory of the matrices. They are not saved in
checkpoints, and a copy whose weight has changed is not used.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.config.train import ProductKind
from heddle.model.head import LanguageHead
from heddle.model.measured import measured_once
from heddle.model.products import faster_kinds, has_onednn, linear, onednn, worth_measuring
from heddle.model.transformer import Transformer
from heddle.nn.custom import without_custom

# Numbers of rows at which products are timed; each represents all numbers up to it, the last also larger ones.
ROWS = (1, 8, 128)
LEAST_MODEL = 16 << 20  # bytes of matrices; below this, products are a small part of a step
LEAST_WEIGHT = 128 << 10  # bytes; below this, the call takes longer than the product
SAMPLE = 48 << 20  # bytes of weights that one timing reads: more than fit into caches, as in decoding
PIECE = 4 << 20  # bytes of a weight that are timed as one product
GAIN = 1.1  # minimum speedup for prepacking; less is noise
TIMED, SECONDS = 64, 0.05  # products to time, and seconds after which fewer suffice

Timing = Callable[[Sequence[Tensor], Sequence[Tensor]], tuple[bool, ...]]


class Pack:
    """A prepacked copy of a weight, with the identity of the weight.

    Args:
        weight: [out, in], on a CPU.
        faster: for each of `ROWS`, whether the product is faster with the copy.
    """

    def __init__(self, weight: Tensor, faster: tuple[bool, ...]) -> None:
        # Keep a reference to the weight, so that no other tensor can be allocated at its address.
        self.weight, self.pointer, self.version = weight, weight.data_ptr(), weight._version
        self.faster = faster
        self.prepacked = prepacked_weight(weight) if any(faster) else None

    def current(self, weight: Tensor) -> bool:
        """Whether this is a copy of `weight`, and `weight` has not been written to since."""
        return weight is self.weight and weight._version == self.version and weight.data_ptr() == self.pointer

    def serves(self, rows: int) -> bool:
        """Whether a product with this many rows should use the copy."""
        return self.prepacked is not None and self.faster[min(bisect_left(ROWS, rows), len(ROWS) - 1)]


class Prepacked:
    """Mixin for a module whose weight may be prepacked: products with that weight use the copy.

    A call in which the weight could get a gradient drops the copy, and so does `train()`, since training may write to weights
    without changing their version.

    Attributes:
        pack: the prepacked weight, or None.
        by_onednn: the other products that oneDNN computes (see `heddle.model.products`).
    """

    pack: Pack | None = None
    by_onednn: tuple[ProductKind, ...] = ()

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x weightᵀ + bias."""
        pack = self.pack
        if pack is None or torch.compiler.is_compiling():
            return linear(x, weight, bias, self.by_onednn)
        if not pack.current(weight) or (torch.is_grad_enabled() and weight.requires_grad):
            self.pack = None
        elif (
            not torch.is_grad_enabled()
            and x.dtype == weight.dtype
            and pack.serves(x.numel() // weight.shape[1])
            and not torch.is_autocast_enabled("cpu")
        ):
            return onednn(x, pack.prepacked, bias)
        return linear(x, weight, bias, self.by_onednn)

    def train(self, mode: bool = True) -> Any:
        """Set the mode, and drop the copy in training mode."""
        if mode:
            self.pack = None
        return super().train(mode)  # type: ignore[misc]

    def __getstate__(self) -> dict[str, object]:
        # A copy of the module has its own weights, and prepacked ones cannot be copied.
        return {**self.__dict__, "pack": None}


class PrepackedLinear(Prepacked, nn.Linear):
    """A linear layer with a prepacked weight."""

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x, self.weight, self.bias)


class PrepackedHead(Prepacked, LanguageHead):
    """A language head with a prepacked table, or token table if tied."""


KINDS: dict[type[nn.Module], type[nn.Module]] = {nn.Linear: PrepackedLinear, LanguageHead: PrepackedHead}


def prepacked_weight(weight: Tensor) -> Tensor:
    """A weight in oneDNN's layout, the same for all numbers of rows: one made for a single row was slower for eight."""
    prepacked: Tensor = torch.ops.mkldnn._reorder_linear_weight.default(weight.detach())
    return prepacked


def faster_rows(plain: Sequence[Tensor], prepacked: Sequence[Tensor]) -> tuple[bool, ...]:
    """For each of `ROWS`, whether products with prepacked weights are faster than with ordinary ones.

    Each weight is timed both ways in direct succession, and the median ratio decides: other load slows both ways, and the fastest
    time may come from one of the few weights that happened to be in a cache.
    """
    answers = []
    for rows in ROWS:
        x = torch.ones(rows, plain[0].shape[1], dtype=plain[0].dtype)
        # With many rows the product is bound by arithmetic, not by memory, so a few weights are enough.
        pairs = list(zip(plain, prepacked, strict=True))[: None if rows <= 8 else 4]
        ratios: list[float] = []
        begin = time.perf_counter()
        while not ratios or (len(ratios) < TIMED and time.perf_counter() - begin < SECONDS):
            for weight, packed in pairs:
                start = time.perf_counter()
                F.linear(x, weight)
                between = time.perf_counter()
                onednn(x, packed)
                ratios.append((between - start) / max(time.perf_counter() - between, 1e-9))
        answers.append(median(ratios) > GAIN)
    return tuple(answers)


def cached_faster_rows(plain: Sequence[Tensor], prepacked: Sequence[Tensor]) -> tuple[bool, ...]:
    """`faster_rows`, measured once for this machine and cached."""
    about = {"shape": list(plain[0].shape), "count": len(plain), "dtype": str(plain[0].dtype), "rows": list(ROWS)}
    first, *rest = measured_once("packed-products", about, lambda: list(faster_rows(plain, prepacked)))
    return (first, *rest)


def packable() -> tuple[torch.dtype, ...]:
    """The dtypes of weights that can be prepacked on this machine with this build of torch."""
    if not has_onednn():
        return ()
    return (torch.float32, torch.bfloat16) if torch.ops.mkldnn._is_mkldnn_bf16_supported() else (torch.float32,)


def pack(model: Transformer, memory: int | None = None, timing: Timing = cached_faster_rows) -> Transformer:
    """Prepack the weights of a model on a CPU whose products become faster on this machine, and return the model.

    Once for each machine, some weights of each shape are prepacked and timed, which takes a fraction of a second. Weights that are
    already prepacked, do not gain, or have another device or dtype are skipped, as are small models. Parameters, their names and
    checkpoints do not change; `model.train()` or a pass with gradients drops the copies.

    Args:
        model: the finished model, in its precision for inference.
        memory: bytes that the copies may use; None: no limit. If they do not suffice, nothing is prepacked.
        timing: see `faster_rows`.
    """
    by_shape: dict[tuple[torch.Size, torch.dtype], list[tuple[nn.Module, Tensor]]] = {}
    for module, weight in _products(model):
        by_shape.setdefault((weight.shape, weight.dtype), []).append((module, weight))
    pending = [pair for pairs in by_shape.values() for pair in pairs if not _has_pack(*pair)]
    if not pending or sum(weight.nbytes for pairs in by_shape.values() for _, weight in pairs) < LEAST_MODEL:
        return model
    if memory is not None and sum(weight.nbytes for _, weight in pending) > memory:
        return model
    with torch.inference_mode():
        for pairs in by_shape.values():
            pairs = [pair for pair in pairs if not _has_pack(*pair)]
            if pairs:
                _pack_alike(pairs, timing)
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


def unpack(model: nn.Module) -> None:
    """Drop all prepacked copies and free their memory."""
    for module in model.modules():
        if isinstance(module, Prepacked):
            module.pack = None


def _products(model: Transformer) -> list[tuple[nn.Module, Tensor]]:
    """The modules with a weight that can be prepacked, each with that weight."""
    dtypes, products = packable(), []
    for module, weight in _multiplying(model):
        ordinary = type(weight) in (nn.Parameter, Tensor) and weight.device.type == "cpu" and weight.is_contiguous()
        if ordinary and weight.dtype in dtypes and weight.nbytes >= LEAST_WEIGHT and not weight.is_inference():
            products.append((module, weight))
    return products


def _multiplying(model: Transformer) -> Iterator[tuple[nn.Module, Tensor]]:
    """Every linear layer and the language head, each with the weight it multiplies by."""
    for module in without_custom(model):
        # Not other subclasses, which may compute something else.
        if type(module) in KINDS or isinstance(module, Prepacked):
            yield module, module.weight if isinstance(module, nn.Linear) else model.head_weight()


def _has_pack(module: nn.Module, weight: Tensor) -> bool:
    return isinstance(module, Prepacked) and module.pack is not None and module.pack.current(weight)


def _pack_alike(pairs: list[tuple[nn.Module, Tensor]], timing: Timing) -> None:
    """Time some weights of one shape, and prepack all of them if that is faster for any number of rows."""
    first = pairs[0][1]
    rows = len(first) // -(-first.nbytes // PIECE)  # per piece; all are equal, since a smaller one would be faster
    pieces = (piece for _, weight in pairs for piece in weight.detach().split(rows) if len(piece) == rows)
    sample = list(islice(pieces, -(-SAMPLE // first[:rows].nbytes)))
    faster = timing(sample, [prepacked_weight(piece) for piece in sample])
    for module, weight in pairs:
        module.__class__ = KINDS.get(type(module), type(module))
        module.pack = Pack(weight, faster)  # type: ignore[assignment]
