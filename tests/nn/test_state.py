"""The cache: what it hands out, how it grows, what it costs."""

import pytest
import torch
from torch import Tensor

from heddle.nn import Cache
from heddle.nn.layout import Layout
from heddle.nn.state import ROUND, STATELESS, Growing, rounded


def numbered(position: Tensor) -> Tensor:
    """Keys [B 1 T 1] that say where they stand."""
    return position[:, None, :, None].double()


def write(cache: Cache, counts: tuple[int, ...]) -> tuple[Layout, Layout, list[Tensor]]:
    queries, keys = cache.advance(counts)
    found = [state.extend(lambda: (numbered(queries.position),), queries, keys.width)[0] for state in cache.states]
    return queries, keys, found


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
    assert STATELESS.extend(lambda: (made,), Layout.plain(1, 2), 2)[0] is made
