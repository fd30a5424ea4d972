"""States of mixers between calls, such as the KV cache. The cache belongs to the caller, who can copy, fork or drop it."""

from collections.abc import Sequence
from copy import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn

from heddle.errors import HeddleError, article
from heddle.nn.layout import EVEN, Layout
from heddle.nn.numeric import on_device

ROUND = 64  # capacities and visible widths are multiples of this by default, so that few shapes are compiled


def rounded(length: int, multiple: int = ROUND) -> int:
    """`length` rounded up to the next capacity."""
    return -(-length // multiple) * multiple


class State:
    """The state of a mixer: tensors whose first axis is the rows; for attention the keys, [B K slots d], and the values,
    [B K slots e].

    A mixer first calls `read` for tensors that it can use unchanged; if there are none, it computes new ones and passes them
    to `update`.
    """

    stores = False  # whether it remembers tokens

    def __init__(self) -> None:
        self.buffers: tuple[Tensor, ...] = ()
        self.multiple = ROUND  # of its capacity, if it grows

    def read(self) -> tuple[Tensor, ...] | None:
        """Tensors of earlier calls to use unchanged: a recurrent state, or a source's keys and values; else None."""
        return None

    def update(self, new: tuple[Tensor, ...], queries: Layout, keys: Layout) -> tuple[Tensor, ...]:
        """Store the new tokens' tensors, located by `queries`, and return those of all tokens that `keys` describes."""
        return new

    def reserve(self, capacity: int) -> None:
        """Resize to `capacity` positions; there are no more tokens than that."""

    def select(self, rows: Sequence[int]) -> "State":
        """Copies of these rows."""
        chosen = copy(self)
        index = on_device(list(rows), self.buffers[0].device if self.buffers else None, torch.long)
        chosen.buffers = tuple(buffer.index_select(0, index) for buffer in self.buffers)
        return chosen

    def begin(self, like: "State", rows: int) -> None:
        """Start with `rows` rows without tokens, with the shapes of another state of the same mixer."""
        self.buffers = tuple(buffer.new_zeros(rows, *buffer.shape[1:]) for buffer in like.buffers)

    def join(self, other: "State") -> "State":
        """The rows of both, in order. Neither may be used afterwards."""
        both = copy(self)
        both.buffers = tuple(torch.cat(pair) for pair in zip(self.buffers, other.buffers, strict=True))
        return both

    def bytes(self) -> int:
        """Memory in bytes."""
        return sum(buffer.numel() * buffer.element_size() for buffer in self.buffers)


STATELESS = State()
"""Stores nothing: for training, evaluation and scoring."""


class Growing(State):
    """Stores every token: slot j of a row is its position j."""

    stores = True

    def reserve(self, capacity: int) -> None:
        # Zeros, not uninitialised memory: slots beyond a row's end get weight 0, but 0 · NaN is not 0.
        self.buffers = tuple(_grown(buffer, capacity) for buffer in self.buffers)

    def update(self, new: tuple[Tensor, ...], queries: Layout, keys: Layout) -> tuple[Tensor, ...]:
        self.buffers = self.buffers or _empty(new, rounded(keys.width, self.multiple))
        if queries.form == "newest" and self.buffers[0].shape[2] < keys.width:  # nothing was reserved
            self.buffers = tuple(torch.cat(pair, dim=2) for pair in zip(self.buffers, new, strict=True))
            return self.buffers
        if queries.form == "ragged":
            # Padding is written too, after its row's end; later tokens overwrite it before they become visible.
            row = torch.arange(queries.rows, device=new[0].device)[:, None]
            for buffer, tensor in zip(self.buffers, new, strict=True):
                buffer[row, :, queries.position] = tensor.transpose(1, 2)
        else:
            for buffer, tensor in zip(self.buffers, new, strict=True):
                buffer.index_copy_(2, queries.position[0], tensor)
        return tuple(buffer[:, :, : keys.width] for buffer in self.buffers)

    def join(self, other: "State") -> "State":
        _even(self, other)
        return super().join(other)


class Rolling(State):
    """Stores the last `window` positions of each row: slot p % window has position p.

    One extra slot, which is never read, receives padding, and tokens that leave the window within the same call.

    Args:
        window: number of positions to store.
    """

    stores = True

    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window

    def update(self, new: tuple[Tensor, ...], queries: Layout, keys: Layout) -> tuple[Tensor, ...]:
        """Return the new tensors alone [B K T d] on the first call, later the earlier slots and the new [B K window+T d]."""
        if not self.buffers:
            self.buffers = _empty(new, self.window + 1)
        # The keys tell whether this is the first call, so that tensors and layout cannot disagree.
        all_tokens = new
        if keys.width > queries.width:
            old = (buffer[:, :, : self.window] for buffer in self.buffers)
            all_tokens = tuple(torch.cat(pair, dim=2) for pair in zip(old, new, strict=True))
        if queries.form in EVEN:
            slot = queries.position[0, -self.window :] % self.window
            for buffer, tensor in zip(self.buffers, new, strict=True):
                buffer.index_copy_(2, slot, tensor[:, :, -self.window :])
        else:
            real = queries.real
            last = torch.where(real, queries.position, -1).amax(dim=1, keepdim=True)
            slot = torch.where(
                real & (queries.position > last - self.window), queries.position % self.window, self.window
            )
            row = torch.arange(queries.rows, device=slot.device)[:, None]
            for buffer, tensor in zip(self.buffers, new, strict=True):
                buffer[row, :, slot] = tensor.transpose(1, 2)
        return all_tokens


class Fixed(State):
    """Stores the result of the first call for all later ones: the keys and values of cross-attention.

    Its rows are sources, each of which several rows of the cache may read (`Cache.share`).
    """

    stores = True

    def read(self) -> tuple[Tensor, ...] | None:
        return self.buffers or None

    def update(self, new: tuple[Tensor, ...], queries: Layout, keys: Layout) -> tuple[Tensor, ...]:
        self.buffers = tuple(tensor.contiguous() for tensor in new)  # every later step reads them
        return self.buffers

    def select(self, rows: Sequence[int]) -> State:
        """Copies of these rows; all rows in order are not copied, since they are never written to."""
        all_rows = not self.buffers or list(rows) == list(range(self.buffers[0].shape[0]))
        return copy(self) if all_rows else super().select(rows)

    def begin(self, like: State, rows: int) -> None:
        """Not possible: the keys and values of a source are computed in a row's first call.

        Raises:
            HeddleError: always.
        """
        raise HeddleError(
            "rows that have not read their source cannot join rows that have; run a step of the new rows before they join"
        )

    def join(self, other: "State") -> "State":
        """The rows of both; shorter rows are filled with zeros, which their layout must mark as padding."""
        _even(self, other)
        return super().join(other)


class Carry(State):
    """Stores the state of a recurrent mixer, tensors [B ...]."""

    stores = True

    def read(self) -> tuple[Tensor, ...] | None:
        return self.buffers or None

    def update(self, new: tuple[Tensor, ...], queries: Layout, keys: Layout) -> tuple[Tensor, ...]:
        self.buffers = new
        return new


def _empty(like: tuple[Tensor, ...], slots: int) -> tuple[Tensor, ...]:
    return tuple(tensor.new_zeros(*tensor.shape[:2], slots, tensor.shape[3]) for tensor in like)


def _grown(buffer: Tensor, capacity: int) -> Tensor:
    missing = capacity - buffer.shape[2]
    if missing <= 0:
        return buffer[:, :, :capacity].contiguous()
    return torch.cat((buffer, buffer.new_zeros(*buffer.shape[:2], missing, buffer.shape[3])), dim=2)


def _even(*states: State) -> None:
    """Grow the tensors of all states to the same number of slots."""
    slots = max((buffer.shape[2] for state in states for buffer in state.buffers), default=0)
    for state in states:
        state.buffers = tuple(_grown(buffer, slots) for buffer in state.buffers)


class BlockState(NamedTuple):
    """The states of a block: of its mixer and, if it has one, of its cross-attention."""

    mixer: State = STATELESS
    cross: State = STATELESS


FORGETS = BlockState()
"""The state of a block that stores nothing."""


def empty_state(module: nn.Module) -> State:
    """An empty state of a mixer, or of the mixer inside a wrapper module.

    Raises:
        HeddleError: neither has `new_state`.
    """
    for inner in module.modules():
        if (new_state := getattr(inner, "new_state", None)) is not None:
            state: State = new_state()
            return state
    raise HeddleError(
        f"{article(type(module).__name__)} replaces a mixer but has no new_state, so a cache cannot store its state: "
        "wrap the original mixer, or generate without a cache"
    )
