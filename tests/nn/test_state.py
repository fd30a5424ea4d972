"""The cache: what it hands out, how it grows, what it costs."""

import json
from typing import Any

import pytest
import torch
from torch import Tensor

from heddle.nn import Cache, numeric
from heddle.nn.cache import Keys
from heddle.nn.kernels.base import dead_queries
from heddle.nn.layout import PADDING, Layout
from heddle.nn.mask import Causal, Mask
from heddle.nn.state import FORGETS, ROUND, STATELESS, BlockState, Carry, Fixed, Growing, Rolling, State, rounded
from tests import programs


def numbered(position: Tensor) -> Tensor:
    """Keys [B 1 T 1] that say where they stand."""
    return position[:, None, :, None].double()


def write(cache: Cache, counts: tuple[int, ...]) -> tuple[Layout, Layout, list[Tensor]]:
    queries = cache.advance(counts)
    assert cache.keys is not None
    keys = cache.keys[None]
    slots = [block.mixer.update((numbered(queries.position),), queries, keys)[0] for block in cache.states]
    return queries, keys, slots


def advanced(cache: Cache, counts: tuple[int, ...]) -> tuple[Layout, Keys]:
    queries = cache.advance(counts)
    assert cache.keys is not None
    return queries, cache.keys


def cache_of(rows: int, states: int = 2) -> Cache:
    return Cache([BlockState(Growing()) for _ in range(states)], rows)


@pytest.mark.parametrize(("length", "capacity"), [(0, 0), (1, 64), (64, 64), (65, 128), (1000, 1024)])
def test_capacities_are_round(length: int, capacity: int) -> None:
    assert rounded(length) == capacity
    assert capacity % ROUND == 0


def test_the_first_call_sees_just_itself() -> None:
    queries, keys, _ = write(cache_of(2), (5, 5))
    assert (queries.form, keys.form) == ("whole", "whole")
    assert (queries.width, keys.width) == (5, 5)
    ragged, keys, _ = write(cache_of(2), (5, 2))
    assert (ragged.form, keys.width) == ("padded", 5)
    assert ragged.segment.tolist() == [[0] * 5, [0, 0, -1, -1, -1]]


def test_compiled_steps_of_one_row_see_no_slot_after_it() -> None:
    """Not even where rows are cut to the slot, as in beam search, and a longer row has just left."""
    cache = Cache([BlockState(Growing())], 2, multiple=1)
    write(cache, (10, 4))
    for _ in range(3):
        cache.advance((1, 1), compiled=True)
    left = cache.select([1])
    queries = left.advance((1,), compiled=True)
    assert left.keys is not None
    keys = left.keys[None]
    assert keys.width > 8
    assert queries.form != "newest", "its mask is of the slots up to position 7, while all of them are visible"


def test_room_for_a_long_row_is_given_back_when_it_leaves() -> None:
    cache = cache_of(2)
    write(cache, (1000, 3))
    write(cache, (1, 1))
    assert cache.capacity >= 1024
    left = cache.select([1])
    assert left.capacity == 2 * ROUND
    assert left.bytes() * 8 <= cache.bytes() / 2
    _, _, (values, _) = write(left, (1,))
    assert values[0, 0, :5, 0].tolist() == [0, 1, 2, 3, 4]
    assert cache.select([0]).capacity == cache.capacity


def test_later_calls_stand_after_what_there_is() -> None:
    cache = cache_of(2)
    write(cache, (3, 3))
    queries, keys, _ = write(cache, (2, 2))
    assert (queries.form, queries.position.tolist()) == ("uniform", [[3, 4], [3, 4]])
    assert keys.width == ROUND
    queries, _, _ = write(cache, (1, 2))
    assert (queries.form, queries.position.tolist(), queries.segment.tolist()) == (
        "ragged",
        [[5, 6], [5, 6]],
        [[0, -1], [0, 0]],
    )
    queries, _, _ = write(cache, (1, 1))
    assert (queries.form, queries.position.tolist()) == ("ragged", [[6], [7]])
    assert cache.lengths == [7, 8]


def test_lengths_are_copied_to_the_device_just_where_rows_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps add to those on the device, which are the host's, whatever happens to the rows in between."""
    copies: list[Any] = []
    copy = numeric.on_device
    monkeypatch.setattr(
        "heddle.nn.cache.on_device", lambda numbers, *rest: copies.append(numbers) or copy(numbers, *rest)
    )

    def positions(cache: Cache, counts: tuple[int, ...]) -> list[int]:
        return [*write(cache, counts)[0].position[:, 0].tolist()]

    cache = cache_of(2)
    assert [positions(cache, (5, 2)), copies] == [[0, 0], [[0, 0], [5, 2]]]
    copies.clear()
    assert [positions(cache, (1, 1)) for _ in range(3)] == [[5, 2], [6, 3], [7, 4]]
    assert copies == []
    cache.truncate([6, 5])
    assert [positions(cache, (1, 1)) for _ in range(2)] == [[6, 5], [7, 6]]
    assert copies == [[6, 5]]
    joined = cache.select([1]).join(cache)
    assert [positions(joined, (1, 1, 1)), copies[1:]] == [[7, 8, 7], [[7, 8, 7]]]


def test_off_the_cpu_one_token_sees_just_the_used_slots_of_equal_rows() -> None:
    cache = cache_of(2)

    def step(*counts: int, compiled: bool = False) -> tuple[str, int, int]:
        queries = cache.advance(counts, "meta", compiled=compiled)
        assert cache.keys is not None
        return queries.form, cache.keys[None].width, cache.capacity

    assert step(1, 1) == ("whole", 1, ROUND)
    assert [step(1, 1) for _ in range(2)] == [("newest", 2, ROUND), ("newest", 3, ROUND)]
    assert [step(2, 2), step(1, 1)] == [("uniform", ROUND, ROUND), ("newest", 6, ROUND)]
    assert [step(*[ROUND - 6] * 2), step(1, 1)] == [("uniform", ROUND, ROUND), ("newest", ROUND + 1, 2 * ROUND)]
    assert step(1, 1, compiled=True) == ("ragged", 2 * ROUND, 2 * ROUND)
    assert [step(1, 0), step(1, 1)] == [("ragged", 2 * ROUND, 2 * ROUND)] * 2


def test_one_token_after_all_keys_is_known_as_the_newest() -> None:
    cache = Cache([BlockState(Growing())], 2, multiple=1)
    write(cache, (3, 3))
    queries, keys, _ = write(cache, (2, 2))
    assert (queries.form, keys.width) == ("uniform", 5)
    queries, keys, _ = write(cache, (1, 1))
    assert (queries.form, queries.position.tolist(), keys.width) == ("newest", [[5], [5]], 6)
    queries, keys, _ = write(cache, (0, 1))
    assert (queries.form, keys.width) == ("ragged", 7)
    queries, keys, _ = write(cache, (1, 1))
    assert (queries.form, keys.width) == ("ragged", 8)


@pytest.mark.parametrize(
    "steps", [[(3, 3), (70, 70), (1, 1)], [(3, 1), (2, 80), (1, 1), (60, 2)]], ids=["even", "ragged"]
)
def test_slot_j_holds_position_j(steps: list[tuple[int, ...]]) -> None:
    cache = cache_of(2)
    for counts in steps:
        _, keys, values = write(cache, counts)
        for buffer in values:
            assert buffer.shape == (2, 1, keys.width, 1)
            for row, length in enumerate(cache.lengths):
                assert buffer[row, 0, :length, 0].tolist() == list(range(length))


def test_slots_that_were_never_written_are_zero() -> None:
    """They weigh 0, and 0 times whatever else memory held need not be 0."""
    cache = cache_of(1)
    write(cache, (3,))
    _, _, values = write(cache, (1,))
    assert (values[0][0, 0, 4:] == 0).all()


def test_capacity_doubles() -> None:
    cache = cache_of(1)
    capacities = []
    for _ in range(40):
        write(cache, (10,))
        capacities.append(cache.capacity)
    assert capacities == sorted(capacities)
    assert set(capacities) == {64, 128, 256, 512}
    assert all(buffer.shape[2] == 512 for state in cache.states for buffer in state.mixer.buffers)


def test_bytes_are_what_is_held() -> None:
    cache = cache_of(2, states=3)
    assert cache.bytes() == 0
    write(cache, (3, 3))
    assert cache.bytes() == 3 * 2 * ROUND * 8


def test_selecting_copies() -> None:
    cache = cache_of(3)
    write(cache, (2, 4, 1))
    chosen = cache.select([1, 1])
    assert (chosen.lengths, chosen.capacity) == ([4, 4], cache.capacity)
    chosen.states[0].mixer.buffers[0].fill_(-1.0)
    assert cache.states[0].mixer.buffers[0][1, 0, :4, 0].tolist() == [0, 1, 2, 3]
    assert cache.select([]).lengths == []


def test_selecting_before_anything_is_written() -> None:
    cache = cache_of(3).select([0, 2])
    queries, _, _ = write(cache, (2, 2))
    assert (cache.lengths, queries.form) == ([2, 2], "whole")


def test_joining_brings_the_shorter_to_the_longer() -> None:
    short, long = cache_of(1), cache_of(2)
    write(short, (3,))
    write(long, (100, 90))
    both = short.join(long)
    assert (both.lengths, both.capacity) == ([3, 100, 90], 128)
    _, _, values = write(both, (1, 1, 1))
    for row, length in enumerate(both.lengths):
        assert values[0][row, 0, :length, 0].tolist() == list(range(length))


def test_joining_to_nothing() -> None:
    other = cache_of(2)
    write(other, (3, 3))
    assert cache_of(0).join(other) is other


def test_stateless_remembers_nothing() -> None:
    made = torch.zeros(1, 1, 2, 1)
    assert STATELESS.update((made,), Layout.whole(1, 2), Layout.whole(1, 2))[0] is made
    assert STATELESS.read() is None
    assert STATELESS.bytes() == 0
    assert not STATELESS.select([0, 0]).buffers


EVEN = [(3, 3), (1, 1), (9, 9), (2, 2), (1, 1)]
RAGGED = [(3, 1), (1, 1), (0, 2), (2, 9), (1, 1), (12, 1), (1, 1)]


@pytest.mark.parametrize("window", [1, 2, 5, 20])
@pytest.mark.parametrize("steps", [EVEN, RAGGED, [(0, 4), *EVEN]], ids=["even", "ragged", "first empty"])
def test_a_rolling_state_holds_the_last_positions(window: int, steps: list[tuple[int, ...]]) -> None:
    """The layout of its keys says what it returns, and everything real in it is what the window holds."""
    state, before = Rolling(window), [0, 0]
    cache = Cache([BlockState(state), BlockState(Growing())], 2)
    for number, counts in enumerate(steps):
        queries, keys = advanced(cache, counts)
        made = numbered(queries.position).masked_fill((queries.segment == PADDING)[:, None, :, None], -7.0)
        (values,) = state.update((made,), queries, keys[window])
        if number == 0:
            assert keys[window] is queries
            assert values is made
        else:
            assert keys[window].form == "packed"
            assert torch.equal(keys[window].segment[:, window:], queries.segment)
        assert values.shape == (2, 1, keys[window].width, 1)
        for row, start in enumerate(before):
            real = keys[window].segment[row] == 0
            assert torch.equal(values[row, 0, real, 0], keys[window].position[row, real].double())
            seen = sorted(keys[window].position[row, real].tolist())
            oldest = max(0, start - window) if number else 0
            assert seen == list(range(oldest, cache.lengths[row]))
        before = list(cache.lengths)
    assert state.buffers[0].shape[2] == window + 1


def test_every_window_has_its_keys() -> None:
    cache = Cache([BlockState(Rolling(3)), BlockState(Rolling(8), Fixed()), BlockState(Growing()), FORGETS], 1)
    cache.advance((2,))
    queries, keys = advanced(cache, (2,))
    assert {window: keys[window].width for window in (3, 8, None)} == {3: 5, 8: 10, None: ROUND}
    assert keys[3].segment.tolist() == [[0, 0, -1, 0, 0]]
    assert keys[3].position[0, -2:].tolist() == queries.position[0].tolist() == [2, 3]
    with pytest.raises(KeyError):
        keys[4]


def test_rolling_rows_leave_and_come() -> None:
    cache, other = Cache([BlockState(Rolling(4))], 2), Cache([BlockState(Rolling(4))], 1)
    for holder, counts in ((cache, (9, 2)), (other, (6,))):
        queries, keys = advanced(holder, counts)
        holder.states[0].mixer.update((numbered(queries.position),), queries, keys[4])
    both = cache.select([1, 0, 0]).join(other)
    assert both.lengths == [2, 9, 9, 6]
    queries, keys = advanced(both, (1, 1, 1, 1))
    (values,) = both.states[0].mixer.update((numbered(queries.position),), queries, keys[4])
    for row, expected in enumerate(([0, 1, 2], [5, 6, 7, 8, 9], [5, 6, 7, 8, 9], [2, 3, 4, 5, 6])):
        assert sorted(values[row, 0, keys[4].segment[row] == 0, 0].tolist()) == expected


def test_fixed_gives_what_it_was_given() -> None:
    memory, at = torch.randn(2, 1, 3, 1), Layout.whole(2, 3)
    state = Fixed()
    assert state.read() is None
    assert state.update((memory,), at, at)[0] is memory
    for _ in range(2):
        assert state.read() == (memory,)
    (chosen,) = state.select([1, 1, 0]).read() or ()
    assert torch.equal(chosen, memory[[1, 1, 0]])
    state.reserve(100)
    assert state.bytes() == 2 * 3 * 4


def test_joining_fixed_ones_fills_up_the_shorter() -> None:
    short, long = torch.ones(1, 1, 2, 1), torch.ones(2, 1, 5, 1)
    states = []
    for memory in (short, long):
        states.append(Fixed())
        states[-1].update((memory,), Layout.whole(1, 1), Layout.whole(1, 1))
    first: Any
    for first, second, expected in ((*states, [2, 5, 5]), (*reversed(states), [5, 5, 2])):
        (buffer,) = first.join(second).buffers
        assert buffer.shape == (3, 1, 5, 1)
        assert buffer.sum((1, 2, 3)).tolist() == expected


def test_carry_gives_what_the_last_call_left() -> None:
    state, at = Carry(), Layout.whole(2, 1)

    def step(state: State) -> list[float]:
        (carried,) = state.read() or (torch.zeros(2),)
        state.update((carried + 1,), at, at)
        return state.buffers[0].tolist()

    assert state.read() is None
    assert [step(state) for _ in range(3)] == [[1, 1], [2, 2], [3, 3]]
    forked = state.select([0, 0, 1])
    step(forked)
    assert (state.buffers[0].tolist(), forked.buffers[0].tolist()) == ([3, 3], [4, 4, 4])
    assert forked.join(state).buffers[0].tolist() == [4, 4, 4, 3, 3]


@pytest.mark.parametrize("state", [Growing(), Rolling(2)])
def test_what_keeps_tokens_is_updated_before_it_is_read(state: State) -> None:
    """Keys and values of earlier tokens are never used without the new ones."""
    at = Layout.whole(1, 1)
    state.update((torch.zeros(1, 1, 1, 1),), at, at)
    assert state.read() is None


def test_a_block_may_have_two_states() -> None:
    cache = Cache([BlockState(Growing(), Fixed()), BlockState(Rolling(3), Carry())], 2)
    queries, keys = advanced(cache, (2, 1))
    (growing, fixed), (rolling, carry) = cache.states
    growing.update((numbered(queries.position),), queries, keys[None])
    fixed.update((torch.tensor([[[[7.0]]], [[[8.0]]]]),), queries, queries)
    rolling.update((numbered(queries.position),), queries, keys[3])
    carry.update((torch.tensor([[1.0], [2.0]]),), queries, queries)
    assert cache.bytes() == 2 * ROUND * 8 + 2 * 4 + 2 * 4 * 8 + 2 * 4
    chosen = cache.select([1]).join(cache)
    assert chosen.lengths == [1, 2, 1]
    (growing, fixed), (rolling, carry) = chosen.states
    assert [type(state) for state in (growing, fixed, rolling, carry)] == [Growing, Fixed, Rolling, Carry]
    assert fixed.buffers[0].flatten().tolist() == [8, 7, 8]
    assert carry.buffers[0].flatten().tolist() == [2, 1, 2]
    assert rolling.buffers[0].shape == (3, 1, 4, 1)
    chosen.advance((70, 70, 70))
    assert growing.buffers[0].shape[2] == chosen.capacity == 128


@pytest.mark.thorough
def test_mixers_with_states_are_captured_whole() -> None:
    """One graph for a whole sequence, and one for a decoding step, however many follow."""
    graphs = json.loads(programs.traced("nn.graphs_of_mixers"))
    assert len(graphs) == 4
    assert all(counts == [1, 1] for counts in graphs.values()), graphs


def test_only_rows_of_fewer_tokens_have_queries_without_keys() -> None:
    cache = Cache([BlockState(Growing())], 2)
    cache.advance([2, 5], torch.device("cpu"))
    for counts, expected in (([1, 1], None), ([2, 1], [[False, False], [False, True]]), ([2, 2], None)):
        queries = cache.advance(counts, torch.device("cpu"))
        assert cache.keys is not None
        mask = Mask(Causal(), queries, cache.keys[None])
        dead = dead_queries(mask, mask.dense())
        assert mask.queries.form == "ragged"
        assert (None if dead is None else dead[:, 0, :, 0].tolist()) == expected
