"""The most probable ids of rows, beside float64 numpy."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from heddle.native.best import best_logprobs
from heddle.native.library import best_library

pytestmark = pytest.mark.skipif(best_library() is None, reason="no C++ compiler")


def expected(scores: Tensor, count: int, blocked: list[int]) -> tuple[np.ndarray, np.ndarray]:
    numbers = scores.double().numpy()
    most = numbers.max(-1, keepdims=True)
    logprobs = numbers - most - np.log(np.exp(numbers - most).sum(-1, keepdims=True))
    logprobs[:, blocked] = -np.inf
    ids = np.argsort(-logprobs, axis=-1, kind="stable")[:, :count]
    values = np.take_along_axis(logprobs, ids, -1)
    return values, np.where(np.isinf(values), 0, ids)


def random_scores(rows: int, ids: int, seed: int, spread: float = 4.0) -> Tensor:
    return torch.randn(rows, ids, generator=torch.Generator().manual_seed(seed)) * spread


@given(
    rows=st.integers(1, 5),
    ids=st.integers(1, 700),
    count=st.integers(1, 30),
    blocked=st.lists(st.integers(0, 699), max_size=40),
    spread=st.sampled_from([0.1, 4.0, 60.0]),
    seed=st.integers(0, 99),
)
def test_beside_numpy(rows: int, ids: int, count: int, blocked: list[int], spread: float, seed: int) -> None:
    scores, blocked = random_scores(rows, ids, seed, spread), [id for id in blocked if id < ids]
    best = best_logprobs(scores, min(count, ids), blocked)
    assert best is not None
    values, places = expected(scores, min(count, ids), blocked)
    np.testing.assert_allclose(best[0].numpy(), values, rtol=2e-6, atol=2e-6)
    np.testing.assert_array_equal(best[1].numpy(), places)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_may_lie_apart_in_any_dtype(dtype: torch.dtype) -> None:
    scores = random_scores(6, 300, 1).to(dtype)
    for view in (scores[:, :203], scores[::2], scores.T, scores[:, ::3], scores[:0]):
        best = best_logprobs(view, 5)
        assert best is not None
        values, places = expected(view, 5, [])
        np.testing.assert_allclose(best[0].numpy(), values, rtol=2e-6, atol=2e-6)
        if dtype == torch.float32:  # in bf16, scores are equal
            np.testing.assert_array_equal(best[1].numpy(), places)


def test_of_equal_scores_the_least_ids_come_first() -> None:
    scores = torch.zeros(1, 500)
    scores[0, [7, 80, 450]] = 1
    best = best_logprobs(scores, 6, [80])
    assert best is not None
    assert best[1].tolist() == [[7, 450, 0, 1, 2, 3]]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("place", [0, 100, 299])
def test_a_broken_row_is_nan_and_the_others_are_not(bad: float, place: int) -> None:
    scores = random_scores(3, 300, 2)
    scores[1, place] = bad
    best = best_logprobs(scores, 4)
    assert best is not None
    assert best[0].isnan().all(1).tolist() == [False, True, False]
    assert best[0].isnan().any(1).tolist() == [False, True, False]


def test_a_row_without_a_finite_score_is_nan() -> None:
    scores = random_scores(2, 300, 3)
    scores[0] = -torch.inf
    best = best_logprobs(scores, 4)
    assert best is not None
    assert best[0].isnan().all(1).tolist() == [True, False]


def test_what_is_impossible_is_the_least() -> None:
    """As in log_softmax: -inf has no probability, and follows with id 0 if there are too few others."""
    scores = torch.full((1, 300), -torch.inf)
    scores[0, [200, 250]] = torch.tensor([0.0, 1.0])
    best = best_logprobs(scores, 4)
    assert best is not None
    assert best[1].tolist() == [[250, 200, 0, 0]]
    torch.testing.assert_close(best[0][:, :2], scores[:, [250, 200]].log_softmax(-1))
    assert best[0][0, 2:].tolist() == [-torch.inf] * 2


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_change_nothing(threads: int) -> None:
    scores, before = random_scores(7, 1000, 4), torch.get_num_threads()
    one = best_logprobs(scores, 9)
    try:
        torch.set_num_threads(threads)
        several = best_logprobs(scores, 9)
    finally:
        torch.set_num_threads(before)
    assert one is not None
    assert several is not None
    assert torch.equal(one[0], several[0])
    assert torch.equal(one[1], several[1])
