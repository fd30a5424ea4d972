"""A stack: entry, blocks, final norm. Masks are lowered once per forward pass and way of seeing, not once per layer."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import sqrt
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from heddle.checks import at_least, checked, wrong
from heddle.config.layers import AttentionConfig
from heddle.config.model import DropoutConfig, EntryConfig, StackConfig
from heddle.errors import HeddleError
from heddle.nn.attention import Sight, View
from heddle.nn.block import Across, Block, make_block
from heddle.nn.dropout import Dropout, make_dropout
from heddle.nn.embedding import Embedding, check_ids
from heddle.nn.layout import Layout
from heddle.nn.mask import Causal, Everything, Rule, Window
from heddle.nn.moe import Routing
from heddle.nn.norm import make_norm
from heddle.nn.numeric import wide_dtype
from heddle.nn.position import SinusoidalPositions, make_relative
from heddle.nn.state import STATELESS, Keys, Memory, State


class Entry(nn.Module):
    """What joins the token embeddings before the first block: positions, token types, a norm, dropout.

    Positions are summed or put beside the token vectors (L0-16, D-28).

    Raises:
        HeddleError: in `forward`, types are given and there is no table of them.
    """

    def __init__(self, config: EntryConfig, dim: int, context: int, dropout: Dropout) -> None:
        super().__init__()
        width = config.positions_dim(dim)
        self.scale = sqrt(dim) if config.scale else 1.0
        self.offset = config.offset
        self.concat = config.combine == "concat"
        self.places = context + config.offset
        self.positions = _positions(config.positions, self.places, width)
        self.types = Embedding(config.types, dim) if config.types else None
        self.norm = None if config.norm is None else make_norm(config.norm, dim)
        self.dropout = dropout

    def forward(
        self, x: Float[Tensor, "B T d"], layout: Layout, types: Int[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B T D"]:
        if types is not None:
            if self.types is None:
                raise HeddleError("types are given to a stack that has none: leave them out, or set entry.types")
            check_ids("types", types, self.types.weight.shape[0], tuple(layout.position.shape))
        x = x * self.scale if self.scale != 1.0 else x
        if self.positions is not None:
            places = self._places(layout, x.dtype)
            x = torch.cat((x, places.expand(*x.shape[:2], -1)), dim=-1) if self.concat else x + places
        if self.types is not None:
            types = torch.zeros_like(layout.position) if types is None else types
            x = x + self.types(types).to(x.dtype)
        x = x if self.norm is None else self.norm(x)
        return self.dropout(x)

    def _places(self, layout: Layout, dtype: torch.dtype) -> Float[Tensor, "B T d"]:
        """The vectors of the tokens' positions: what is computed is computed in fp32 or wider, what is learned is looked up."""
        assert self.positions is not None
        at = layout.position + self.offset
        if isinstance(self.positions, SinusoidalPositions):
            return self.positions(at, wide_dtype(dtype)).to(dtype)
        if layout.form not in ("plain", "uniform"):
            # Padding may stand beyond the table. It takes the first row and is seen by nothing.
            at = at.masked_fill(~layout.real, 0)
        check_ids("the layout's positions", at, self.places)
        places: Tensor = self.positions(at)
        return places.to(dtype)


def _positions(kind: str, context: int, dim: int) -> nn.Module | None:
    if kind == "none":
        return None
    if kind == "learned":
        return Embedding(context, dim)
    return SinusoidalPositions(dim, halves=kind == "sinusoidal_halves")


class Stack(nn.Module):
    """Blocks that see backwards (a decoder) or both ways (an encoder) (L0-25, L1-23, L1-76).

    Usable bare: vectors [B T D] in, vectors [B T D] out. Layers that see alike share a `Sight`, and all whose relative
    positions and heads are alike share those, whatever their windows, kernels and dropout.
    """

    @checked(dim=at_least(1), context=at_least(1))
    def __init__(
        self, config: StackConfig, dim: int, context: int, causal: bool = True, drops: DropoutConfig | None = None
    ) -> None:
        super().__init__()
        drops = DropoutConfig() if drops is None else drops
        # Of what is given; positions that are put beside it come with the entry.
        self.width = config.entry.token_dim(dim)
        self.longest = context if config.entry.positions == "learned" else None
        self.entry = Entry(config.entry, dim, context, make_dropout(drops, config.entry.dropout))
        self.blocks = nn.ModuleList(make_block(block, dim, drops, causal) for block in config.blocks)
        reaches = [getattr(block.mixer, "window", None) for block in self.layers()]
        ways = [_way(block.mixer, reach, dim, drops) for block, reach in zip(config.blocks, reaches, strict=True)]
        first = {way: ways.index(way) for way in ways}  # the layer that sees so first
        sights = list(first)
        self.sight_of_layer = [sights.index(way) for way in ways]
        self.reach_of_sight = [reaches[layer] for layer in first.values()]
        holders: dict[Any, int] = {}  # by their relative positions: the first sight with such holds them
        for number, way in enumerate(sights):
            holders.setdefault(way[-1], number)
        self.holder_of_sight = [holders[way[-1]] for way in sights]
        self.sights = nn.ModuleList(
            make_sight(config.blocks[layer].mixer, dim, causal, drops, holds=holders[way[-1]] == number)
            for number, (way, layer) in enumerate(first.items())
        )
        crosses = [None if each.cross is None else _kernel(each.cross, drops) for each in config.blocks]
        distinct = [each for each in dict.fromkeys(crosses) if each is not None]
        self.cross_sight_of_layer = [None if each is None else distinct.index(each) for each in crosses]
        self.cross_sights = nn.ModuleList(Sight(Everything(), kernel, fused=fused) for kernel, fused in distinct)
        self.final_norm = make_norm(config.block.norm, dim) if config.ends_in_norm() else nn.Identity()

    def views(self, queries: Layout, keys: Keys | None = None) -> list[View]:
        """What each block needs to know of the tokens' places; keys default to the queries themselves."""
        made = []
        for number, sight in enumerate(self.sights):
            seen = queries if keys is None else keys[self.reach_of_sight[number]]
            holder = self.sights[self.holder_of_sight[number]]
            made.append(sight(queries, seen, holder.relative))
        return [made[number] for number in self.sight_of_layer]

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
            HeddleError: `x` has another width, or the layout another batch; or there are `types` and no table of them.
        """
        width = self.width
        if not isinstance(x, Tensor) or not x.is_floating_point():
            raise wrong("Stack", "x", x, f"a tensor of floating-point numbers of shape [B T {width}]")
        if not isinstance(queries, Layout):
            raise wrong("Stack", "queries", queries, "a Layout")
        if x.dim() != 3 or x.shape[-1] != width or queries.position.shape != x.shape[:2]:
            raise HeddleError(
                f"a stack takes x [B T D] with D = {width} and a layout of the same [B T]; "
                f"x is {list(x.shape)}, the layout {list(queries.position.shape)}"
            )
        views = self.views(queries, keys)
        x = self.entry(x, queries, types)
        crossing = [] if memory is None else [sight(queries, memory.layout) for sight in self.cross_sights]
        routings: list[Routing] = []
        for number, block in enumerate(self.blocks):
            own, other = (STATELESS, STATELESS) if states is None else states[number]
            cross = self.cross_sight_of_layer[number]
            look = None if memory is None or cross is None else Across(memory.hidden, crossing[cross], other)
            x, routing = block(x, views[number], own, look)
            routings += [] if routing is None else [routing]
        return self.final_norm(x), tuple(routings)

    def forward(self, x: Float[Tensor, "B T d"], queries: Layout, **how: Any) -> Float[Tensor, "B T D"]:
        """Hidden vectors alone; arguments as of `run`."""
        return self.run(x, queries, **how)[0]

    @contextmanager
    def watched(self) -> Iterator[list[Tensor]]:
        """A list that fills, while entered, with what leaves the entry and then each block: L + 1 tensors [B T D] a pass."""
        kept: list[Tensor] = []

        def keep(module: nn.Module, given: Any, output: Any) -> None:
            kept.append(output[0] if isinstance(output, tuple) else output)

        hooks = [module.register_forward_hook(keep) for module in (self.entry, *self.blocks)]
        try:
            yield kept
        finally:
            for hook in hooks:
                hook.remove()

    def layers(self) -> Iterator[Block]:
        """The blocks, as what they are."""
        for block in self.blocks:
            assert isinstance(block, Block)
            yield block

    def new_states(self) -> list[tuple[State, State]]:
        """Empty memories, one pair per block."""
        return [block.new_state() for block in self.layers()]

    def check_length(self, length: int) -> None:
        """Refuse what learned positions cannot place.

        Raises:
            HeddleError: there are fewer of them.
        """
        if self.longest is not None and length > self.longest:
            raise HeddleError(
                f"{length} tokens are more than the {self.longest} positions this model has learned; "
                "shorten the text or let it be windowed"
            )

    def check_layout(self, layout: Layout) -> None:
        """The same of a layout, as far as the host knows: a row may be longer than each of the texts packed into it."""
        # A compiled graph is one for all lengths of documents, as long as nobody asks for them.
        if self.longest is not None and layout.width > self.longest:
            self.check_length(layout.width if layout.longest is None else layout.longest)


def _kernel(config: AttentionConfig, drops: DropoutConfig) -> tuple[str, bool]:
    """A layer's kernel, and whether torch's fused one knows all that the layer wants."""
    return config.kernel, config.cap is None and (drops == DropoutConfig() or not config.dropout)


def _way(config: Any, reach: int | None, dim: int, drops: DropoutConfig) -> tuple[Any, ...]:
    """What two layers must have in common to see alike; last what they must to share their relative positions."""
    if not isinstance(config, AttentionConfig):
        return reach, None, None
    relative = None if config.relative is None else (config.relative, config.heads, config.width(dim))
    return reach, _kernel(config, drops), relative


def make_sight(
    config: Any, dim: int, causal: bool = True, drops: DropoutConfig | None = None, holds: bool = True
) -> Sight:
    """The way of seeing that a mixer asks for in a stack of one direction or of both.

    `holds` says whether its relative positions are its own, or those of another sight.
    """
    rule: Rule = Causal() if causal else Everything()
    if not isinstance(config, AttentionConfig):
        return Sight(rule, None)
    if config.window is not None:
        rule = Causal() & Window(config.window) if causal else Window(config.window)
    kernel, fused = _kernel(config, DropoutConfig() if drops is None else drops)
    relative = make_relative(config.relative, config.heads, config.width(dim), causal) if holds else None
    return Sight(rule, kernel, relative, fused)
