"""The learning rate's factor over time."""

from itertools import pairwise
from math import cos, pi

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.train.schedule import SHAPES, factor

SHAPE = st.sampled_from(sorted(SHAPES))


def test_it_warms_up_in_a_straight_line() -> None:
    assert [factor(step, 100, 4, "cosine", 0.0) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize(
    ("shape", "middle", "end"),
    [("linear", 0.55, 0.1 + 0.9 / 10), ("cosine", 0.55, 0.1 + 0.9 * (1 + cos(0.9 * pi)) / 2), ("constant", 1.0, 1.0)],
)
def test_shapes(shape: str, middle: float, end: float) -> None:
    values = [factor(step, 12, 2, shape, 0.1) for step in range(12)]
    assert values[2] == 1.0
    assert values[7] == pytest.approx(middle)
    assert values[11] == pytest.approx(end)


def test_a_cosine_is_flat_at_both_ends() -> None:
    values = [factor(step, 1000, 0, "cosine", 0.0) for step in range(1000)]
    drops = [before - after for before, after in pairwise(values)]
    assert max(drops[0], drops[-1]) < max(drops) / 100
    assert max(drops) == pytest.approx(pi / 2 / 1000, rel=1e-3)


@given(st.integers(1, 500), st.integers(0, 500), SHAPE, st.floats(0, 1))
def test_it_stays_between_nothing_and_the_highest(steps: int, warmup: int, shape: str, final: float) -> None:
    values = [factor(step, steps, warmup, shape, final) for step in range(steps)]
    assert all(0 < value <= 1 + 1e-12 or (value >= 0 and final == 0) for value in values)
    after = values[warmup:]
    assert all(value >= final - 1e-12 for value in after)
    assert all(later <= earlier + 1e-12 for earlier, later in pairwise(after))
    rise = values[:warmup]
    assert rise == sorted(rise)
    assert max(values) == 1.0 or warmup > steps
