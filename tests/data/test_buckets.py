"""Buckets: every record once an epoch, in batches of similar length, the same for any number of ranks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.data.buckets import EMPTY, WIDTH, Buckets, held_out_records

LENGTHS = np.random.default_rng(0).integers(1, 200, 700)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 90), min_size=1, max_size=120),
    st.integers(1, 20),
    st.none() | st.integers(1, 2000),
    st.integers(0, 2**40),
)
def test_every_record_once_an_epoch(lengths: list[int], rows: int, tokens: int | None, seed: int) -> None:
    made = Buckets(np.array(lengths), rows, tokens)
    for epoch in (0, 3):
        read = [made.read(epoch * made.batches + number, seed) for number in range(made.batches)]
        numbers = np.concatenate(read)
        assert sorted(numbers[numbers != EMPTY].tolist()) == list(range(len(lengths)))
        assert sum((each == EMPTY).any() for each in read) <= 1
        for each in read:
            assert len(each) == rows if tokens is None else len(each) % 8 == 0


@pytest.mark.parametrize(
    ("tokens", "multiple", "sizes"),
    [(200, 8, [8, 8, 8, 8]), (207, 4, [12, 12, 8]), (300, 8, [16, 16]), (10, 8, [8, 8, 8, 8]), (384, 12, [24, 12])],
)
def test_rows_of_a_batch_are_a_multiple(tokens: int, multiple: int, sizes: list[int]) -> None:
    """30 records of 16 tokens: as many as fit, rounded down to the multiple, and the last batch filled up to it."""
    made = Buckets(np.full(30, 16), 1, tokens, multiple)
    read = [made.read(step, 0) for step in range(made.batches)]
    assert sorted(map(len, read), reverse=True) == sizes
    assert made.places == sum(sizes) * 16
    assert made.capacity(16) == sizes[0]


def test_batches_hold_records_of_similar_length() -> None:
    made = Buckets(LENGTHS, 1, tokens=1024)
    read = [made.read(step, 5) for step in range(made.batches)]
    widths = [max(LENGTHS[each[each != EMPTY]]) for each in read]
    assert all(
        -(-width // WIDTH) * WIDTH * len(each) <= 1024 or len(each) == 8
        for width, each in zip(widths, read, strict=True)
    )
    real = sum(LENGTHS)
    # Two in three tokens would be padding without buckets at the widest record's width.
    assert sum(width * len(each) for width, each in zip(widths, read, strict=True)) < 1.12 * real


def test_epochs_differ_and_steps_repeat() -> None:
    made = Buckets(LENGTHS, 16)
    first, again = made.read(3, 1), Buckets(LENGTHS, 16).read(3, 1)
    assert (first == again).all()
    assert not (made.read(3 + made.batches, 1) == first).all()
    assert not (made.read(3, 2) == first).all()


@pytest.mark.parametrize("most", [None, 100, 10**9])
def test_held_out_records_are_scored_once(most: int | None) -> None:
    targets = LENGTHS % 7
    batches, share = held_out_records(LENGTHS, targets, 16, most)
    numbers = np.concatenate(batches)
    assert len(set(numbers.tolist())) == len(numbers)
    assert targets[numbers].all()
    assert share == pytest.approx(targets[numbers].sum() / targets.sum())
    if most == 100:
        assert 40 < targets[numbers].sum() < 250
    else:
        assert share == 1


def test_the_largest_shapes_are_the_widest_and_the_fullest() -> None:
    """Of 64 tokens: eight rows of 8, eight of 40 although they have more, and as many of the width with most places."""
    assert sorted(Buckets(np.array([8] * 9 + [40]), 1, tokens=64).shapes()) == [(8, 40)]
    assert sorted(Buckets(np.array([8] * 9 + [40, 16]), 1, tokens=700).shapes()) == [(16, 40), (80, 8)]
    assert Buckets(np.array([3, 9, 17]), 5).shapes() == [(5, 24)]


def test_another_seed_has_another_plan_at_once() -> None:
    made = Buckets(LENGTHS, 16)
    assert not (made.read(3, 1) == made.read(3, 2)).all()
    assert (made.read(3, 2) == Buckets(LENGTHS, 16).read(3, 2)).all()


def test_a_sample_has_at_least_four_records() -> None:
    """So that a standard error can be estimated."""
    targets = np.full(50, 20)
    for most, records in ((1, 4), (100, 5), (200, 10)):
        batches, share = held_out_records(np.arange(50), targets, 16, most)
        assert sum(map(len, batches)) == records
        assert share == pytest.approx(records / 50)
    assert sum(map(len, held_out_records(np.arange(3), targets[:3], 16, 1)[0])) == 3
