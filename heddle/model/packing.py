"""Copies of weights in oneDNN's layout, for fast products of few rows: decoding reads every weight once per step.

torch's fp32 product of one row runs on one thread, and of eight rows it reads weights at a third of the memory's speed. oneDNN
reads weights at full speed once they are in its layout. The copies double the memory of the matrices. They are never part of
a checkpoint, and a copy whose weight has changed is not used.
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

# Rows at which products are timed; each stands for all counts up to it, the last for larger ones too.
ROWS = (1, 8, 128)
LEAST_MODEL = 16 << 20  # bytes of matrices; below this, products are a small part of a step
LEAST_WEIGHT = 128 << 10  # bytes; below this, the call takes longer than the product
SAMPLE = 48 << 20  # bytes of weights that one timing reads: more than caches hold, as in decoding
PIECE = 4 << 20  # bytes of a weight that are timed as one product
GAIN = 1.1  # least speedup for packing; less is noise
TIMED, SECONDS = 64, 0.05  # products to time of each kind, and seconds after which fewer suffice

Timing = Callable[[Sequence[Tensor], Sequence[Tensor]], tuple[bool, ...]]


class Pack:
    """A weight in oneDNN's layout, and the identity of that weight.

    Args:
        weight: [out, in], on a CPU.
        faster: for each of `ROWS`, whether the product is faster with the packed weight.
    """

    def __init__(self, weight: Tensor, faster: tuple[bool, ...]) -> None:
        # Keep a reference to the weight, so that no other tensor can be allocated at its address.
        self.weight, self.pointer, self.version = weight, weight.data_ptr(), weight._version
        self.faster = faster
        self.laid = laid_out(weight) if any(faster) else None

    def current(self, weight: Tensor) -> bool:
        """Whether this is a pack of `weight`, and `weight` has not been written to since."""
        return weight is self.weight and weight._version == self.version and weight.data_ptr() == self.pointer

    def serves(self, rows: int) -> bool:
        """Whether a product with this many rows should use the pack."""
        return self.laid is not None and self.faster[min(bisect_left(ROWS, rows), len(ROWS) - 1)]


class Packed:
    """Mixin for a module whose weight may be packed: products with that weight use the pack.

    A call in which the weight could get a gradient drops the pack, and so does `train()`, since training may write to weights
    without changing their version.

    Attributes:
        pack: the packed weight, or None.
        by_onednn: which of its other products oneDNN computes (see `heddle.model.products`).
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
            return onednn(x, pack.laid, bias)
        return linear(x, weight, bias, self.by_onednn)

    def train(self, mode: bool = True) -> Any:
        """Set the mode, and drop the pack in training mode."""
        if mode:
            self.pack = None
        return super().train(mode)  # type: ignore[misc]

    def __getstate__(self) -> dict[str, object]:
        # A copy has its own weights, and packed ones cannot be copied.
        return {**self.__dict__, "pack": None}


class PackedLinear(Packed, nn.Linear):
    """A linear layer with a pack."""

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x, self.weight, self.bias)


class PackedHead(Packed, LanguageHead):
    """A language head with a pack of its table, or of the token table if tied."""


KINDS: dict[type[nn.Module], type[nn.Module]] = {nn.Linear: PackedLinear, LanguageHead: PackedHead}


def laid_out(weight: Tensor) -> Tensor:
    """A weight in oneDNN's layout. One layout serves all numbers of rows: one made for a single row was slower for eight."""
    laid: Tensor = torch.ops.mkldnn._reorder_linear_weight.default(weight.detach())
    return laid


def faster_rows(plain: Sequence[Tensor], laid: Sequence[Tensor]) -> tuple[bool, ...]:
    """For each of `ROWS`, whether products with packed weights are faster than with ordinary ones.

    Each weight is timed both ways in direct succession, and the median ratio decides: other load slows both ways, and the fastest
    time may come from one of the few weights that happened to be in a cache.
    """
    answers = []
    for rows in ROWS:
        x = torch.ones(rows, plain[0].shape[1], dtype=plain[0].dtype)
        # With many rows the product is bound by arithmetic, not by memory, so a few weights are enough.
        pairs = list(zip(plain, laid, strict=True))[: None if rows <= 8 else 4]
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


def kept_rows(plain: Sequence[Tensor], laid: Sequence[Tensor]) -> tuple[bool, ...]:
    """`faster_rows` as it is kept for this machine."""
    about = {"shape": list(plain[0].shape), "count": len(plain), "dtype": str(plain[0].dtype), "rows": list(ROWS)}
    first, *others = measured_once("packed-products", about, lambda: list(faster_rows(plain, laid)))
    return (first, *others)


def packable() -> tuple[torch.dtype, ...]:
    """The dtypes of weights that can be packed on this machine with this build of torch."""
    if not has_onednn():
        return ()
    return (torch.float32, torch.bfloat16) if torch.ops.mkldnn._is_mkldnn_bf16_supported() else (torch.float32,)


def pack(model: Transformer, room: int | None = None, timing: Timing = kept_rows) -> Transformer:
    """Pack the weights of a model on a CPU whose products become faster on this machine, and return the model.

    Once for each machine, some weights of each shape are packed and timed, a fraction of a second in all. Weights that are packed
    already or were found not to gain are skipped, as are weights on other devices or in other dtypes, and models too small to
    gain. Parameters, their names and checkpoints do not change; `model.train()` or a pass with gradients undoes the packing.

    Args:
        model: the finished model, in the precision it predicts in.
        room: bytes of memory that packing may use; None: no limit. If they do not suffice, nothing is packed.
        timing: see `faster_rows`.
    """
    found: dict[tuple[torch.Size, torch.dtype], list[tuple[nn.Module, Tensor]]] = {}
    for module, weight in _products(model):
        found.setdefault((weight.shape, weight.dtype), []).append((module, weight))
    waiting = [pair for pairs in found.values() for pair in pairs if not _has_pack(*pair)]
    if not waiting or sum(weight.nbytes for pairs in found.values() for _, weight in pairs) < LEAST_MODEL:
        return model
    if room is not None and sum(weight.nbytes for _, weight in waiting) > room:
        return model
    with torch.inference_mode():
        for pairs in found.values():
            pairs = [pair for pair in pairs if not _has_pack(*pair)]
            if pairs:
                _pack_alike(pairs, timing)
    return model


def faster_products(model: Transformer, tokens: int) -> tuple[ProductKind, ...]:
    """Which products of a model's training oneDNN computes faster on this CPU in fp32, as kept for this machine.

    Args:
        model: only its shapes matter; it may be on the meta device.
        tokens: tokens in a pass.
    """
    found = [(module, (weight.shape[0], weight.shape[1])) for module, weight in _multiplying(model)]
    matrices = [shape for module, shape in found if isinstance(module, nn.Linear)]
    shapes = [shape for _, shape in found]
    if not worth_measuring(shapes, tokens):
        return ()
    about = {"shapes": sorted(shapes), "updated": sorted(matrices), "tokens": tokens}
    kinds = measured_once("products", about, lambda: list(faster_kinds(shapes, tokens, matrices)), steady=True)
    return tuple(kinds)


def use_products(model: Transformer, by_onednn: tuple[ProductKind, ...]) -> None:
    """Use oneDNN for these products in every linear layer and the language head, in training and in prediction."""
    for module, _ in _multiplying(model):
        module.__class__ = KINDS.get(type(module), type(module))
        module.by_onednn = by_onednn  # type: ignore[assignment]


def unpack(model: nn.Module) -> None:
    """Drop all packs and free their memory."""
    for module in model.modules():
        if isinstance(module, Packed):
            module.pack = None


def _products(model: Transformer) -> list[tuple[nn.Module, Tensor]]:
    """The modules that multiply by a packable weight, each with that weight."""
    dtypes, found = packable(), []
    for module, weight in _multiplying(model):
        ordinary = type(weight) in (nn.Parameter, Tensor) and weight.device.type == "cpu" and weight.is_contiguous()
        if ordinary and weight.dtype in dtypes and weight.nbytes >= LEAST_WEIGHT and not weight.is_inference():
            found.append((module, weight))
    return found


def _multiplying(model: Transformer) -> Iterator[tuple[nn.Module, Tensor]]:
    """Every linear layer and the language head, each with the weight it multiplies by."""
    for module in without_custom(model):
        # Not other subclasses, which may compute something else.
        if type(module) in KINDS or isinstance(module, Packed):
            yield module, module.weight if isinstance(module, nn.Linear) else model.head_weight()


def _has_pack(module: nn.Module, weight: Tensor) -> bool:
    return isinstance(module, Packed) and module.pack is not None and module.pack.current(weight)


def _pack_alike(pairs: list[tuple[nn.Module, Tensor]], timing: Timing) -> None:
    """Time some weights of one shape, and pack all of them if that is faster for any number of rows."""
    first = pairs[0][1]
    rows = len(first) // -(-first.nbytes // PIECE)  # per piece; all are equal, since a smaller one would be faster
    pieces = (piece for _, weight in pairs for piece in weight.detach().split(rows) if len(piece) == rows)
    sample = list(islice(pieces, -(-SAMPLE // first[:rows].nbytes)))
    faster = timing(sample, [laid_out(piece) for piece in sample])
    for module, weight in pairs:
        module.__class__ = KINDS.get(type(module), type(module))
        module.pack = Pack(weight, faster)  # type: ignore[assignment]
