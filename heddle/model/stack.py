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
from heddle.nn.state import FORGETS, BlockState, Cache, EncoderOutput, Keys


class Entry(nn.Module):
    """What is applied to token embeddings before the first block: positions, token types, a norm, dropout.

    Positions are added to the token vectors or concatenated with them (L0-16, D-28).

    Raises:
        HeddleError: in `forward`, if types are passed and there is no table of them.
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
                raise HeddleError("this stack has no table of token types: leave out types, or set entry.types")
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
        """Vectors of the tokens' positions: looked up in a learned table, or computed in fp32 or wider."""
        assert self.positions is not None
        at = layout.position + self.offset
        if isinstance(self.positions, SinusoidalPositions):
            return self.positions(at, wide_dtype(dtype)).to(dtype)
        if layout.form not in ("plain", "uniform"):
            # Padding may lie beyond the table. It gets the first row and is seen by nothing.
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
    """Blocks that look back (a decoder) or both ways (an encoder) (L0-25, L1-23, L1-76).

    A stack can be used alone: vectors [B T D] in, vectors [B T D] out. Each layer has an attention pattern (`patterns`), and
    layers with equal patterns share one scope per pass. The stack has the modules of relative positions: layers with equal
    relative positions share one module, even if their windows, kernels or dropout differ.

    Args:
        config: the blocks, the entry, the final norm.
        dim: D.
        context: number of positions, if positions are learned.
        causal: whether a token sees only itself and the tokens before it.
        dropout: the dropout convention.
    """

    @checked(dim=at_least(1), context=at_least(1))
    def __init__(
        self, config: StackConfig, dim: int, context: int, causal: bool = True, dropout: DropoutConfig | None = None
    ) -> None:
        super().__init__()
        setting = Setting(dim, causal, DropoutConfig() if dropout is None else dropout)
        # Width of the input; the entry may concatenate positions to it.
        self.width = config.entry.token_dim(dim)
        self.longest = context if config.entry.positions == "learned" else None
        self.entry = Entry(config.entry, dim, context, setting.drop(config.entry.dropout))
        self.blocks = nn.ModuleList(make_block(block, setting) for block in config.blocks)
        self.patterns: list[Pattern] = [block.mixer.pattern for block in self.layers()]
        self.source_patterns = [None if block.cross is None else block.cross.pattern for block in self.layers()]
        relatives = [each for each in dict.fromkeys(pattern.relative for pattern in self.patterns) if each]
        self.relative = nn.ModuleList(make_relative(each) for each in relatives)
        # By index, since torch.compile cannot compare patterns: the first layer with an equal pattern, and its relative positions.
        self.like = [self.patterns.index(pattern) for pattern in self.patterns]
        self.source_like = [self.source_patterns.index(pattern) for pattern in self.source_patterns]
        self.relative_of = [relatives.index(each.relative) if each.relative else None for each in self.patterns]
        self.final_norm = make_norm(config.block.norm, dim) if config.ends_in_norm() else nn.Identity()

    def forward(
        self,
        x: Float[Tensor, "B T d"],
        layout: Layout,
        cache: Cache | None = None,
        encoded: EncoderOutput | None = None,
        types: Int[Tensor, "B T"] | None = None,
    ) -> Output:
        """Hidden vectors [B T D], and the routers' reports.

        Args:
            x: the tokens' vectors.
            layout: the tokens' layout; with a cache, the one that `cache.advance` returned.
            cache: what the layers remember of earlier tokens.
            encoded: the encoder's output, for cross-attention.
            types: token types, if the stack has a table of them.

        Raises:
            HeddleError: `x` has another width, the layout another shape, or `types` are passed and there is no table of them.
        """
        self._check(x, layout)
        keys = None if cache is None else cache.keys
        own, other = self.scopes(layout, keys), self.source_scopes(layout, encoded)
        states = [FORGETS] * len(self.blocks) if cache is None else cache.states
        x, routings = self.entry(x, layout, types), ()
        for block, scope, state, source in zip(self.blocks, own, states, other, strict=True):
            x, more = block(x, scope, state, source)
            routings += more
        return Output(self.final_norm(x), routings)

    def scopes(self, queries: Layout, keys: Keys | None = None) -> list[Scope]:
        """The scope of each block's mixer in this pass; `keys` default to the queries."""
        scopes: list[Scope] = []
        for layer, (pattern, first, number) in enumerate(zip(self.patterns, self.like, self.relative_of, strict=True)):
            seen = queries if keys is None else keys[pattern.reach]
            relative = None if number is None else self.relative[number]
            scopes.append(
                scopes[first] if first < layer else pattern.scope(queries, seen, relative, training=self.training)
            )
        return scopes

    def source_scopes(self, queries: Layout, encoded: EncoderOutput | None) -> list[Scope | None]:
        """The scope of each block's cross-attention, None for a block without one."""
        scopes: list[Scope | None] = []
        for layer, (pattern, first) in enumerate(zip(self.source_patterns, self.source_like, strict=True)):
            if encoded is None or pattern is None:
                scopes.append(None)
            elif first < layer:
                scopes.append(scopes[first])
            else:
                scope = pattern.scope(queries, encoded.layout, source=encoded.hidden, training=self.training)
                scopes.append(scope)
        return scopes

    def _check(self, x: object, layout: object) -> None:
        if not isinstance(x, Tensor) or not x.is_floating_point():
            raise wrong("Stack", "x", x, f"a tensor of floating-point numbers of shape [B T {self.width}]")
        if not isinstance(layout, Layout):
            raise wrong("Stack", "layout", layout, "a Layout")
        if x.dim() != 3 or x.shape[-1] != self.width or layout.position.shape != x.shape[:2]:
            raise HeddleError(
                f"Stack: x must be [B T {self.width}] and the layout [B T]; "
                f"x is {list(x.shape)}, the layout {list(layout.position.shape)}"
            )

    @contextmanager
    def watched(self) -> Iterator[list[Tensor]]:
        """While entered, collect the outputs of the entry and of each block in a list: L + 1 tensors [B T D] per pass."""
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
        """The blocks, typed."""
        for block in self.blocks:
            assert isinstance(block, Block)
            yield block

    def new_states(self) -> list[BlockState]:
        """Empty states, one per block."""
        return [block.new_state() for block in self.layers()]

    def check_length(self, length: int) -> None:
        """Refuse sequences that are longer than the learned positions.

        Raises:
            HeddleError: `length` exceeds them.
        """
        if self.longest is not None and length > self.longest:
            raise HeddleError(
                f"{length} tokens exceed the {self.longest} positions that this model has learned; shorten the text"
            )

    def check_layout(self, layout: Layout) -> None:
        """`check_length` for a layout, as far as the host knows: a packed row may be longer than each of its texts."""
        # Reading `longest` specialises a compiled graph to it, so read it only if the width alone does not decide.
        if self.longest is not None and layout.width > self.longest:
            self.check_length(layout.width if layout.longest is None else layout.longest)
