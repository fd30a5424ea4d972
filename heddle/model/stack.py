"""A stack: entry, blocks, final norm. Masks are lowered once per pass and attention pattern, not once per layer."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from heddle.checks import at_least, checked, wrong
from heddle.config.layers import DropoutConfig
from heddle.config.model import StackConfig
from heddle.errors import HeddleError
from heddle.model.entry import Entry, check_vectors, first_matrix
from heddle.nn.block import WIRINGS, Block
from heddle.nn.cache import Cache, Keys
from heddle.nn.layout import Layout
from heddle.nn.norm import make_norm
from heddle.nn.output import EncoderOutput, Output
from heddle.nn.position import make_relative
from heddle.nn.scope import Scope
from heddle.nn.setting import Setting
from heddle.nn.state import FORGETS, BlockState


def distinct(items: Iterable[Any]) -> tuple[list[Any], list[int]]:
    """The distinct items, and for each item its index among them."""
    all_items = list(items)
    unique = list(dict.fromkeys(all_items))
    return unique, [unique.index(item) for item in all_items]


class Stack(nn.Module):
    """Causal (decoder) or bidirectional (encoder) blocks (L0-25, L1-23, L1-43, L1-76).

    A stack can be used alone: vectors [B T D] in, vectors [B T D] out. Each layer has an attention pattern (`patterns`), and
    layers with equal patterns share one scope per pass. The stack has the modules of relative positions: layers with equal
    relative positions share one module, even if their windows, kernels or dropout differ, unless each has its own table.

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
        self.prefix = causal and config.prefix
        setting = Setting(dim, causal, DropoutConfig() if dropout is None else dropout, self.prefix)
        # Width of the input; the entry may concatenate positions to it.
        self.width = config.entry.tokens_dim(dim)
        self.longest = context if config.entry.positions == "learned" else None
        self.entry = Entry(config.entry, dim, context, setting.drop(config.entry.dropout))
        self.blocks = nn.ModuleList(
            WIRINGS[block.wiring](block, setting.at(i)) for i, block in enumerate(config.blocks)
        )
        # Layers name their pattern by its index, since torch.compile cannot compare patterns.
        self.patterns, self.pattern_of = distinct(block.mixer.pattern for block in self.layers())
        crossing = [None if block.cross is None else block.cross.pattern for block in self.layers()]
        self.source_patterns, self.source_of = distinct(crossing)
        relatives = [relative for relative in dict.fromkeys(pattern.relative for pattern in self.patterns) if relative]
        self.relative_of = [
            relatives.index(pattern.relative) if pattern.relative else None for pattern in self.patterns
        ]
        self.relative = nn.ModuleList(make_relative(relative) for relative in relatives)
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
            cache: the layers' states of earlier tokens.
            encoded: the encoder's output, for cross-attention.
            types: token types, if the stack has a table of them.

        Raises:
            HeddleError: `x` has another width or dtype, the layout another shape, or prefixes that the stack does not support;
                `types` are passed without a table of types; or there are more tokens than learned positions.
        """
        self._check(x, layout)
        keys = None if cache is None else cache.keys
        mixer_scopes, cross_scopes = self.scopes(layout, keys), self.source_scopes(layout, encoded)
        states = [FORGETS] * len(self.blocks) if cache is None else cache.states
        x, routings = self.entry(x, layout, types), ()
        for block, scope, state, source in zip(self.blocks, mixer_scopes, states, cross_scopes, strict=True):
            x, block_routings = block(x, scope, state, source)
            routings += block_routings
        return Output(self.final_norm(x), routings)

    def scopes(self, queries: Layout, keys: Keys | None = None) -> list[Scope]:
        """The scope of each block's mixer in this pass; `keys` default to the queries."""
        scopes = []
        for pattern, number in zip(self.patterns, self.relative_of, strict=True):
            seen = queries if keys is None else keys[pattern.reach]
            relative = None if number is None else self.relative[number]
            scopes.append(pattern.scope(queries, seen, relative, training=self.training))
        return [scopes[index] for index in self.pattern_of]

    def source_scopes(self, queries: Layout, encoded: EncoderOutput | None) -> list[Scope | None]:
        """The scope of each block's cross-attention, None for a block without one."""
        if encoded is None:
            return [None] * len(self.blocks)
        keys, queries = encoded.layout, queries.together(encoded.layout.rows)
        scopes = [
            None if pattern is None else pattern.scope(queries, keys, source=encoded.hidden, training=self.training)
            for pattern in self.source_patterns
        ]
        return [scopes[index] for index in self.source_of]

    def _check(self, x: Tensor, layout: object) -> None:
        check_vectors(x, self.width, first_matrix(self.blocks))
        if not isinstance(layout, Layout):
            raise wrong("Stack", "layout", layout, "a Layout, such as Layout.padded(lengths, width)")
        layout.check_prefix(self.prefix)
        shape, tokens = list(layout.position.shape), list(x.shape[:2])
        if shape != tokens:  # a layout of one row would be broadcast (L1-15)
            raise HeddleError(f"the layout is for [B T] = {shape}, but the tokens are {tokens}")
        # Reading `longest` specialises a compiled graph to it, so read it only if the width alone does not decide:
        # a packed row may be longer than each of its texts.
        if self.longest is not None and layout.width > self.longest:
            longest = layout.width if layout.longest is None else layout.longest
            if longest > self.longest:
                raise HeddleError(f"{longest} tokens exceed the {self.longest} learned positions; shorten the text")

    @contextmanager
    def watched(self) -> Iterator[list[Tensor]]:
        """Collect the outputs of the entry and of each block inside the `with` block: L + 1 tensors [B T D] per pass."""
        outputs: list[Tensor] = []

        def record(module: nn.Module, inputs: Any, output: Any) -> None:
            outputs.append(output[0] if isinstance(output, tuple) else output)

        hooks = [module.register_forward_hook(record) for module in (self.entry, *self.blocks)]
        try:
            yield outputs
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
