"""The learning rate's factor over time."""

from itertools import pairwise
from math import cos, pi
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.config import TrainConfig
from heddle.errors import HeddleError
from heddle.train.schedule import SCHEDULES, factor, usual


def values(steps: int, warmup: int, **settings: Any) -> list[float]:
    """The factor of every step."""
    return [factor(step, steps, warmup, TrainConfig(**settings)) for step in range(steps)]


def test_it_warms_up_in_a_straight_line() -> None:
    for schedule in SCHEDULES:
        assert values(100, 4, schedule=schedule)[:4] == [0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize(
    ("settings", "middle", "end"),
    [
        ({"schedule": "linear", "final": 0.1}, 0.55, 0.1 + 0.9 / 10),
        ({"schedule": "cosine", "final": 0.1}, 0.55, 0.1 + 0.9 * (1 + cos(0.9 * pi)) / 2),
        ({"schedule": "constant"}, 1.0, 1.0),
        ({"schedule": "wsd", "final": 0.1, "decay": 0.25}, 1.0, 0.1 + 0.9 / 3),
        ({"schedule": "wsd", "decay": 1.0}, 0.5, 0.1),
    ],
    ids=str,
)
def test_schedules(settings: dict[str, Any], middle: float, end: float) -> None:
    rates = values(12, 2, **settings)
    assert rates[2] == 1.0
    assert rates[7] == pytest.approx(middle)
    assert rates[11] == pytest.approx(end)


def test_wsd_is_constant_until_its_decay() -> None:
    """The last quarter of all 100 steps decays, whatever the warmup."""
    rates = values(100, 20, schedule="wsd", decay=0.25)
    assert rates[19:76] == [1.0] * 57
    assert rates[76:] == pytest.approx([(99 - step) / 25 + 1 / 25 for step in range(76, 100)])


@pytest.mark.parametrize("warmup", [1, 4, 4000])
def test_inverse_sqrt_is_equation_3(warmup: int) -> None:
    """lr(s) = D^-0.5 min(s^-0.5, s w^-1.5), for steps s from 1 (Vaswani et al. 2017), over its largest value."""
    steps = 3 * warmup

    def rate(step: int) -> float:
        return 512**-0.5 * min(step**-0.5, step * warmup**-1.5)

    highest = max(rate(step) for step in range(1, steps + 1))
    config = TrainConfig(schedule="inverse_sqrt")
    for step in {1, 2, warmup, warmup + 1, steps} & set(range(1, steps + 1)):
        assert factor(step - 1, steps, warmup, config) == pytest.approx(rate(step) / highest)


def test_a_cosine_is_flat_at_both_ends() -> None:
    rates = values(1000, 0, schedule="cosine")
    drops = [before - after for before, after in pairwise(rates)]
    assert max(drops[0], drops[-1]) < max(drops) / 100
    assert max(drops) == pytest.approx(pi / 2 / 1000, rel=1e-3)


@given(
    st.integers(1, 500), st.integers(0, 500), st.sampled_from(sorted(SCHEDULES)), st.floats(0, 1), st.floats(0.01, 1)
)
def test_it_stays_between_nothing_and_the_highest(
    steps: int, warmup: int, schedule: str, final: float, decay: float
) -> None:
    final = 0.0 if schedule in ("constant", "inverse_sqrt") else final
    settings = {"schedule": schedule, "final": final} | ({"decay": decay} if schedule == "wsd" else {})
    rates = values(steps, warmup, **settings)
    assert all(0 < value <= 1 + 1e-12 or (value >= 0 and final == 0) for value in rates)
    after = rates[warmup:]
    assert all(value >= final - 1e-12 for value in after)
    assert all(later <= earlier + 1e-12 for earlier, later in pairwise(after))
    rise = rates[:warmup]
    assert rise == sorted(rise)
    assert max(rates) == 1.0 or warmup > steps


@pytest.mark.parametrize(
    "settings",
    [
        {"decay": 0.5},
        {"schedule": "cosine", "decay": 0.5},
        {"schedule": "constant", "final": 0.1},
        {"schedule": "inverse_sqrt", "final": 0.1},
    ],
    ids=str,
)
def test_what_would_have_no_effect_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(HeddleError, match="has no effect with schedule"):
        TrainConfig.of(settings)
    assert TrainConfig.of(TrainConfig(schedule="wsd", decay=0.5).to_dict()).decay == 0.5


@pytest.mark.parametrize(
    ("started", "settings", "rates"),
    [
        (False, {"optimizer": "adamw"}, {64: 6e-3, 256: 3e-3, 1024: 1.5e-3}),
        (True, {"optimizer": "adamw"}, {32: 1.697e-3, 128: 8.485e-4, 256: 3e-4, 768: 5.774e-5, 1024: 3.75e-5}),
        (True, {"lora": {}}, {128: 6e-3, 256: 3e-3, 768: 1e-3, 4096: 1.875e-4}),
    ],
)
def test_usual_rates_by_width(started: bool, settings: dict[str, Any], rates: dict[int, float]) -> None:
    train = TrainConfig.of(settings)
    assert {dim: usual(train, started).rate(train, dim) for dim in rates} == pytest.approx(rates, rel=1e-3)
    assert usual(train, started).warmup == (0.1 if started else 0.02)
