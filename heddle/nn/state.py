"""What a mixer remembers between calls. The cache belongs to the caller: it can be copied, forked for other rows, dropped."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from heddle.nn.layout import PADDING, Form, Layout

ROUND = 64  # capacities and visible widths come in multiples of this, so that few shapes are ever compiled


def rounded(length: int) -> int:
    """`length` rounded up to the next capacity."""
    return -(-length // ROUND) * ROUND


class State(ABC):
    """A mixer's memory. `extend` is the whole protocol."""

    @abstractmethod
    def extend(self, make: Callable[[], tuple[Tensor, ...]], at: Layout, width: int) -> tuple[Tensor, ...]:
        """Make the new tokens' tensors [B K T d], remember them at their positions, return the first `width` slots of all."""


class Stateless(State):
    """Remembers nothing: training, evaluation, scoring."""

    def extend(self, make: Callable[[], tuple[Tensor, ...]], at: Layout, width: int) -> tuple[Tensor, ...]:
        return make()


STATELESS = Stateless()


class Growing(State):
    """Remembers every token: slot j of a row holds its position j."""

    def __init__(self) -> None:
        self.buffers: tuple[Tensor, ...] = ()

    def reserve(self, capacity: int) -> None:
        """Make room for `capacity` positions, keeping what is there."""
        # Zeros, not empty memory: a slot beyond a row's end weighs exactly 0, and 0 · nan would not be 0.
        self.buffers = tuple(_grown(buffer, capacity) for buffer in self.buffers)

    def extend(self, make: Callable[[], tuple[Tensor, ...]], at: Layout, width: int) -> tuple[Tensor, ...]:
        new = make()
        if not self.buffers:
            shapes = [(*tensor.shape[:2], rounded(width), tensor.shape[3]) for tensor in new]
            self.buffers = tuple(tensor.new_zeros(shape) for tensor, shape in zip(new, shapes, strict=True))
        for buffer, tensor in zip(self.buffers, new, strict=True):
            if at.form == "ragged":
                # Padding writes too, at the positions after its row's end: later tokens overwrite it before anything sees it.
                row = torch.arange(at.rows, device=tensor.device)[:, None]
                buffer[row, :, at.position] = tensor.transpose(1, 2)
            else:
                buffer.index_copy_(2, at.position[0], tensor)
        return tuple(buffer[:, :, :width] for buffer in self.buffers)


def _grown(buffer: Tensor, capacity: int) -> Tensor:
    more = capacity - buffer.shape[2]
    return (
        buffer if more <= 0 else torch.cat((buffer, buffer.new_zeros(*buffer.shape[:2], more, buffer.shape[3])), dim=2)
    )


class Cache:
    """One state per mixer and, on the host, how many tokens each row holds (so that no step waits for the device).

    Args:
        states: one per mixer, in the order of the layers.
        rows: B.
    """

    def __init__(self, states: Sequence[Growing], rows: int) -> None:
        self.states = list(states)
        self.lengths = [0] * rows
        self.capacity = 0

    def advance(self, counts: Sequence[int], device: torch.device | str | None = None) -> tuple[Layout, Layout]:
        """Layouts of the next max(counts) tokens of each row, of which `counts[b]` are real, and of all keys so far."""
        start, width = torch.tensor(self.lengths, device=device), max(counts)
        fresh, even = not any(self.lengths), len(set(counts)) == 1
        uniform = even and len(set(self.lengths)) == 1
        end = max(self.lengths) + width
        # A first call sees just itself, so that it may take the fast path of a whole sequence.
        visible = end if fresh else rounded(end)
        self._reserve(visible)
        position = start[:, None] + torch.arange(width, device=device)
        if even:
            segment = torch.zeros_like(position)
        else:
            real = torch.arange(width, device=device) < torch.tensor(list(counts), device=device)[:, None]
            segment = torch.where(real, 0, PADDING)
        form: Form = ("plain" if even else "padded") if fresh else ("uniform" if uniform else "ragged")
        self.lengths = [length + count for length, count in zip(self.lengths, counts, strict=True)]
        return Layout(position, segment, form), Layout.plain(len(self.lengths), visible, device)

    def _reserve(self, length: int) -> None:
        if rounded(length) > self.capacity:
            self.capacity = max(rounded(length), 2 * self.capacity if self.capacity else 0)
            for state in self.states:
                state.reserve(self.capacity)

    def select(self, rows: Sequence[int]) -> "Cache":
        """A new cache holding copies of these rows: finished ones leave, a row named twice is forked."""
        chosen = Cache([Growing() for _ in self.states], len(rows))
        chosen.lengths = [self.lengths[row] for row in rows]
        chosen.capacity = self.capacity
        for new, old in zip(chosen.states, self.states, strict=True):
            index = [torch.tensor(list(rows), dtype=torch.long, device=buffer.device) for buffer in old.buffers]
            new.buffers = tuple(buffer.index_select(0, i) for buffer, i in zip(old.buffers, index, strict=True))
        return chosen

    def join(self, other: "Cache") -> "Cache":
        """A new cache with the rows of both, one after the other: new rows come in. Both are spent."""
        if not self.lengths:
            return other
        both = Cache([Growing() for _ in self.states], len(self.lengths) + len(other.lengths))
        both.lengths = self.lengths + other.lengths
        both.capacity = max(self.capacity, other.capacity)
        for new, *old in zip(both.states, self.states, other.states, strict=True):
            for state in old:
                state.reserve(both.capacity)
            new.buffers = tuple(torch.cat(pair) for pair in zip(old[0].buffers, old[1].buffers, strict=True))
        return both

    def bytes(self) -> int:
        """Memory held, in bytes."""
        return sum(buffer.numel() * buffer.element_size() for state in self.states for buffer in state.buffers)
