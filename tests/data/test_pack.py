"""Packing: every piece in one row, no row too long, and as few rows as best fit decreasing needs."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.data.pack import Packing, Pieces, best_fit
from heddle.errors import HeddleError


def one_by_one(sizes: list[int], length: int) -> list[int]:
    """The room that is left in each row, by the rule as it is stated: a search for every piece."""
    rooms: list[int] = []
    for size in sorted(sizes, reverse=True):
        fitting = [room for room in rooms if room >= size]
        if fitting:
            rooms.remove(min(fitting))
        rooms.append((min(fitting) if fitting else length) - size)
    return sorted(rooms)


@given(st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(1, n), max_size=80))))
def test_it_is_best_fit_decreasing(case: tuple[int, list[int]]) -> None:
    length, sizes = case
    rows, count = best_fit(np.array(sizes, dtype=np.int64), length)
    filled = np.bincount(rows, weights=np.array(sizes), minlength=count)
    assert sorted((length - filled).astype(int).tolist()) == one_by_one(sizes, length)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=30), st.integers(1, 9))
def test_pieces_are_the_documents(lengths: list[int], length: int) -> None:
    pieces = Pieces.of(np.array(lengths), length)
    places = [
        (document, start + place)
        for document, start, size in zip(pieces.document, pieces.start, pieces.size, strict=True)
        for place in range(size)
    ]
    assert places == [(document, place) for document, size in enumerate(lengths) for place in range(size)]
    assert all(
        size == length
        for size, start, document in zip(pieces.size, pieces.start, pieces.document, strict=True)
        if start + size < lengths[document]
    )


def test_a_size_that_does_not_fit_is_refused() -> None:
    for sizes in ([3, 9], [0]):
        with pytest.raises(HeddleError, match=r"best_fit: sizes = .*: must be an array of whole numbers from 1 to 8"):
            best_fit(np.array(sizes), 8)


def test_many_documents_take_no_time() -> None:
    """A tenth of a million here: a search for every piece would take minutes."""
    lengths = np.maximum(1, np.random.default_rng(0).lognormal(5, 1, 100_000)).astype(np.int64)
    began = time.perf_counter()
    _, count = best_fit(Pieces.of(lengths, 512).size, 512)
    assert time.perf_counter() - began < 5
    assert lengths.sum() / (count * 512) > 0.999


def test_plans_of_two_epochs_are_kept_and_no_more() -> None:
    """A step reads rows of two epochs at most; a long run would keep all of them."""
    packing = Packing(np.array([3, 5, 2, 4, 6, 1]), 8, seed=1)
    rows = [packing.read(np.arange(packing.rows) + epoch * packing.rows) for epoch in range(5)]
    assert list(packing._planned) == [3, 4]
    again = packing.read(np.arange(packing.rows))
    assert [each.tolist() for each in again] == [each.tolist() for each in rows[0]]
    assert packing.padding == pytest.approx(1 - 21 / (8 * packing.rows))
