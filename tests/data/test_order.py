"""The order of the data: a bijection, every window once per epoch, and no state."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.data.order import held_out_windows, permute, targets_left_out, windows, windows_per_epoch
from heddle.errors import HeddleError

SEEDS = st.integers(-(2**70), 2**70)


@given(n=st.integers(1, 300) | st.integers(1, 5000), seed=SEEDS)
def test_permute_is_a_bijection(n: int, seed: int) -> None:
    assert np.array_equal(np.sort(permute(np.arange(n), n, seed)), np.arange(n))


@given(n=st.integers(5000, 2**63 - 1), seed=SEEDS, data=st.data())
def test_permute_is_one_to_one_for_large_n(n: int, seed: int, data: st.DataObject) -> None:
    indices = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=200, unique=True)))
    image = permute(indices, n, seed)
    assert len(np.unique(image)) == len(indices)
    assert image.min() >= 0
    assert image.max() < n
    assert np.array_equal(permute(indices[::-1], n, seed), image[::-1])


def test_permute_keeps_the_shape_and_knows_its_range() -> None:
    assert permute(np.arange(6).reshape(2, 3), 10, 0).shape == (2, 3)
    assert permute(np.arange(0), 10, 0).size == 0
    for bad in (np.array([10]), np.array([-1])):
        with pytest.raises(HeddleError, match=r"permute: indices .* from 0 to 9"):
            permute(bad, 10, 0)
    for n in (0, 2**63):
        with pytest.raises(HeddleError, match="permute: n = "):
            permute(np.array([0]), n, 0)


@pytest.mark.parametrize("n", [2, 3, 10, 17])
def test_every_index_goes_everywhere_equally_often(n: int) -> None:
    images = np.stack([permute(np.arange(n), n, seed) for seed in range(1500)])
    for index in range(n):
        counts = np.bincount(images[:, index], minlength=n)
        # Five standard deviations of a binomial count; the seeds are fixed, so this cannot flicker.
        assert np.abs(counts - 1500 / n).max() < 5 * np.sqrt(1500 / n)


def test_neighbours_part() -> None:
    n = 10_000
    image = permute(np.arange(n), n, 1)
    assert abs(np.corrcoef(np.arange(n), image)[0, 1]) < 0.05
    assert abs(np.corrcoef(image[:-1], image[1:])[0, 1]) < 0.05
    # Expected once in a random permutation; neighbouring seeds agree about as often.
    assert (image == np.arange(n)).sum() < 8
    assert (image == permute(np.arange(n), n, 2)).sum() < 8


@given(context=st.integers(1, 40), extra=st.integers(1, 2000), seed=SEEDS, epoch=st.integers(0, 10**12))
def test_every_window_once_per_epoch(context: int, extra: int, seed: int, epoch: int) -> None:
    length = context + extra
    count = windows_per_epoch(length, context)
    starts = np.sort(windows(length, context, seed, epoch, count))
    # The count fits for every offset below a context, or one window does where the store is too short for that.
    assert count == max(1, (length - context) // context)
    assert 0 <= starts[0] < context
    assert starts[-1] + context + 1 <= length
    assert np.array_equal(np.diff(starts), np.full(count - 1, context))


@given(
    context=st.integers(1, 20),
    extra=st.integers(1, 300),
    seed=SEEDS,
    sizes=st.lists(st.sampled_from([1, 2, 3, 4, 6, 12]), min_size=2, max_size=2),
    first=st.integers(0, 1000),
)
@pytest.mark.thorough
def test_batches_cut_anyhow_give_the_same_examples(
    context: int, extra: int, seed: int, sizes: list[int], first: int
) -> None:
    length = context + extra
    together, apart = (
        np.concatenate(
            [windows(length, context, seed, step, size) for step in range(first * 12 // size, (first + 3) * 12 // size)]
        )
        for size in sizes
    )
    assert np.array_equal(together, apart)


def test_seeds_and_epochs_differ() -> None:
    length, context = 100_000, 64
    count = windows_per_epoch(length, context)
    one, again, other = (windows(length, context, seed, 0, count) for seed in (1, 1, 2))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    offsets = {int(windows(length, context, 1, epoch, count).min()) for epoch in range(40)}
    assert len(offsets) > 20


def test_the_order_never_changes() -> None:
    """These numbers are what a resumed run relies on: a change here is a change of every run's data."""
    assert permute(np.arange(10), 10, 0).tolist() == [1, 0, 9, 3, 5, 6, 2, 8, 7, 4]
    assert windows(1000, 10, 7, 3, 8).tolist() == [779, 929, 409, 569, 369, 269, 119, 609]


def test_the_shortest_store_has_one_window() -> None:
    assert windows_per_epoch(65, 64) == 1
    assert windows(65, 64, 3, 5, 4).tolist() == [0, 0, 0, 0]
    starts = windows(100, 64, 3, 0, 500)
    assert set(starts.tolist()) == set(range(36))
    with pytest.raises(HeddleError, match="64 tokens, but a context of 64 needs at least 65"):
        windows(64, 64, 0, 0, 1)
    with pytest.raises(HeddleError, match="context must be at least 1"):
        windows(64, 0, 0, 0, 1)


@given(length=st.integers(1, 3000), context=st.integers(1, 300))
def test_held_out_windows_score_every_target_once(length: int, context: int) -> None:
    spans = held_out_windows(length, context)
    assert [target for start, end in spans for target in range(start + 1, end + 1)] == list(range(1, length))
    assert all(start == k * context and end - start <= context for k, (start, end) in enumerate(spans))


@given(length=st.integers(2, 30_000), context=st.integers(1, 40), most=st.integers(1, 300))
def test_a_sample_of_windows_is_spread_over_the_whole_text(length: int, context: int, most: int) -> None:
    spans = held_out_windows(length, context)
    some = held_out_windows(length, context, most)
    assert len(some) == min(most, len(spans))
    assert some == held_out_windows(length, context, most)
    places = [spans.index(span) for span in some] if len(spans) < 300 else [start // context for start, _ in some]
    assert all(
        number * len(spans) // len(some) <= k < (number + 1) * len(spans) // len(some)
        for number, k in enumerate(places)
    )
    assert some == [spans[k] for k in places]


def test_a_sample_of_windows_falls_in_with_no_rhythm() -> None:
    """With documents of 10 windows each and one in 10 taken, all would be of the same place in a document."""
    places = [start // 8 % 10 for start, _ in held_out_windows(80_001, 8, 1000)]
    counts = [places.count(place) for place in range(10)]
    assert all(70 < count < 130 for count in counts)


@given(length=st.integers(3, 3000), context=st.integers(1, 300), seed=SEEDS)
def test_what_an_epoch_leaves_out_is_known(length: int, context: int, seed: int) -> None:
    context = min(context, length - 1)
    starts = windows(length, context, seed, 0, windows_per_epoch(length, context))
    read = {target for start in starts.tolist() for target in range(start + 1, start + context + 1)}
    assert targets_left_out(length, context) == length - 1 - len(read)


def test_held_out_windows_by_hand() -> None:
    assert held_out_windows(10, 4) == [(0, 4), (4, 8), (8, 9)]
    assert held_out_windows(9, 4) == [(0, 4), (4, 8)]
    assert held_out_windows(1, 4) == []
    with pytest.raises(HeddleError, match="context"):
        held_out_windows(10, 0)
