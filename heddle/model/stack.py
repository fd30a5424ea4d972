"""A stack: entry, blocks, final norm. Masks are lowered once per forward pass, not once per layer."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor, nn

from heddle.config.model import AttentionConfig, StackConfig
from heddle.nn.attention import Sight, View
from heddle.nn.block import Block
from heddle.nn.dropout import Dropout
from heddle.nn.layout import Layout
from heddle.nn.mask import Rule
from heddle.nn.norm import make_norm
from heddle.nn.position import LearnedPositions, Rotary
from heddle.nn.state import STATELESS, State


class Entry(nn.Module):
    """What joins the token embeddings before the first block: absolute positions, summed (L0-16, D-28), and dropout."""

    def __init__(self, positions: str, context: int, dim: int, dropout: float) -> None:
        super().__init__()
        self.positions = LearnedPositions(context, dim) if positions == "learned" else None
        self.dropout = Dropout(dropout)

    def forward(self, x: Float[Tensor, "B T D"], layout: Layout) -> Float[Tensor, "B T D"]:
        return self.dropout(x if self.positions is None else x + self.positions(layout.position).to(x.dtype))


class Stack(nn.Module):
    """`depth` blocks that see by one rule (L0-25, L1-23). Usable bare: vectors [B T D] in, vectors [B T D] out."""

    def __init__(self, config: StackConfig, dim: int, context: int, rule: Rule) -> None:
        super().__init__()
        self.entry = Entry(config.entry.positions, context, dim, config.entry.dropout)
        self.sight = make_sight(config.block.mixer, dim, rule)
        self.blocks = nn.ModuleList(Block(config.block, dim) for _ in range(config.depth))
        self.final_norm = make_norm(config.block.norm, dim) if config.ends_in_norm() else nn.Identity()

    def view(self, queries: Layout, keys: Layout | None = None) -> View:
        """What the blocks need to know of the tokens' places; keys default to the queries themselves."""
        return self.sight(queries, queries if keys is None else keys)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        queries: Layout,
        keys: Layout | None = None,
        states: Sequence[State] | None = None,
    ) -> Float[Tensor, "B T D"]:
        view = self.view(queries, keys)
        x = self.entry(x, queries)
        for number, block in enumerate(self.blocks):
            x = block(x, view, STATELESS if states is None else states[number])
        return self.final_norm(x)


def make_sight(config: AttentionConfig, dim: int, rule: Rule) -> Sight:
    """The way of seeing that an attention config asks for under a stack's rule."""
    rotary = None if config.relative is None else Rotary(config.width(dim), config.relative.base)
    return Sight(rule, config.kernel, rotary)
