"""What may be drawn, and the draw."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    LogitsProcessor,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from heddle.config import SamplingConfig
from heddle.errors import HeddleError
from heddle.generate import draw, process
from heddle.generate.levels import at_levels, uniform
from heddle.generate.logprobs import log_probabilities
from heddle.generate.sampling import choose
from tests.lectures.golden import Case

INF = float("inf")


def survivors(logits: list[float], **sampling: Any) -> list[int]:
    """The ids that may be drawn."""
    scores = process(torch.tensor([logits]), SamplingConfig(**sampling))[0]
    return [i for i, score in enumerate(scores.tolist()) if score > -INF]


def logs(probabilities: list[float]) -> list[float]:
    return torch.tensor(probabilities, dtype=torch.float64).log().tolist()


def test_the_default_changes_no_probability() -> None:
    logits = torch.randn(3, 7, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(process(logits, SamplingConfig()).softmax(-1), logits.double().softmax(-1), atol=1e-15)


def test_temperature_divides() -> None:
    logits = torch.randn(3, 7, generator=torch.Generator().manual_seed(0))
    expected = (logits.double() / 0.7).softmax(-1)
    assert torch.allclose(process(logits, SamplingConfig(temperature=0.7)).softmax(-1), expected, atol=1e-15)


@pytest.mark.lecture("L0-74", "L2-60", "D-31")
@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 1e-300}, {"top_k": 1}, {"top_p": 1e-9}])
def test_greedy_in_every_way_it_can_be_asked_for(sampling: dict[str, Any]) -> None:
    logits = torch.randn(50, 11, generator=torch.Generator().manual_seed(1))
    ids = draw(process(logits, SamplingConfig(**sampling)), [(7, row) for row in range(50)])
    assert torch.equal(ids, logits.argmax(-1))


@pytest.mark.lecture("L0-74")
def test_ties_go_to_the_lowest_ids() -> None:
    logits = [1.0, 3.0, 2.0, 3.0, 2.0, 3.0, -INF]
    assert survivors(logits, temperature=0) == [1]
    assert survivors(logits, top_k=1) == [1]
    assert survivors(logits, top_k=2) == [1, 3]
    assert survivors(logits, top_k=4) == [1, 2, 3, 5]
    assert survivors(logits, top_k=100) == [0, 1, 2, 3, 4, 5]
    assert survivors(logs([0.25, 0.25, 0.25, 0.25]), top_p=0.5) == [0, 1]
    assert survivors(logs([0.25, 0.25, 0.25, 0.25]), top_p=0.51) == [0, 1, 2]


@pytest.mark.lecture("L0-74")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_greedy_choice_is_the_draw_of_what_may_be_drawn(dtype: torch.dtype) -> None:
    """With many ties, in rows wide enough for several threads and vectors."""
    logits = torch.randn(4, 40_000, generator=torch.Generator().manual_seed(3)).clamp(max=3).to(dtype)
    greedy, keys = SamplingConfig(temperature=0), [(0, row) for row in range(4)]
    assert all((row == row.max()).sum() > 1 for row in logits)
    ids = choose(logits, greedy, keys)
    assert torch.equal(ids, draw(process(logits, greedy), keys))
    assert ids.tolist() == [int((row == row.max()).nonzero()[0]) for row in logits]


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 2e-6), (torch.float64, 1e-14)]
)
def test_log_probabilities_are_those_of_the_logits(dtype: torch.dtype, tolerance: float) -> None:
    logits = (3 * torch.randn(4, 50_000, generator=torch.Generator().manual_seed(3))).to(dtype)
    ids = torch.tensor([0, 7, 49_999, 300])
    expected = logits.double().log_softmax(-1).gather(-1, ids[:, None])[:, 0]
    assert torch.allclose(
        log_probabilities(logits).gather(-1, ids[:, None])[:, 0].double(), expected, rtol=tolerance, atol=0
    )


def test_top_p_keeps_the_fewest_that_reach_the_share() -> None:
    probabilities = [0.1, 0.5, 0.15, 0.25]
    assert survivors(logs(probabilities), top_p=0.4) == [1]
    assert survivors(logs(probabilities), top_p=0.6) == [1, 3]
    assert survivors(logs(probabilities), top_p=0.8) == [1, 2, 3]
    assert survivors(logs(probabilities), top_p=1.0) == [0, 1, 2, 3]


def test_top_p_over_a_large_vocabulary() -> None:
    """Rows that need few ids, many, and nearly all, with ties; beside the definition, one row at a time."""
    draws = torch.randn(4, 30_000, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    logits = (draws * torch.tensor([[9.0], [3.0], [1.0], [0.0]])).round(decimals=2)
    allowed = process(logits, SamplingConfig(top_p=0.9)) > -INF
    for row, scores in zip(allowed, logits, strict=True):
        weight, order = scores.softmax(-1).sort(descending=True, stable=True)
        fewest = int((weight.cumsum(-1) < 0.9).sum()) + 1
        assert torch.equal(row.nonzero()[:, 0], order[:fewest].sort().values)
    assert allowed.sum(-1)[0] < 1024 < allowed.sum(-1)[1] < 8192 < allowed.sum(-1)[2]


def test_the_order_is_temperature_then_top_k_then_top_p() -> None:
    probabilities = [0.4, 0.3, 0.2, 0.1]
    assert survivors(logs(probabilities), top_p=0.5) == [0, 1]
    assert survivors(logs(probabilities), top_p=0.5, top_k=2) == [0]  # 0.4 of the remaining 0.7
    assert survivors(logs(probabilities), top_p=0.5, temperature=0.5) == [0]  # 0.16 of 0.30
    assert survivors(logs(probabilities), top_p=0.5, temperature=100.0) == [0, 1]


@pytest.mark.parametrize(
    ("sampling", "references"),
    [
        ({"temperature": 0.7}, [TemperatureLogitsWarper(0.7)]),
        ({"top_k": 5}, [TopKLogitsWarper(5)]),
        ({"top_p": 0.8}, [TopPLogitsWarper(0.8)]),
        ({"min_p": 0.05}, [MinPLogitsWarper(0.05)]),
        ({"typical_p": 0.6}, [TypicalLogitsWarper(0.6)]),
        (
            {"temperature": 1.5, "top_k": 60, "top_p": 0.95, "min_p": 0.02, "typical_p": 0.9},
            [
                TemperatureLogitsWarper(1.5),
                TopKLogitsWarper(60),
                TopPLogitsWarper(0.95),
                MinPLogitsWarper(0.02),
                TypicalLogitsWarper(0.9),
            ],
        ),
    ],
)
def test_what_may_be_drawn_is_what_transformers_leaves(
    sampling: dict[str, Any], references: list[LogitsProcessor]
) -> None:
    logits = 3 * torch.randn(40, 100, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    logits[::3, :7] = -INF
    actual, left = process(logits, SamplingConfig(**sampling)), logits
    for each in references:
        left = each(torch.zeros(40, 1, dtype=torch.long), left)
    assert torch.equal(actual > -INF, left > -INF)
    assert torch.allclose(actual.softmax(-1), left.softmax(-1), atol=1e-12)


def test_typical_ids_are_the_fewest_with_a_usual_surprise() -> None:
    probabilities = [0.5, 0.3, 0.1, 0.05, 0.05]  # the mean surprise is 1.24, that of 0.3 is 1.20
    assert survivors(logs(probabilities), typical_p=0.2) == [1]
    assert survivors(logs(probabilities), typical_p=0.35) == [0, 1]
    assert survivors(logs(probabilities), typical_p=0.99) == [0, 1, 2, 3, 4]
    assert survivors(logs([0.25, 0.25, 0.25, 0.25]), typical_p=0.5) == [0, 1]
    assert survivors(logs(probabilities), min_p=0.19) == [0, 1, 2]


@given(st.lists(st.floats(-20, 20) | st.just(-INF), min_size=2, max_size=9), st.integers(0, 3), st.integers(0, 10**6))
def test_what_is_blocked_is_never_drawn(logits: list[float], way: int, seed: int) -> None:
    logits[0] = 0.0
    sampling = [{}, {"temperature": 3.0}, {"top_k": 2}, {"top_p": 0.7}][way]
    scores = process(torch.tensor([logits]), SamplingConfig(**sampling))
    ids = draw(scores.expand(20, -1), [(seed, position) for position in range(20)])
    assert all(scores[0, i] > -INF and logits[i] > -INF for i in ids.tolist())


@pytest.mark.lecture("L2-60", "D-31")
def test_frequencies_are_the_probabilities() -> None:
    """Unless a setting says otherwise: a prediction is drawn, and the most probable token is asked for."""
    probabilities = Case("tiny_lm").outputs["probs"][2]
    count = 50_000
    scores = process(probabilities.log()[None], SamplingConfig())
    ids = draw(scores.expand(count, -1), [(3, position) for position in range(count)])
    sigma = (probabilities * (1 - probabilities) / count).sqrt()
    assert ((ids.bincount(minlength=5) / count - probabilities).abs() < 4 * sigma).all()


def test_a_draw_depends_on_its_key_alone() -> None:
    logits = torch.randn(6, 40, generator=torch.Generator().manual_seed(2))
    keys = [(seed, position) for seed in (0, 1, 2**63 - 1) for position in (0, 17)]
    together = draw(logits, keys).tolist()
    assert together == [draw(logits[[row]], [key]).item() for row, key in enumerate(keys)]
    assert together[::-1] == draw(logits.flip(0), keys[::-1]).tolist()
    assert len({uniform(*key) for key in keys}) == len(keys)


@pytest.mark.parametrize(("level", "expected"), [(0.0, 1), (0.5, 2), (1 - 2**-53, 2)])
def test_the_ends_of_the_distribution(monkeypatch: pytest.MonkeyPatch, level: float, expected: int) -> None:
    monkeypatch.setattr("heddle.generate.sampling.uniform", lambda *key: level)
    assert draw(torch.tensor([[-INF, 0.0, 0.0, -INF]]), [(0, 0)]).tolist() == [expected]


@pytest.mark.parametrize(("level", "expected"), [(0.0, 1), (0.5, 2), (1 - 2**-53, 2)])
def test_the_ends_of_the_distribution_in_whole_numbers(level: float, expected: int) -> None:
    probabilities = torch.tensor([[-INF, 0.0, 0.0, -INF]]).softmax(-1)
    assert at_levels(probabilities, [level]).tolist() == [expected]


def test_devices_without_float64_draw_the_same_ids() -> None:
    logits = 3 * torch.randn(1, 50_000, generator=torch.Generator().manual_seed(5)).expand(400, -1)
    keys = [(4, position) for position in range(400)]
    assert torch.equal(at_levels(logits.softmax(-1), [uniform(*key) for key in keys]), draw(logits, keys))


def test_sums_in_whole_numbers_do_not_depend_on_their_order() -> None:
    probabilities = torch.rand(3, 999, generator=torch.Generator().manual_seed(6)).softmax(-1)
    ids = at_levels(probabilities, [0.1, 0.5, 0.9])
    for row, level in enumerate((0.1, 0.5, 0.9)):
        wholes = [int(number * 2**40) for number in probabilities[row].tolist()]
        threshold = (sum(wholes) >> 10) * int(level * 2**32) >> 22
        assert sum(wholes[: ids[row]]) <= threshold < sum(wholes[: ids[row] + 1])


def test_neighbouring_keys_are_unrelated() -> None:
    count = 20_000
    first, second = (torch.tensor([uniform(seed, i) for i in range(count)], dtype=torch.float64) for seed in (0, 1))
    for one, other in ((first[1:], first[:-1]), (first, second)):
        assert abs(torch.corrcoef(torch.stack((one, other)))[0, 1]) < 4 / count**0.5


def test_the_numbers_stay_what_they_are() -> None:
    """A seed means the same on every machine and in every release."""
    assert [uniform(3, position) for position in range(3)] == pytest.approx(
        [0.9342820204007575, 0.7580892609837582, 0.3322874946230707], abs=1e-15
    )


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_k": 0}, "top_k"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"min_p": -0.1}, "min_p"),
        ({"typical_p": 0}, "typical_p"),
        ({"logprobs": -1}, "logprobs"),
        ({"logit_bias": {-1: 2.0}}, "logit_bias"),
        ({"logit_bias": {"x": 2.0}}, "logit_bias"),
        ({"logit_bias": [[1, 2.0], [1, 3.0]]}, "twice"),
        ({"banned": [[1], []]}, "empty"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"seed": -1}, "seed"),
        ({"stop": ["a", ""]}, "empty"),
        ({"temprature": 1}, "Did you mean 'temperature'"),
    ],
)
def test_impossible_sampling_is_refused(sampling: dict[str, Any], message: str) -> None:
    with pytest.raises(HeddleError, match=message):
        SamplingConfig.of(sampling)
