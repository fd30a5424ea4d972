"""Context parallelism: the tokens of each row divided among processes, which gather each other's keys and values, by heads.

Each process has two pieces of every row, one from its head and one from its tail, so that under a causal mask all compute as much.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.nn import functional as F

from heddle.data.batch import IGNORED, Batch
from heddle.errors import HeddleError
from heddle.model.transformer import Transformer
from heddle.nn.attention import Attention
from heddle.nn.block import Block
from heddle.nn.cache import Cache, Keys
from heddle.nn.kernels import Kernel, Lowered
from heddle.nn.layout import PADDING, Layout
from heddle.nn.moe import MoE
from heddle.nn.state import FORGETS

LEAST = 16 << 20  # bytes of gathered keys for which a collective pays


@dataclass(frozen=True)
class PartOfLayout(Layout):
    """The layout of a process's tokens.

    Attributes:
        all: the layout of all tokens, in the order of the processes.
    """

    all: Layout | None = None

    def tensors(self) -> list[Tensor]:
        assert self.all is not None
        return [*super().tensors(), *self.all.tensors()]

    def _of(self, tensors: Any) -> "PartOfLayout":
        assert self.all is not None
        own, others = tensors[: len(tensors) // 2], tensors[len(tensors) // 2 :]
        position, segment, *horizon = own
        return replace(
            self, position=position, segment=segment, horizon=horizon[0] if horizon else None, all=self.all._of(others)
        )


class Pass(Cache):
    """A cache that stores nothing, with the layout of all keys."""

    def __init__(self, layout: PartOfLayout, blocks: int, windows: set[int | None]) -> None:
        super().__init__([FORGETS] * blocks, layout.rows)
        assert layout.all is not None
        self.keys = Keys(dict.fromkeys(windows | {None}, layout.all))


def gathered(part: Tensor, mesh: DeviceMesh) -> Tensor:
    """The keys or values [B K S d] of all processes, from those of each."""
    joint = DTensor.from_local(part, mesh, [Shard(2)], run_check=False).redistribute(placements=[Replicate()])
    return joint.to_local(grad_placements=[Partial()])  # each process has the gradient through its own queries


class MoEOfParts(MoE):
    """A mixture that gets some tokens of each document. Its balance term is a part of the whole document's: they add up.

    Attributes:
        mesh: the processes that have the others.
    """

    mesh: DeviceMesh

    def whole(self, counts: Tensor, layout: Layout) -> Tensor:
        """The choices of all processes."""
        if not isinstance(layout, PartOfLayout):
            return counts
        joint = DTensor.from_local(counts, self.mesh, [Partial()], run_check=False)
        whole: Tensor = joint.redistribute(placements=[Replicate()]).to_local()
        return whole


def attend(
    kernel: Kernel, mesh: DeviceMesh, gathers_again: bool, q: Tensor, k: Tensor, v: Tensor, lowered: Lowered
) -> Tensor:
    """A kernel's output for a process's queries; keys and values of as few heads as pay are gathered at a time.

    The backward pass gathers them again, so that no layer keeps those of all tokens, unless the layer is computed again anyway.
    """
    forward = type(kernel).forward
    if not isinstance(lowered.mask.queries, PartOfLayout):
        return forward(kernel, q, k, v, lowered)
    all_heads, group = k.shape[1], q.shape[1] // k.shape[1]
    several = max(1, LEAST // (k[:, :1].nbytes * mesh.size()))
    heads = all_heads if lowered.custom_scores is not None else min(all_heads, several)
    outs = []
    for first in range(0, all_heads, heads):
        parts = k[:, first : first + heads], v[:, first : first + heads]
        keys, values = (gathered(part, mesh) for part in parts)
        own = slice(first * group, (first + heads) * group)
        again = gathers_again and not torch.compiler.is_compiling()
        with gathering_again(parts, (keys, values), mesh) if again else nullcontext():
            outs.append(forward(kernel, q[:, own], keys, values, of_heads(lowered, own)))
    return outs[0] if len(outs) == 1 else torch.cat(outs, 1)


def of_heads(lowered: Lowered, heads: slice) -> Lowered:
    """The mask with the biases and sinks of some heads."""
    bias = None if lowered.bias is None else lowered.bias[:, heads]
    sinks = None if lowered.sinks is None else lowered.sinks[heads]
    return replace(lowered, bias=bias, sinks=sinks)


def memory_of(tensor: Tensor) -> int:
    """What identifies the memory of a tensor, even of one that has none."""
    return int(tensor.untyped_storage()._cdata)


@contextmanager
def gathering_again(parts: tuple[Tensor, ...], whole: tuple[Tensor, ...], mesh: DeviceMesh) -> Iterator[None]:
    """Inside the block, of the gathered tensors that autograd saves only a process's own part is kept."""
    part_of = {memory_of(each): part.detach() for each, part in zip(whole, parts, strict=True)}

    def pack(tensor: Tensor) -> Tensor | tuple[Tensor, torch.Size]:
        part = part_of.get(memory_of(tensor))
        if part is None or tensor.numel() != part.numel() * mesh.size() or not tensor.is_contiguous():
            return tensor
        return part, tensor.shape

    def unpack(saved: Tensor | tuple[Tensor, torch.Size]) -> Tensor:
        return saved if isinstance(saved, Tensor) else gathered(saved[0], mesh).view(saved[1])

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield


def order(tokens: int, processes: int) -> list[Tensor]:
    """The tokens of each process: piece r and piece 2N - 1 - r of 2N equal ones."""
    pieces = torch.arange(tokens).chunk(2 * processes)
    return [torch.cat((pieces[rank], pieces[2 * processes - 1 - rank])) for rank in range(processes)]


def cut_tokens(batch: Batch, rank: int, processes: int) -> Batch:
    """A process's tokens of a batch, padded at first to a multiple of 2N tokens.

    Raises:
        HeddleError: the batch has targets for whole rows, or a source.
    """
    if batch.targets.shape[:2] != batch.tokens.shape[:2] or batch.source is not None:
        raise HeddleError(
            f"parallel: context = {processes} divides tokens that are scored one by one: it does not suit this task"
        )
    width = batch.tokens.shape[1]
    missing = -width % (2 * processes)
    pieces = order(width + missing, processes)
    fill = {"targets": IGNORED, "segment": PADDING}

    def padded(name: str, tensor: Tensor) -> Tensor:
        beyond = (0, 0) * (tensor.dim() - 2)
        return F.pad(tensor, (*beyond, 0, missing), value=fill.get(name, 0)) if missing else tensor

    layout = batch.layout
    whole = Layout(
        padded("position", layout.position),
        padded("segment", layout.segment),
        "packed",
        layout.documents,
        layout.longest,
        horizon=None if layout.horizon is None else padded("horizon", layout.horizon),
    )
    own = whole.map_tensors(lambda tensor: tensor[:, pieces[rank]])
    everything = whole.map_tensors(lambda tensor: tensor[:, torch.cat(pieces)])
    parts: dict[str, Any] = {
        name: padded(name, part)[:, pieces[rank]]
        for name, part in batch.parts().items()
        if name in ("tokens", "targets", "weights", "types")
    }
    return Batch(**parts, layout=PartOfLayout(**{**vars(own), "all": everything}))


def gather_keys(model: Transformer, mesh: DeviceMesh) -> None:
    """Let the attention of a model gather keys and values wherever it gets a part of the tokens."""
    stack = model.last_stack()
    windows = {pattern.reach for pattern in stack.patterns}

    def begin(module: nn.Module, arguments: Any, keywords: Any) -> Any:
        x, layout, *others = arguments
        if not isinstance(layout, PartOfLayout):
            return None
        return (x, layout, Pass(layout, len(stack.blocks), windows), *others[1:]), keywords

    stack.register_forward_pre_hook(begin, with_kwargs=True)
    for block in stack.layers():
        kernel, computed_again = block.mixer.kernel, "forward" in vars(block)  # by gradient checkpointing
        kernel.forward = partial(attend, kernel, mesh, not computed_again)
        if isinstance(block.ffn, MoE):
            mixture: Any = block.ffn
            mixture.__class__, mixture.mesh = MoEOfParts, mesh


def check_layers(model: Transformer, processes: int) -> None:
    """Check that every layer of a model can compute a part of the tokens.

    Raises:
        HeddleError: one of them cannot.
    """
    where = f"parallel: context = {processes}"
    if model.encoder is not None and model.decoder is not None:
        raise HeddleError(f"{where}: a model with an encoder and a decoder cannot be divided")
    for name, block in ((name, module) for name, module in model.named_modules() if isinstance(module, Block)):
        if not isinstance(block.mixer, Attention):
            raise HeddleError(f"{where} cannot divide {name}.mixer: a {type(block.mixer).__name__} is not attention")
