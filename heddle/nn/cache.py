"""The cache of a decoder: the states of its blocks, and the position of the next tokens in each row."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, groupby

import torch
from torch import Tensor

from heddle.checks import wrong
from heddle.display import brief
from heddle.errors import HeddleError
from heddle.nn.layout import PADDING, Form, Layout
from heddle.nn.numeric import on_device
from heddle.nn.output import EncoderOutput
from heddle.nn.state import ROUND, BlockState, Fixed, Growing, Rolling, State, rounded


@dataclass(frozen=True)
class Keys:
    """Layouts of the keys of a call: `keys[w]` for states with a window of w, `keys[None]` for states of all tokens.

    Attributes:
        layouts: one per window in the cache, and one under None.
    """

    layouts: dict[int | None, Layout]

    def __getitem__(self, window: int | None) -> Layout:
        return self.layouts[window]


class Cache:
    """The states of a decoder's blocks (such as the KV cache) for each row and, on the host, the number of tokens in each row.

    The lengths are also on the device, where each step adds to them: so no step copies them there or waits for the device.

    Args:
        states: one per block, in layer order.
        rows: B.
        longest: maximum tokens of a row; None: no limit.
        prefix: whether the tokens of a row's first call are its prefix, which is bidirectional; all later tokens are causal.
        multiple: capacities and visible widths are rounded up to multiples of this; small ones read and copy less memory, large
            ones need fewer compiled graphs. Off the CPU, one token in rows of equal length sees the used slots alone, unmasked.

    Attributes:
        encoded: an encoder's output, from the first call on.
        origin: an object that caches have in common whose rows are copies or a part of one cache's, and no others.
        share: number of neighbouring rows that read each row of `encoded`.
        queries: layout of the tokens of the last `advance`.
        keys: layouts of the keys that those tokens may attend to.
    """

    def __init__(
        self,
        states: Sequence[BlockState],
        rows: int,
        longest: int | None = None,
        prefix: bool = False,
        multiple: int = ROUND,
    ) -> None:
        self.states = list(states)
        self.longest, self.prefix, self.multiple = longest, prefix, multiple
        for state in self.flat():
            state.multiple = multiple
        self.encoded: EncoderOutput | None = None
        self.origin = object()
        self.share = 1
        self.lengths = [0] * rows
        # The lengths on the device of the last step; empty: they have changed since then.
        self._starts: dict[torch.device | str | None, Tensor] = {}
        self.capacity = 0
        self.queries: Layout | None = None
        self.keys: Keys | None = None

    def __repr__(self) -> str:
        return f"Cache(layers={len(self.states)}, rows={len(self.lengths)}, lengths={brief(self.lengths, 50)})"

    def advance(
        self, counts: Sequence[int], device: torch.device | str | None = None, *, compiled: bool = False
    ) -> Layout:
        """Make room for the next tokens and return their layout: max(counts) in each row, of which `counts[b]` are real.

        Pass the layout to the next call of the model. Rows with fewer tokens than others end in padding. `compiled` steps get
        fewer kinds of layouts: several rows are always `ragged`, and all slots are visible.

        Raises:
            HeddleError: there is not one count per row, a count is not a whole number of at least 0, or a row becomes longer
                than the model's learned positions.
        """
        counts = self._checked(counts)
        start, width = self._starts.get(device), max(counts, default=0)
        start = on_device(self.lengths, device, torch.long) if start is None else start
        fresh, even = not any(self.lengths), len(set(counts)) <= 1
        uniform = even and len(set(self.lengths)) == 1 and not (compiled and len(counts) > 1)
        longest = max(self.lengths, default=0) + width
        # A CPU prepares its kernels for each number of keys. Compiled steps see all slots, so they need a mask.
        newest = uniform and width == 1 and not compiled and (self.multiple == 1 or start.device.type != "cpu")
        # The first call sees only its own tokens, so it can take the fast path for whole sequences.
        visible = longest if fresh or newest else rounded(longest, self.multiple)
        if not newest or self.multiple > 1:  # else the states grow by exactly one slot
            self._reserve(visible, ahead=not compiled)
        visible = max(visible, self.capacity) if compiled else visible
        position = start[:, None] + torch.arange(width, device=device)
        segment, end = torch.zeros_like(position), start + width
        if not even:
            count = on_device(counts, device, torch.long)
            segment = torch.where(torch.arange(width, device=device) < count[:, None], 0, PADDING)
            end = start + count
        later: Form = "newest" if newest else "uniform" if uniform else "ragged"
        form: Form = ("whole" if even else "padded") if fresh else later
        queries = Layout(position, segment, form, unpadded=even)
        prefix_lengths = [0 if length else count for length, count in zip(self.lengths, counts, strict=True)]
        if self.prefix and max(prefix_lengths, default=0) > 1:  # a prefix of one token is causal
            queries = queries.prefixed(on_device(prefix_lengths, device)[:, None])
        keys = keys_of(self, queries, None if fresh else start, visible, device)
        self.lengths = [length + count for length, count in zip(self.lengths, counts, strict=True)]
        self._starts = {device: end}
        self.queries, self.keys = queries, Keys(keys)
        return queries

    def _checked(self, counts: Sequence[int]) -> list[int]:
        if not isinstance(counts, Sequence) or isinstance(counts, str):
            raise wrong("cache.advance", "counts", counts, "a list of whole numbers")
        if len(counts) != len(self.lengths):
            raise HeddleError(
                f"{len(counts)} rows of new tokens for a cache of {len(self.lengths)} rows; give one count per row"
            )
        if odd := [count for count in counts if not isinstance(count, int) or count < 0]:
            raise wrong("cache.advance", "counts", odd[0], "whole numbers of at least 0")
        longest = max((length + count for length, count in zip(self.lengths, counts, strict=True)), default=0)
        if self.longest is not None and longest > self.longest:
            raise HeddleError(f"{longest} tokens exceed the {self.longest} learned positions; shorten the text")
        return list(counts)

    def flat(self) -> list[State]:
        """The states of all blocks, in order."""
        return list(chain.from_iterable(self.states))

    @property
    def windows(self) -> set[int]:
        """The windows of its states."""
        return {state.window for state in self.flat() if isinstance(state, Rolling)}

    def reserve_step(self, ahead: bool = True) -> None:
        """Make room for one more token in each row; with `ahead`, for at least twice the previous capacity."""
        self._checked([1] * len(self.lengths))
        self._reserve(max(self.lengths) + 1, ahead)

    def count_step(self) -> None:
        """Count one more token in each row, which has been stored."""
        self.lengths, self._starts = [length + 1 for length in self.lengths], {}

    def _reserve(self, length: int, ahead: bool = True) -> None:
        """Make room for `length` tokens in each row; with `ahead`, for at least twice the previous capacity."""
        if rounded(length, self.multiple) > self.capacity:
            self.capacity = max(rounded(length, self.multiple), 2 * self.capacity if ahead else 0)
            for state in self.flat():
                state.reserve(self.capacity)

    def select(self, rows: Sequence[int]) -> "Cache":
        """A new cache with copies of these rows: leave out finished rows, repeat a row to fork it.

        Neighbouring forks of a row share its encoder output.
        """
        sources, share = [row // self.share for row in rows], 1
        if self.encoded is not None:
            sources, share = _shared(sources)
        return self._selected(rows, sources, share)

    def _selected(self, rows: Sequence[int], sources: Sequence[int], share: int) -> "Cache":
        """These rows; each `share` neighbours read one of these sources."""
        states = [
            BlockState(*(state.select(sources if isinstance(state, Fixed) else rows) for state in block))
            for block in self.states
        ]
        chosen = Cache(states, len(rows), self.longest, self.prefix, self.multiple)
        chosen.encoded = None if self.encoded is None else self.encoded.select(sources)
        chosen.share, chosen.origin = share, self.origin
        chosen.lengths = [self.lengths[row] for row in rows]
        chosen.capacity = self.capacity
        # Shrink: free slots are copied in each `select` and `join`, and compiled steps read them.
        needed = max(rounded(max(chosen.lengths, default=0), self.multiple), self.multiple)
        if 4 * needed <= chosen.capacity:
            chosen.capacity = 2 * needed
            for state in chosen.flat():
                state.reserve(chosen.capacity)
        return chosen

    @property
    def truncates(self) -> bool:
        """Whether tokens can be removed again: every state stores each token in a separate slot."""
        return all(isinstance(state, Growing | Fixed) for state in self.flat() if state.stores)

    def truncate(self, lengths: Sequence[int]) -> None:
        """Forget all but the first `lengths[b]` tokens of each row.

        Raises:
            HeddleError: there is not one length per row, a row has fewer tokens, or a state cannot remove tokens.
        """
        if len(lengths) != len(self.lengths) or any(new > old for new, old in zip(lengths, self.lengths, strict=True)):
            raise HeddleError(f"rows of {self.lengths} tokens cannot be cut to {list(lengths)}")
        if not self.truncates:
            raise HeddleError("a recurrent state or a window cannot remove tokens; start from an empty cache")
        self.lengths, self._starts = list(lengths), {}

    def join(self, other: "Cache") -> "Cache":
        """A new cache with the rows of both, in order. Neither may be used afterwards.

        Raises:
            HeddleError: some rows have read an encoder's output, and others have not.
        """
        if not self.lengths:
            return other
        if not other.lengths:
            return self
        first, second = self._unshared(), other._unshared()
        for first_state, second_state in zip(first.flat(), second.flat(), strict=True):
            for fresh, used, rows in (
                (first_state, second_state, len(self.lengths)),
                (second_state, first_state, len(other.lengths)),
            ):
                if used.buffers and not fresh.buffers:
                    fresh.begin(used, rows)
        pairs = zip(first.states, second.states, strict=True)
        states = [
            BlockState(*(first_state.join(second_state) for first_state, second_state in zip(*pair, strict=True)))
            for pair in pairs
        ]
        both = Cache(states, len(self.lengths) + len(other.lengths), self.longest, self.prefix, self.multiple)
        if first.encoded is not None and second.encoded is not None:
            both.encoded = first.encoded.join(second.encoded)
        both.lengths = self.lengths + other.lengths
        both.capacity = max(first.capacity, second.capacity)
        return both

    def _unshared(self) -> "Cache":
        """A cache in which no rows share a source."""
        if self.share == 1:
            return self
        rows = range(len(self.lengths))
        return self._selected(rows, [row // self.share for row in rows], 1)

    def bytes(self) -> int:
        """Memory in bytes."""
        encoded = 0 if self.encoded is None else self.encoded.hidden.numel() * self.encoded.hidden.element_size()
        return encoded + sum(state.bytes() for state in self.flat())


def _shared(sources: Sequence[int]) -> tuple[list[int], int]:
    """The distinct sources of neighbouring rows, and the number of rows of each; all sources and 1 if these numbers differ."""
    runs = [(source, len(list(run))) for source, run in groupby(sources)]
    share = runs[0][1] if runs else 1
    if any(length != share for _, length in runs):
        return list(sources), 1
    return [source for source, _ in runs], share


def keys_of(
    cache: Cache, queries: Layout, start: Tensor | None, visible: int, device: torch.device | str | None
) -> dict[int | None, Layout]:
    """Layouts of the keys after `start` tokens per row (None: after none), of which the first `visible` slots may be seen."""
    keys: dict[int | None, Layout] = {None: Layout.whole(queries.rows, visible, device)}
    for window in cache.windows:
        keys[window] = queries if start is None else _ring(start, window, queries)
    return keys


def _ring(start: Tensor, window: int, queries: Layout) -> Layout:
    """Layout of the slots of a `Rolling` after `start` tokens per row, followed by the queries."""
    newest = start[:, None] - 1
    # The largest position before the start that maps to slot j; negative if the slot is still empty.
    position_in_slot = newest - (newest - torch.arange(window, device=start.device)) % window
    segment = torch.where(position_in_slot >= 0, 0, PADDING)
    position = torch.cat((position_in_slot.clamp(min=0), queries.position), dim=1)
    return Layout(position, torch.cat((segment, queries.segment), dim=1), "packed")
