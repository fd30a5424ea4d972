"""Decoding steps are compiled where that was measured to be faster, and only there."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from heddle.config import SamplingConfig
from heddle.errors import HeddleError
from heddle.generate import generate, naive
from heddle.model import Transformer, build, step_rates
from heddle.model.compiling import LIBRARIES, OWN_KERNELS, CompiledSteps
from heddle.model.device import has_compiler
from heddle.model.step_rates import OWN, StepRates, compile_faster_steps
from tests.models import config_of

pytestmark = pytest.mark.skipif(not has_compiler(), reason="torch.compile needs a C++ compiler")

COMPILED, BY_LIBRARIES = step_rates.KERNELS


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch, new_machine: Path) -> Mapping[tuple[int, str], float]:
    """Seconds of a step by its rows and how it is computed, to be filled; nothing is compiled. What was timed is in `tried`."""
    seconds: dict[tuple[int, str], float] = {}

    def of(model: Transformer, rows: int, count: int) -> float:
        way = OWN
        if isinstance(model.steps, CompiledSteps):
            way = COMPILED if model.steps.kernels[rows > 1] == OWN_KERNELS or rows > 1 else BY_LIBRARIES
        return seconds[rows, way]

    monkeypatch.setattr(step_rates, "_seconds", of)
    monkeypatch.setattr(step_rates, "warm_up", lambda model, rows: None)
    return seconds


def tiny() -> Transformer:
    return build(config_of(), seed=2).eval()


def test_what_is_clearly_faster_is_compiled_without_trying_another_way(timed: dict[tuple[int, str], float]) -> None:
    timed |= {(1, OWN): 0.01, (1, COMPILED): 0.004}
    model = tiny()
    reports = compile_faster_steps(model, (1,))
    assert reports == [StepRates(False, {OWN: 100.0, COMPILED: 250.0})]
    assert isinstance(model.steps, CompiledSteps)
    assert model.steps.kernels[False] == OWN_KERNELS


def test_products_by_libraries_are_tried_where_own_kernels_do_not_pay(timed: dict[tuple[int, str], float]) -> None:
    timed |= {(1, OWN): 0.01, (1, COMPILED): 0.0125, (1, BY_LIBRARIES): 0.008}
    model = tiny()
    (report,) = compile_faster_steps(model, (1,))
    assert report.best == BY_LIBRARIES
    assert isinstance(model.steps, CompiledSteps)
    assert model.steps.kernels[False] == LIBRARIES


def test_what_is_slower_compiled_is_not_compiled(timed: dict[tuple[int, str], float]) -> None:
    timed |= {(1, OWN): 0.01, (1, COMPILED): 0.0125, (1, BY_LIBRARIES): 0.016}
    model = tiny()
    (report,) = compile_faster_steps(model, (1,))
    assert (report.best, model.steps) == (OWN, None)


def test_one_row_and_several_are_chosen_apart(timed: dict[tuple[int, str], float]) -> None:
    timed |= {(1, OWN): 0.01, (1, COMPILED): 0.004, (8, OWN): 0.02, (8, COMPILED): 0.04}
    model = tiny()
    one, several = compile_faster_steps(model, (1, 2))
    assert (one.best, several.best) == (COMPILED, OWN)
    assert several.rates == {OWN: 400.0, COMPILED: 200.0}
    assert isinstance(model.steps, CompiledSteps)
    assert model.steps.kernels == {False: OWN_KERNELS, True: ()}


def test_steps_that_are_not_compiled_draw_the_same_tokens(timed: dict[tuple[int, str], float]) -> None:
    timed |= {(1, OWN): 0.01, (1, COMPILED): 0.004, (8, OWN): 0.02, (8, COMPILED): 0.04}
    model, prompts = tiny(), [[1, 2, 3], [4, 5, 6, 7], [9]]
    compile_faster_steps(model, (1, 2))
    drawn: list[list[int]] = [[] for _ in prompts]
    sampling = SamplingConfig(max_tokens=6, temperature=0.7)
    for event in generate(model, prompts, sampling):
        drawn[event.row].append(event.token)
    assert drawn == [naive(model, prompt, sampling) for prompt in prompts]
    assert isinstance(model.steps, CompiledSteps)
    assert not model.steps.calls


def test_they_are_measured_once_for_a_machine(timed: dict[tuple[int, str], float]) -> None:
    timed |= {(1, OWN): 0.01, (1, COMPILED): 0.0125, (1, BY_LIBRARIES): 0.016}
    compile_faster_steps(tiny(), (1,))
    timed.clear()  # measuring again would fail
    model = tiny()
    (report,) = compile_faster_steps(model, (1,))
    assert (report.best, model.steps) == (OWN, None)


def test_real_steps_are_timed_within_a_models_positions(new_machine: Path) -> None:
    model = tiny()
    with torch.inference_mode():
        assert step_rates._seconds(model, 1, step_rates._longest(model) - 2) > 0


def test_a_way_that_cannot_be_compiled_leaves_the_one_that_can(
    timed: dict[tuple[int, str], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    timed |= {(1, OWN): 0.01, (1, COMPILED): 0.0095}

    def refuse(model: Transformer, rows: object) -> None:
        if isinstance(model.steps, CompiledSteps) and model.steps.kernels[False] == LIBRARIES:
            raise HeddleError("cannot be compiled")

    monkeypatch.setattr(step_rates, "warm_up", refuse)
    (report,) = compile_faster_steps(tiny(), (1,))
    assert report.best == COMPILED


def test_a_model_that_cannot_be_compiled_is_left_as_it_was(
    timed: dict[tuple[int, str], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(model: Transformer, rows: object) -> None:
        raise HeddleError("cannot be compiled")

    monkeypatch.setattr(step_rates, "warm_up", refuse)
    model = tiny()
    with pytest.raises(HeddleError, match="cannot be compiled"):
        compile_faster_steps(model, (1,))
    assert model.steps is None
