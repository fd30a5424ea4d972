"""The cache: what it hands out, how it grows, what it costs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from heddle.nn import Cache
from heddle.nn.layout import PADDING, Layout
from heddle.nn.state import ROUND, STATELESS, Carry, Fixed, Growing, Rolling, State, rounded

ROOT = Path(__file__).parents[2]


def numbered(position: Tensor) -> Tensor:
    """Keys [B 1 T 1] that say where they stand."""
    return position[:, None, :, None].double()


def write(cache: Cache, counts: tuple[int, ...]) -> tuple[Layout, Layout, list[Tensor]]:
    queries, keys = cache.advance(counts)
    made = (numbered(queries.position),)
    found = [state.extend(lambda: made, queries, keys[None])[0] for state in cache.states]
    return queries, keys[None], found


def cache_of(rows: int, states: int = 2) -> Cache:
    return Cache([Growing() for _ in range(states)], rows)


@pytest.mark.parametrize(("length", "capacity"), [(0, 0), (1, 64), (64, 64), (65, 128), (1000, 1024)])
def test_capacities_are_round(length: int, capacity: int) -> None:
    assert rounded(length) == capacity
    assert capacity % ROUND == 0


def test_the_first_call_sees_just_itself() -> None:
    queries, keys, _ = write(cache_of(2), (5, 5))
    assert (queries.form, keys.form) == ("plain", "plain")
    assert (queries.width, keys.width) == (5, 5)
    ragged, keys, _ = write(cache_of(2), (5, 2))
    assert (ragged.form, keys.width) == ("padded", 5)
    assert ragged.segment.tolist() == [[0] * 5, [0, 0, -1, -1, -1]]


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


@pytest.mark.parametrize(
    "steps", [[(3, 3), (70, 70), (1, 1)], [(3, 1), (2, 80), (1, 1), (60, 2)]], ids=["even", "ragged"]
)
def test_slot_j_holds_position_j(steps: list[tuple[int, ...]]) -> None:
    cache = cache_of(2)
    for counts in steps:
        _, keys, found = write(cache, counts)
        for buffer in found:
            assert buffer.shape == (2, 1, keys.width, 1)
            for row, length in enumerate(cache.lengths):
                assert buffer[row, 0, :length, 0].tolist() == list(range(length))


def test_slots_that_were_never_written_are_zero() -> None:
    """They weigh 0, and 0 times whatever else memory held need not be 0."""
    cache = cache_of(1)
    write(cache, (3,))
    _, _, found = write(cache, (1,))
    assert (found[0][0, 0, 4:] == 0).all()


def test_capacity_doubles() -> None:
    cache = cache_of(1)
    capacities = []
    for _ in range(40):
        write(cache, (10,))
        capacities.append(cache.capacity)
    assert capacities == sorted(capacities)
    assert set(capacities) == {64, 128, 256, 512}
    assert all(buffer.shape[2] == 512 for state in cache.states for buffer in state.buffers)


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
    chosen.states[0].buffers[0].fill_(-1.0)
    assert cache.states[0].buffers[0][1, 0, :4, 0].tolist() == [0, 1, 2, 3]
    assert cache.select([]).lengths == []


def test_selecting_before_anything_is_written() -> None:
    cache = cache_of(3).select([0, 2])
    queries, _, _ = write(cache, (2, 2))
    assert (cache.lengths, queries.form) == ([2, 2], "plain")


def test_joining_brings_the_shorter_to_the_longer() -> None:
    short, long = cache_of(1), cache_of(2)
    write(short, (3,))
    write(long, (100, 90))
    both = short.join(long)
    assert (both.lengths, both.capacity) == ([3, 100, 90], 128)
    _, _, found = write(both, (1, 1, 1))
    for row, length in enumerate(both.lengths):
        assert found[0][row, 0, :length, 0].tolist() == list(range(length))


def test_joining_to_nothing() -> None:
    other = cache_of(2)
    write(other, (3, 3))
    assert cache_of(0).join(other) is other


def test_stateless_remembers_nothing() -> None:
    made = torch.zeros(1, 1, 2, 1)
    assert STATELESS.extend(lambda: (made,), Layout.plain(1, 2), Layout.plain(1, 2))[0] is made
    assert STATELESS.carry(lambda carried: (made, (torch.full((1,), carried is None),))) is made
    assert STATELESS.bytes() == 0
    assert not STATELESS.select([0, 0]).buffers


EVEN = [(3, 3), (1, 1), (9, 9), (2, 2), (1, 1)]
RAGGED = [(3, 1), (1, 1), (0, 2), (2, 9), (1, 1), (12, 1), (1, 1)]


@pytest.mark.parametrize("window", [1, 2, 5, 20])
@pytest.mark.parametrize("steps", [EVEN, RAGGED, [(0, 4), *EVEN]], ids=["even", "ragged", "first empty"])
def test_a_rolling_state_holds_the_last_positions(window: int, steps: list[tuple[int, ...]]) -> None:
    """The layout of its keys says what it returns, and everything real in it is what the window holds."""
    cache = Cache([Rolling(window), Growing()], 2)
    (state, _), before = cache.states, [0, 0]
    for number, counts in enumerate(steps):
        queries, keys = cache.advance(counts)
        made = numbered(queries.position).masked_fill((queries.segment == PADDING)[:, None, :, None], -7.0)
        (found,) = state.extend(lambda made=made: (made,), queries, keys[window])
        if number == 0:
            assert keys[window] is queries
            assert found is made
        else:
            assert keys[window].form == "packed"
            assert torch.equal(keys[window].segment[:, window:], queries.segment)
        assert found.shape == (2, 1, keys[window].width, 1)
        for row, start in enumerate(before):
            real = keys[window].segment[row] == 0
            assert torch.equal(found[row, 0, real, 0], keys[window].position[row, real].double())
            seen = sorted(keys[window].position[row, real].tolist())
            oldest = max(0, start - window) if number else 0
            assert seen == list(range(oldest, cache.lengths[row]))
        before = list(cache.lengths)
    assert state.buffers[0].shape[2] == window + 1


def test_every_window_has_its_keys() -> None:
    cache = Cache([Rolling(3), (Rolling(8), Fixed()), Growing(), STATELESS], 1)
    cache.advance((2,))
    queries, keys = cache.advance((2,))
    assert {window: keys[window].width for window in (3, 8, None)} == {3: 5, 8: 10, None: ROUND}
    assert keys[3].segment.tolist() == [[0, 0, -1, 0, 0]]
    assert keys[3].position[0, -2:].tolist() == queries.position[0].tolist() == [2, 3]
    with pytest.raises(KeyError):
        keys[4]


def test_rolling_rows_leave_and_come() -> None:
    cache, other = Cache([Rolling(4)], 2), Cache([Rolling(4)], 1)
    for holder, counts in ((cache, (9, 2)), (other, (6,))):
        queries, keys = holder.advance(counts)
        holder.states[0].extend(lambda q=queries: (numbered(q.position),), queries, keys[4])
    both = cache.select([1, 0, 0]).join(other)
    assert both.lengths == [2, 9, 9, 6]
    queries, keys = both.advance((1, 1, 1, 1))
    (found,) = both.states[0].extend(lambda: (numbered(queries.position),), queries, keys[4])
    for row, expected in enumerate(([0, 1, 2], [5, 6, 7, 8, 9], [5, 6, 7, 8, 9], [2, 3, 4, 5, 6])):
        assert sorted(found[row, 0, keys[4].segment[row] == 0, 0].tolist()) == expected


def test_fixed_makes_once() -> None:
    memory, at = torch.randn(2, 1, 3, 1), Layout.plain(2, 3)
    state, calls = Fixed(), []

    def make() -> tuple[Tensor, ...]:
        calls.append(1)
        return (memory,)

    for _ in range(3):
        assert state.extend(make, at, at)[0] is memory
    assert len(calls) == 1
    assert torch.equal(state.select([1, 1, 0]).extend(make, at, at)[0], memory[[1, 1, 0]])
    state.reserve(100)
    assert state.bytes() == 2 * 3 * 4


def test_joining_fixed_ones_fills_up_the_shorter() -> None:
    short, long = torch.ones(1, 1, 2, 1), torch.ones(2, 1, 5, 1)
    states = []
    for memory in (short, long):
        states.append(Fixed())
        states[-1].extend(lambda memory=memory: (memory,), Layout.plain(1, 1), Layout.plain(1, 1))
    for first, second, expected in ((*states, [2, 5, 5]), (*reversed(states), [5, 5, 2])):
        (buffer,) = first.join(second).buffers
        assert buffer.shape == (3, 1, 5, 1)
        assert buffer.sum((1, 2, 3)).tolist() == expected


def test_carry_hands_on_what_the_step_gave() -> None:
    state = Carry()

    def step(carried: tuple[Tensor, ...] | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        total = torch.ones(2) if carried is None else carried[0] + 1
        return 10 * total, (total,)

    assert [state.carry(step)[0].item() for _ in range(3)] == [10, 20, 30]
    forked = state.select([0, 0, 1])
    forked.carry(step)
    assert (state.buffers[0].tolist(), forked.buffers[0].tolist()) == ([3, 3], [4, 4, 4])
    assert forked.join(state).buffers[0].tolist() == [4, 4, 4, 3, 3]


@pytest.mark.parametrize("state", [Growing(), Rolling(2), Fixed()])
def test_who_keeps_tokens_carries_nothing(state: State) -> None:
    with pytest.raises(TypeError, match="carries nothing"):
        state.carry(lambda carried: (torch.zeros(1), ()))


def test_who_carries_keeps_no_tokens() -> None:
    with pytest.raises(TypeError, match="Carry does not keep tokens"):
        Carry().extend(lambda: (), Layout.plain(1, 1), Layout.plain(1, 1))


def test_a_block_may_have_two_states() -> None:
    cache = Cache([(Growing(), Fixed()), (Rolling(3), Carry())], 2)
    queries, keys = cache.advance((2, 1))
    (growing, fixed), (rolling, carry) = cache.states
    growing.extend(lambda: (numbered(queries.position),), queries, keys[None])
    fixed.extend(lambda: (torch.tensor([[[[7.0]]], [[[8.0]]]]),), queries, queries)
    rolling.extend(lambda: (numbered(queries.position),), queries, keys[3])
    carry.carry(lambda carried: (torch.zeros(2), (torch.tensor([[1.0], [2.0]]),)))
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


SCRIPT = """
import json
import torch
from graphs import captured
from mixing import DIM, Where, cache_for, filled, tokens, whole
from heddle.nn.convolution import Convolution
from heddle.nn.recurrent import Recurrent

def graphs(mixer, counts):
    x = tokens(len(counts), 5)
    expected = whole(mixer, x)
    plain, of_plain = captured(lambda x: whole(mixer, x))
    torch.testing.assert_close(plain(x), expected)
    decoding, of_decoding = captured(lambda x, queries, keys: mixer(x, Where(queries, keys), state))
    cache = cache_for(mixer, len(counts))
    (state,) = cache.states
    window = getattr(state, "window", None)
    for number in range(4):
        x = tokens(len(counts), max(counts) if number == 0 else 1)
        queries, keys = cache.advance(counts if number == 0 else [1] * len(counts))
        (decoding if number else mixer)(*((x, queries, keys[window]) if number else (x, Where(queries, keys[window]), state)))
    return [of_plain.count, of_decoding.count]

convolution = filled(Convolution(DIM, 3, 2))
print(json.dumps({
    "convolution": graphs(convolution, [4, 4]),
    "convolution, ragged": graphs(convolution, [4, 2]),
    "gru": graphs(filled(Recurrent(DIM, 5, "gru")), [4, 4]),
    "lstm, ragged": graphs(filled(Recurrent(DIM, 5, "lstm")), [4, 2]),
}))
"""


def test_mixers_with_states_are_captured_whole() -> None:
    """One graph for a whole sequence, and one for a decoding step, however many follow."""
    path = os.pathsep.join(str(folder) for folder in (ROOT, ROOT / "tests", ROOT / "tests" / "nn"))
    env = {**os.environ, "HEDDLE_UNCHECKED": "1", "PYTHONPATH": path}
    ran = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert len(found) == 4
    assert all(counts == [1, 1] for counts in found.values()), found
