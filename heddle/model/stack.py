"""A stack: entry, blocks, final norm. Masks are lowered once per forward pass and way of seeing, not once per layer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.config.layers import (
    AlibiConfig,
    AttentionConfig,
    BucketsConfig,
    LinearScaling,
    Llama3Scaling,
    NTKScaling,
    RotaryConfig,
    YarnScaling,
)
from heddle.config.model import DropoutConfig, EntryConfig, StackConfig
from heddle.errors import HeddleError
from heddle.nn import position as positions
from heddle.nn.attention import Sight, View
from heddle.nn.block import Across, Block, make_block
from heddle.nn.dropout import Dropout
from heddle.nn.layout import Layout
from heddle.nn.mask import Causal, Everything, Rule, Window
from heddle.nn.moe import Routing
from heddle.nn.norm import make_norm
from heddle.nn.position import Alibi, Buckets, LearnedPositions, Rotary, SinusoidalPositions
from heddle.nn.state import STATELESS, Keys, State


@dataclass(frozen=True)
class Memory:
    """An encoder's output, for a decoder to look at.

    Attributes:
        hidden: Float[B S D].
        layout: where its tokens stand; padding is seen by nothing.
    """

    hidden: Float[Tensor, "B S D"]
    layout: Layout


class Entry(nn.Module):
    """What joins the token embeddings before the first block: positions, token types, a norm, dropout.

    Positions are summed or put beside the token vectors (L0-16, D-28).
    """

    def __init__(self, config: EntryConfig, dim: int, context: int, dropout: Dropout) -> None:
        super().__init__()
        width = config.positions_dim(dim)
        self.scale = sqrt(dim) if config.scale else 1.0
        self.offset = config.offset
        self.concat = config.combine == "concat"
        self.positions = _positions(config.positions, context + config.offset, width)
        self.computed = isinstance(self.positions, SinusoidalPositions)
        self.types = Types(config.types, dim) if config.types else None
        self.norm = None if config.norm is None else make_norm(config.norm, dim)
        self.dropout = dropout

    def forward(
        self, x: Float[Tensor, "B T d"], layout: Layout, types: Int[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B T D"]:
        x = x * self.scale if self.scale != 1.0 else x
        if self.positions is not None:
            at = layout.position + self.offset
            # What is computed is computed in fp32 or wider; what is learned is looked up.
            wide = (torch.promote_types(x.dtype, torch.float32),) if self.computed else ()
            places = self.positions(at, *wide).to(x.dtype)
            x = torch.cat((x, places.expand(*x.shape[:2], -1)), dim=-1) if self.concat else x + places
        if self.types is not None:
            types = torch.zeros_like(layout.position) if types is None else types
            x = x + self.types(types).to(x.dtype)
        x = x if self.norm is None else self.norm(x)
        return self.dropout(x)


def _positions(kind: str, context: int, dim: int) -> nn.Module | None:
    if kind == "none":
        return None
    if kind == "learned":
        return LearnedPositions(context, dim)
    return SinusoidalPositions(dim, halves=kind == "sinusoidal_halves")


class Types(nn.Module):
    """One trained vector for each type of token, such as first and second sentence (BERT's segments)."""

    def __init__(self, types: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(types, dim))

    def forward(self, types: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        return F.embedding(types, self.weight)


class Stack(nn.Module):
    """Blocks that see backwards (a decoder) or both ways (an encoder) (L0-25, L1-23, L1-76).

    Usable bare: vectors [B T D] in, vectors [B T D] out.
    """

    def __init__(
        self, config: StackConfig, dim: int, context: int, causal: bool = True, drops: DropoutConfig | None = None
    ) -> None:
        super().__init__()
        drops = DropoutConfig() if drops is None else drops
        dropout = Dropout(config.entry.dropout, drops.style == "classic", drops.mask == "batch")
        self.width = config.entry.token_dim(
            dim
        )  # of what is given; positions that are put beside it come with the entry
        self.entry = Entry(config.entry, dim, context, dropout)
        self.blocks = nn.ModuleList(make_block(block, dim, drops, causal) for block in config.blocks)
        keys = [_sight_key(block.mixer, dim) for block in config.blocks]
        distinct = list(dict.fromkeys(keys))
        mixers = [config.blocks[keys.index(key)].mixer for key in distinct]
        self.sights = nn.ModuleList(make_sight(mixer, dim, causal, drops) for mixer in mixers)
        self.chosen = [distinct.index(key) for key in keys]
        self.reaches = [_reach(block.mixer) for block in config.blocks]
        crossing = [block.cross for block in config.blocks if block.cross is not None]
        kernels = list(dict.fromkeys(cross.kernel for cross in crossing))
        self.cross_sights = nn.ModuleDict({kernel: Sight(Everything(), kernel) for kernel in kernels})
        self.crossing = [None if block.cross is None else block.cross.kernel for block in config.blocks]
        self.final_norm = make_norm(config.block.norm, dim) if config.ends_in_norm() else nn.Identity()

    def views(self, queries: Layout, keys: Keys | None = None) -> list[View]:
        """What each block needs to know of the tokens' places; keys default to the queries themselves."""
        reaches = [self.reaches[self.chosen.index(number)] for number in range(len(self.sights))]
        seen = [queries if keys is None else keys[reach] for reach in reaches]
        made = [sight(queries, layout) for sight, layout in zip(self.sights, seen, strict=True)]
        return [made[number] for number in self.chosen]

    def run(
        self,
        x: Float[Tensor, "B T d"],
        queries: Layout,
        keys: Keys | None = None,
        states: Sequence[tuple[State, State]] | None = None,
        memory: Memory | None = None,
        types: Int[Tensor, "B T"] | None = None,
    ) -> tuple[Float[Tensor, "B T D"], tuple[Routing, ...]]:
        """Hidden vectors, and what the routers did on the way.

        Raises:
            HeddleError: `x` has another width, or the layout another batch.
        """
        width = self.width
        if x.dim() != 3 or x.shape[-1] != width or queries.position.shape != x.shape[:2]:
            raise HeddleError(
                f"a stack takes x [B T D] with D = {width} and a layout of the same [B T]; "
                f"x is {list(x.shape)}, the layout {list(queries.position.shape)}"
            )
        views = self.views(queries, keys)
        x = self.entry(x, queries, types)
        across: dict[str, View] = {}
        if memory is not None:
            across = {kernel: sight(queries, memory.layout) for kernel, sight in self.cross_sights.items()}
        routings: list[Routing] = []
        for number, block in enumerate(self.blocks):
            own, other = (STATELESS, STATELESS) if states is None else states[number]
            kernel = self.crossing[number]
            look = None if memory is None or kernel is None else Across(memory.hidden, across[kernel], other)
            x, routing = block(x, views[number], own, look)
            routings += [] if routing is None else [routing]
        return self.final_norm(x), tuple(routings)

    def forward(self, x: Float[Tensor, "B T d"], queries: Layout, **how: Any) -> Float[Tensor, "B T D"]:
        """Hidden vectors alone; arguments as of `run`."""
        return self.run(x, queries, **how)[0]

    def layers(self) -> Iterator[Block]:
        """The blocks, as what they are."""
        for block in self.blocks:
            assert isinstance(block, Block)
            yield block

    def new_states(self) -> list[tuple[State, State]]:
        """Empty memories, one pair per block."""
        return [block.new_state() for block in self.layers()]


def _sight_key(config: Any, dim: int) -> tuple[Any, ...]:
    """What two layers must share to see alike."""
    if not isinstance(config, AttentionConfig):
        return (_reach(config),)
    return config.window, config.relative, config.kernel, config.width(dim), config.heads, config.cap, config.dropout


def _reach(config: Any) -> int | None:
    """How far back a mixer's memory goes, in tokens; None: to the beginning, or into a state of its own."""
    if isinstance(config, AttentionConfig):
        return config.window
    taps, dilation = getattr(config, "taps", None), getattr(config, "dilation", 1)
    return None if taps is None or taps == 1 else (taps - 1) * dilation


def make_sight(config: Any, dim: int, causal: bool = True, drops: DropoutConfig | None = None) -> Sight:
    """The way of seeing that a mixer asks for in a stack of one direction or of both."""
    rule: Rule = Causal() if causal else Everything()
    if not isinstance(config, AttentionConfig):
        return Sight(rule, None)
    if config.window is not None:
        rule = Causal() & Window(config.window) if causal else Window(config.window)
    plain = drops is None or drops == DropoutConfig() or not config.dropout
    return Sight(rule, config.kernel, _relative(config, dim, causal), fused=plain and config.cap is None)


def _relative(config: AttentionConfig, dim: int, causal: bool) -> nn.Module | None:
    relative = config.relative
    if isinstance(relative, RotaryConfig):
        turned = relative.turned(config.width(dim))
        neighbours = relative.pairing == "neighbours"
        return Rotary(config.width(dim), relative.base, turned, neighbours, _scaling(relative))
    if isinstance(relative, AlibiConfig):
        return Alibi(config.heads)
    if isinstance(relative, BucketsConfig):
        return Buckets(config.heads, relative.buckets, relative.furthest, both_ways=not causal)
    return None


def _scaling(config: RotaryConfig) -> positions.Scaling | None:
    """How the config slows rotary frequencies."""
    scaling = config.scaling
    if isinstance(scaling, LinearScaling):
        return positions.Linear(scaling.factor)
    if isinstance(scaling, NTKScaling):
        return positions.NTK(scaling.factor)
    if isinstance(scaling, YarnScaling):
        return positions.Yarn(
            scaling.factor, scaling.original, scaling.fast, scaling.slow, scaling.whole, scaling.magnitude
        )
    if isinstance(scaling, Llama3Scaling):
        return positions.Llama3(scaling.factor, scaling.original, scaling.low, scaling.high)
    return None
