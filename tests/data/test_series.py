"""Least-squares autoregression: the lectures' example, numpy's normal equations, and what is refused."""

from typing import Any

import numpy as np
import pytest

from heddle.data.series import autoregression, predict
from heddle.errors import HeddleError
from tests.lectures.golden import CASES


@pytest.mark.lecture("L0-03")
def test_linear_autoregression() -> None:
    case = CASES["linear_autoregression"]
    series, expected = case["inputs"]["series"], case["outputs"]
    weights = autoregression(series, 2)
    np.testing.assert_allclose(weights, expected["w"], rtol=0, atol=1e-11)
    np.testing.assert_allclose(predict(weights, series), [expected["next_value"]], rtol=0, atol=1e-11)


@pytest.mark.parametrize("order", [1, 3, 5])
def test_it_solves_the_normal_equations(order: int) -> None:
    series = np.random.default_rng(0).normal(size=40)
    past = np.array([[series[t - k] for k in range(1, order + 1)] for t in range(order, 40)])
    expected = np.linalg.solve(past.T @ past, past.T @ series[order:])
    np.testing.assert_allclose(autoregression(series, order), expected, rtol=1e-10)


def test_predictions_feed_the_next_ones() -> None:
    fibonacci = predict([1, 1], [7, 1, 1], 6)
    assert fibonacci.tolist() == [2, 3, 5, 8, 13, 21]
    assert predict([1, 0], [7, 1, 2], 3).tolist() == [2, 2, 2]
    assert predict([0, 1], [7, 1, 2], 3).tolist() == [1, 2, 1]
    assert predict([1], [1], 0).tolist() == []


def test_the_shortest_series_is_enough() -> None:
    series = predict([0.5, 0.25], [1, 2], 2)
    weights = autoregression([1, 2, *series], 2)
    np.testing.assert_allclose(weights, [0.5, 0.25], rtol=1e-10)


def test_a_constant_series_goes_on() -> None:
    weights = autoregression([3.0] * 10, 4)
    np.testing.assert_allclose(predict(weights, [3.0] * 10, 5), [3.0] * 5, rtol=1e-10)


@pytest.mark.parametrize(
    ("series", "order", "message"),
    [
        ([1, 2, 3], 2, "has 3 values, but 2 weights need at least 4"),
        ([], 1, "has 0 values, but 1 weights need at least 2"),
        ([1, 2, 3], 0, "order must be at least 1"),
        ([[1, 2], [3, 4]], 1, "not 2-dimensional"),
        ([1, float("nan"), 3], 1, "must be finite"),
        (["one", "two"], 1, "only numbers"),
    ],
)
def test_what_cannot_be_fitted_is_refused(series: Any, order: int, message: str) -> None:
    with pytest.raises(HeddleError, match=message):
        autoregression(series, order)


def test_what_cannot_be_continued_is_refused() -> None:
    with pytest.raises(HeddleError, match="has 1 values, but 2 weights need as many"):
        predict([1, 1], [1], 1)
    with pytest.raises(HeddleError, match="steps must be at least 0"):
        predict([1], [1], -1)
