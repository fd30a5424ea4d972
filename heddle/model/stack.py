"""A stack: entry, blocks, final norm. Masks are lowered once per pass and attention pattern, not once per layer."""

from collections.abc import Iterator
from contextlib import contextmanager
from math import sqrt
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from heddle.checks import at_least, checked, wrong
from heddle.config.layers import DropoutConfig
from heddle.config.model import EntryConfig, StackConfig
from heddle.errors import HeddleError
from heddle.nn.block import Block, make_block
from heddle.nn.dropout import Dropout
from heddle.nn.embedding import Embedding, check_ids
from heddle.nn.layout import Layout
from heddle.nn.norm import make_norm
from heddle.nn.numeric import wide_dtype
from heddle.nn.output import Output
from heddle.nn.position import SinusoidalPositions, make_relative
from heddle.nn.scope import Pattern, Scope
from heddle.nn.setting import Setting
from heddle.nn.state import FORGETS, BlockState, Cache, Keys, Memory


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

    Usable bare: vectors [B T D] in, vectors [B T D] out. Each layer has an attention pattern (`patterns`); layers with equal
    ones share what is prepared for a pass. The stack owns the modules of relative positions, one for all layers that say the
    same, whatever their windows, kernels and dropout.

    Args:
        config: the blocks, the entry, the final norm.
        dim: D.
        context: how many positions there are where positions are learned.
        causal: whether tokens see only what comes before them.
        dropout: how dropped values are dropped.
    """

    @checked(dim=at_least(1), context=at_least(1))
    def __init__(
        self, config: StackConfig, dim: int, context: int, causal: bool = True, dropout: DropoutConfig | None = None
    ) -> None:
        super().__init__()
        setting = Setting(dim, causal, DropoutConfig() if dropout is None else dropout)
        # Of what is given; positions that are concatenated to it come with the entry.
        self.width = config.entry.token_dim(dim)
        self.longest = context if config.entry.positions == "learned" else None
        self.entry = Entry(config.entry, dim, context, setting.drop(config.entry.dropout))
        self.blocks = nn.ModuleList(make_block(block, setting) for block in config.blocks)
        self.patterns: list[Pattern] = [block.mixer.pattern for block in self.layers()]
        self.source_patterns = [None if block.cross is None else block.cross.pattern for block in self.layers()]
        relatives = [each for each in dict.fromkeys(pattern.relative for pattern in self.patterns) if each]
        self.relative = nn.ModuleList(make_relative(each) for each in relatives)
        # By number, since a compiler cannot compare patterns: the first layer with the same one, and its relative positions.
        self.like = [self.patterns.index(pattern) for pattern in self.patterns]
        self.source_like = [self.source_patterns.index(pattern) for pattern in self.source_patterns]
        self.relative_of = [relatives.index(each.relative) if each.relative else None for each in self.patterns]
        self.final_norm = make_norm(config.block.norm, dim) if config.ends_in_norm() else nn.Identity()

    def forward(
        self,
        x: Float[Tensor, "B T d"],
        layout: Layout,
        cache: Cache | None = None,
        memory: Memory | None = None,
        types: Int[Tensor, "B T"] | None = None,
    ) -> Output:
        """Hidden vectors [B T D], and what the routers did.

        Args:
            x: the tokens' vectors.
            layout: where they are; with a cache, what `cache.advance` gave.
            cache: what the layers remember of earlier tokens.
            memory: the encoder's output, for cross-attention.
            types: the tokens' types, where there is a table of them.

        Raises:
            HeddleError: `x` has another width, or the layout another batch; or there are `types` and no table of them.
        """
        self._check(x, layout)
        keys = None if cache is None else cache.keys
        own, other = self.scopes(layout, keys), self.source_scopes(layout, memory)
        states = [FORGETS] * len(self.blocks) if cache is None else cache.states
        x, routings = self.entry(x, layout, types), ()
        for block, scope, state, source in zip(self.blocks, own, states, other, strict=True):
            x, more = block(x, scope, state, source)
            routings += more
        return Output(self.final_norm(x), routings)

    def scopes(self, queries: Layout, keys: Keys | None = None) -> list[Scope]:
        """What each block's mixer attends to in this pass; keys default to the queries themselves."""
        scopes: list[Scope] = []
        for layer, (pattern, first, number) in enumerate(zip(self.patterns, self.like, self.relative_of, strict=True)):
            seen = queries if keys is None else keys[pattern.reach]
            relative = None if number is None else self.relative[number]
            scopes.append(
                scopes[first] if first < layer else pattern.scope(queries, seen, relative, training=self.training)
            )
        return scopes

    def source_scopes(self, queries: Layout, memory: Memory | None) -> list[Scope | None]:
        """What each block's cross-attention attends to; None where there is none."""
        scopes: list[Scope | None] = []
        for layer, (pattern, first) in enumerate(zip(self.source_patterns, self.source_like, strict=True)):
            if memory is None or pattern is None:
                scopes.append(None)
            elif first < layer:
                scopes.append(scopes[first])
            else:
                scope = pattern.scope(queries, memory.layout, source=memory.hidden, training=self.training)
                scopes.append(scope)
        return scopes

    def _check(self, x: object, layout: object) -> None:
        if not isinstance(x, Tensor) or not x.is_floating_point():
            raise wrong("Stack", "x", x, f"a tensor of floating-point numbers of shape [B T {self.width}]")
        if not isinstance(layout, Layout):
            raise wrong("Stack", "layout", layout, "a Layout")
        if x.dim() != 3 or x.shape[-1] != self.width or layout.position.shape != x.shape[:2]:
            raise HeddleError(
                f"a stack takes x [B T D] with D = {self.width} and a layout of the same [B T]; "
                f"x is {list(x.shape)}, the layout {list(layout.position.shape)}"
            )

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

    def new_states(self) -> list[BlockState]:
        """Empty memories, one for each block."""
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
