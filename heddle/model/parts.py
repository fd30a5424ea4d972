"""A decoding step in parts, each of which is compiled once: the entry, the blocks and the exit.

Equal blocks share one compiled part, so compiling a deep model takes as long as compiling a shallow one. Every part gets the number
of tokens in each row, from which it computes the layouts itself, and the states of its block. A block that reads a source also gets
the positions and segments of the source's tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from heddle.config.kernels import PLAIN_UP_TO
from heddle.model.packages import Part
from heddle.model.transformer import Transformer
from heddle.nn.block import Block
from heddle.nn.cache import Cache, keys_of
from heddle.nn.layout import Form, Layout
from heddle.nn.output import Hidden
from heddle.nn.scope import Pattern
from heddle.nn.state import Carry, Fixed, Growing, State

Sizes = list[list[list[list[int | str]]]]
"""For each block, each of its states and each tensor of that: its sizes but the number of rows, and its dtype.

A size that differs from text to text has a name: `slots` for tokens, `source` for those of a source.
"""

SHORT = PLAIN_UP_TO["cpu"]  # keys, up to which attention runs another kernel than beyond


@dataclass(frozen=True)
class Kind:
    """The kind of a step. There are compiled parts for each.

    Attributes:
        several: whether there are several rows, any number of them; with sources, whether there are several of these.
        long: whether there is room for more than `SHORT` tokens in a row.
        share: the rows that read each source; 1 without sources.
    """

    several: bool
    long: bool
    share: int = 1

    @classmethod
    def of(cls, cache: Cache) -> "Kind":
        """The kind of a cache's next step."""
        slots = (buffer.shape[2] for state in cache.flat() if isinstance(state, Growing) for buffer in state.buffers)
        return cls(len(cache.lengths) > cache.share, max(slots, default=0) > SHORT, cache.share)

    @property
    def varies(self) -> bool:
        """Whether parts that read no source take any number of rows, at least two."""
        return self.several or self.share > 1


class Entry(nn.Module):
    """From tokens to the input of the first block."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.embedding, self.entry = model.embedding, model.last_stack().entry
        self.dtype = model.working_dtype()

    def forward(self, tokens: Int[Tensor, "B 1"], start: Int[Tensor, " B"]) -> list[Hidden]:
        """The vectors of the tokens after `start` tokens of each row."""
        return [self.entry(self.embedding(tokens).to(self.dtype), _queries(start))]


class Step(nn.Module):
    """A block's step.

    Args:
        block: the block.
        pattern: of its mixer.
        relative: its relative positions, if any.
        crossing: the pattern of its cross-attention, if it has any.
        counts: the number of tensors of each of its states.
    """

    def __init__(
        self,
        block: Block,
        pattern: Pattern,
        relative: nn.Module | None,
        crossing: Pattern | None,
        counts: Sequence[int],
    ) -> None:
        super().__init__()
        self.block, self.pattern, self.relative = block, pattern, relative
        self.crossing, self.counts = crossing, list(counts)

    def forward(self, x: Float[Tensor, "B 1 D"], start: Int[Tensor, " B"], *tensors: Tensor) -> list[Tensor]:
        """The block's output, and the new states of recurrent mixers; other states are written in place.

        Args:
            x: vectors of the next token of each row.
            start: how many tokens each row has.
            tensors: the block's states, in order; for cross-attention then the positions and segments [S N] of the sources.
        """
        state, places = self.block.new_state(), iter(tensors)
        for each, count in zip(state, self.counts, strict=True):
            each.buffers = tuple(next(places) for _ in range(count))
        queries, slots = _queries(start), state.mixer.buffers if isinstance(state.mixer, Growing) else ()
        visible = slots[0].shape[2] if slots else 1
        keys = keys_of(Cache([state], 0), queries, start, visible, x.device)[self.pattern.reach]
        source = None
        if self.crossing is not None:
            seen = Layout(next(places), next(places), "padded")
            source = self.crossing.scope(queries.together(seen.rows), seen)
        hidden, _ = self.block(x, self.pattern.scope(queries, keys, self.relative), state, source)
        return [hidden, *(buffer for each in state if isinstance(each, Carry) for buffer in each.buffers)]


class Exit(nn.Module):
    """From the last block's output to the scores of the next tokens."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.norm, self.head, self.embedding = model.last_stack().final_norm, model.language_head(), model.embedding
        self.vocab_size = model.vocab_size

    def forward(self, x: Float[Tensor, "B 1 D"]) -> list[Float[Tensor, "B V"]]:
        """The scores of the tokens that follow."""
        return [self.head(self.norm(x)[:, -1], None, self.embedding.weight)[..., : self.vocab_size]]


def sizes_of(cache: Cache) -> Sizes:
    """The sizes of the states of a cache that has read a token."""
    return [[[_sizes(buffer, state) for buffer in state.buffers] for state in block] for block in cache.states]


def parts_of(model: Transformer, sizes: Sizes, kind: Kind) -> list[Part]:
    """The parts of a decoder's step, in order."""
    stack, width = model.last_stack(), (model.config.dim, str(model.working_dtype()))
    parts, about = [Part(Entry(model), (kind.varies,))], (kind.several, kind.long, kind.share)
    for block, states, index, crossing in zip(stack.layers(), sizes, stack.pattern_of, stack.source_of, strict=True):
        number = stack.relative_of[index]
        relative = None if number is None else stack.relative[number]
        counts = list(map(len, states))
        step = Step(block, stack.patterns[index], relative, stack.source_patterns[crossing], counts)
        parts.append(Part(step, (*about, *width, states)))
    return [*parts, Part(Exit(model), (kind.varies, *width))]


def _queries(start: Int[Tensor, " B"]) -> Layout:
    """The layout of the next token of each row after `start` tokens."""
    position = start[:, None]
    form: Form = "uniform" if start.shape[0] == 1 else "ragged"
    return Layout(position, torch.zeros_like(position), form, unpadded=True)


def _sizes(buffer: Tensor, state: State) -> list[int | str]:
    sizes: list[int | str] = list(buffer.shape[1:])
    if isinstance(state, Growing | Fixed):
        sizes[1] = "slots" if isinstance(state, Growing) else "source"
    return [*sizes, str(buffer.dtype).removeprefix("torch.")]
