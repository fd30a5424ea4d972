"""Copies of weights in oneDNN's layout, for fast products of few rows: decoding reads every weight once per step.

torch's fp32 product of one row runs on one thread, and of eight rows it reads weights at a third of the memory's speed. oneDNN
reads weights at full speed once they are in its layout. Weights that multiply the same vectors, such as those of queries, keys
and values, are packed as one matrix, whose product takes one call. The copies double the memory of the matrices. They are never
part of a checkpoint, and a copy whose weight has changed is not used.
"""

import threading
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
from heddle.model.products import faster_kinds, has_onednn, linear, onednn
from heddle.model.transformer import Transformer
from heddle.nn.attention import Attention
from heddle.nn.custom import without_custom
from heddle.nn.feedforward import Gated

# Rows at which products are timed; each stands for all counts up to it, the last for larger ones too.
ROWS = (1, 8, 128)
LEAST_MODEL = 16 << 20  # bytes of matrices; below this, products are a small part of a step
LEAST_WEIGHT = 128 << 10  # bytes; below this, the call takes longer than the product
SAMPLE = 48 << 20  # bytes of weights that one timing reads: more than caches hold, as in decoding
PIECE = 4 << 20  # bytes of a weight that are timed as one product
GAIN = 1.1  # least speedup for packing; less is noise
TIMED, SECONDS = 64, 0.05  # products to time of each kind, and seconds after which fewer suffice

Group = list[tuple[nn.Module, Tensor]]
Timing = Callable[[Sequence[Tensor], Sequence[Tensor]], tuple[bool, ...]]


class Version:
    """A tensor as it is now, to notice later that it has changed."""

    def __init__(self, tensor: Tensor) -> None:
        # Keep a reference, so that no other tensor can be allocated at its address.
        self.tensor, self.pointer, self.version = tensor, tensor.data_ptr(), tensor._version

    def current(self, tensor: Tensor) -> bool:
        """Whether this is the same tensor, not written to since."""
        return tensor is self.tensor and tensor._version == self.version and tensor.data_ptr() == self.pointer


class Laid:
    """The weights of modules that multiply the same vectors, in oneDNN's layout, as one matrix.

    The first module that is called computes the product for all of them; the others take their columns of it.

    Args:
        weights: [out, in] each, on a CPU.
        biases: one for each weight, or None.
        faster: for each of `ROWS`, whether the product is faster with the packed weight.
    """

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor | None], faster: tuple[bool, ...]) -> None:
        self.faster = faster
        self.widths = [len(weight) for weight in weights]
        self.laid = laid_out(together(weights)) if any(faster) else None
        self.bias: Tensor | None = None
        if len(weights) > 1 and any(bias is not None for bias in biases):
            pairs = zip(weights, biases, strict=True)
            self.bias = torch.cat([w.new_zeros(len(w)) if bias is None else bias.detach() for w, bias in pairs])
        self.latest = threading.local()  # several threads may use a model

    def product(self, x: Tensor, number: int, bias: Tensor | None) -> Tensor:
        """x wᵀ + bias for the weight of this number."""
        if len(self.widths) == 1:
            return onednn(x, self.laid, bias)
        latest = self.latest.__dict__
        if latest.get("x") is not x:
            latest["x"], latest["parts"] = x, onednn(x, self.laid, self.bias).split(self.widths, -1)
        part: Tensor = latest["parts"][number]
        if number == len(self.widths) - 1:  # modules are called in order
            latest.clear()
        return part

    def shares(self) -> bool:
        """Whether there are several weights. If so, forget what their last product was, as the vectors may change."""
        self.latest.__dict__.clear()
        return len(self.widths) > 1


class Pack:
    """A module's part of packed weights.

    Args:
        weight: the module's weight.
        bias: its bias.
        joint: the packed weights.
        number: of this weight among them.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, joint: Laid, number: int = 0) -> None:
        self.weight, self.joint, self.number = Version(weight), joint, number
        self.bias = None if bias is None or len(joint.widths) == 1 else Version(bias)

    def current(self, weight: Tensor, bias: Tensor | None) -> bool:
        """Whether this is a pack of `weight` and `bias`, neither of which has been written to since."""
        return self.weight.current(weight) and (self.bias is None or (bias is not None and self.bias.current(bias)))

    def serves(self, rows: int) -> bool:
        """Whether a product with this many rows should use the pack."""
        faster = self.joint.faster
        return self.joint.laid is not None and faster[min(bisect_left(ROWS, rows), len(ROWS) - 1)]


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
    _forward_pre_hooks: dict[int, Callable[..., Any]]

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x weightᵀ + bias."""
        pack = self.pack
        if pack is None or torch.compiler.is_compiling():
            return linear(x, weight, bias, self.by_onednn)
        if not pack.current(weight, bias) or (torch.is_grad_enabled() and weight.requires_grad):
            self.pack = None
        elif (
            not torch.is_grad_enabled()
            and x.dtype == weight.dtype
            and pack.serves(x.numel() // weight.shape[1])
            and not (self._forward_pre_hooks and pack.joint.shares())  # they may change what this module reads
            and not torch.is_autocast_enabled("cpu")
        ):
            return pack.joint.product(x, pack.number, bias)
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

SHARING: dict[type[nn.Module], tuple[str, ...]] = {Attention: ("q", "k", "v"), Gated: ("gate", "up")}
"""The linear layers of a module that multiply the same vectors, in the order of their calls."""


def together(weights: Sequence[Tensor]) -> Tensor:
    """The rows of all weights."""
    return weights[0].detach() if len(weights) == 1 else torch.cat([weight.detach() for weight in weights])


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


def packable() -> tuple[torch.dtype, ...]:
    """The dtypes of weights that can be packed on this machine with this build of torch."""
    if not has_onednn():
        return ()
    return (torch.float32, torch.bfloat16) if torch.ops.mkldnn._is_mkldnn_bf16_supported() else (torch.float32,)


def pack(model: Transformer, room: int | None = None, timing: Timing = faster_rows) -> Transformer:
    """Pack the weights of a model on a CPU whose products become faster on this machine, and return the model.

    Some weights of each shape are packed and timed, which takes a fraction of a second in all. Weights that are packed
    already or were found not to gain are skipped, as are weights on other devices or in other dtypes, and models too small to
    gain. Parameters, their names and checkpoints do not change; `model.train()` or a pass with gradients undoes the packing.

    Args:
        model: the finished model, in the precision it predicts in.
        room: bytes of memory that packing may use; None: no limit. If they do not suffice, nothing is packed.
        timing: see `faster_rows`.
    """
    found: dict[tuple[tuple[torch.Size, ...], torch.dtype], list[Group]] = {}
    for group in _groups(model):
        found.setdefault((tuple(weight.shape for _, weight in group), group[0][1].dtype), []).append(group)
    waiting = [group for alike in found.values() for group in alike if not _has_packs(group)]
    if not waiting or sum(_bytes(group) for alike in found.values() for group in alike) < LEAST_MODEL:
        return model
    if room is not None and sum(map(_bytes, waiting)) > room:
        return model
    with torch.inference_mode():
        for alike in found.values():
            alike = [group for group in alike if not _has_packs(group)]
            if alike:
                _pack_alike(alike, timing)
    return model


def faster_products(model: Transformer, tokens: int) -> tuple[ProductKind, ...]:
    """Which products of a model's training oneDNN computes faster on this CPU in fp32.

    Args:
        model: only its shapes matter; it may be on the meta device.
        tokens: tokens in a pass.
    """
    found = [(module, (weight.shape[0], weight.shape[1])) for module, weight in _multiplying(model)]
    matrices = [shape for module, shape in found if isinstance(module, nn.Linear)]
    return faster_kinds([shape for _, shape in found], tokens, matrices)


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


def _groups(model: Transformer) -> list[Group]:
    """The same, those that multiply the same vectors together."""
    single = {id(module): (module, weight) for module, weight in _products(model)}
    groups: list[Group] = []
    for module in without_custom(model):
        members = [getattr(module, name) for name in SHARING.get(type(module), ())]
        if isinstance(module, Attention) and module.crosses:  # its queries are computed from other vectors
            members = members[1:]
        if members and all(id(member) in single for member in members):
            groups.append([single.pop(id(member)) for member in members])
    return groups + [[pair] for pair in single.values()]


def _has_packs(group: Group) -> bool:
    for module, weight in group:
        pack = module.pack if isinstance(module, Packed) else None
        if pack is None or len(pack.joint.widths) != len(group) or not pack.current(weight, _bias(module)):
            return False
    return True


def _bytes(group: Group) -> int:
    return sum(weight.nbytes for _, weight in group)


def _bias(module: nn.Module) -> Tensor | None:
    bias = module.bias
    return bias if isinstance(bias, Tensor) else None


def _pack_alike(groups: list[Group], timing: Timing) -> None:
    """Time some weights of the same shapes, and pack all of them if that is faster for any number of rows."""
    height, width = sum(len(weight) for _, weight in groups[0]), groups[0][0][1].shape[1]
    size = height * width * groups[0][0][1].element_size()
    rows = height // -(-size // PIECE)  # per piece; all are equal, since a smaller one would be faster
    wholes = (together([weight for _, weight in group]) for group in groups)
    pieces = (piece for whole in wholes for piece in whole.split(rows) if len(piece) == rows)
    sample = list(islice(pieces, -(-SAMPLE // (size * rows // height))))
    faster = timing(sample, [laid_out(piece) for piece in sample])
    for group in groups:
        joint = Laid([weight for _, weight in group], [_bias(module) for module, _ in group], faster)
        for number, (module, weight) in enumerate(group):
            module.__class__ = KINDS.get(type(module), type(module))
            module.pack = Pack(weight, _bias(module), joint, number)  # type: ignore[assignment]
