"""Decoding steps captured in graphs give the CPU's tokens, whatever happens to rows, weights and modules in between."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from heddle.config import SamplingConfig
from heddle.generate import Engine
from heddle.model import Transformer
from heddle.model.graphs import GraphedSteps
from heddle.nn.cache import Cache
from tests.device.compare import assert_same
from tests.device.imitated import imitated
from tests.device.imitation import Imitation
from tests.device.test_decoding import ALONE, GUESSED, PROMPTS, ROUNDING, rows
from tests.generate.test_engine import FAMILIES, LIMITS, run, tiny
from tests.thorough import first, thorough

GREEDY = SamplingConfig(temperature=0, max_tokens=24)
OTHER = next(number for number, config in enumerate(FAMILIES) if config not in ALONE)  # none of them is captured


def graphed(model: Transformer) -> Transformer:
    """The model on the device, with graphs."""
    model = model.to("cuda")
    model.steps = GraphedSteps(model)
    return model


def texts(model: Transformer, prompts: Any = PROMPTS[:3]) -> Any:
    return run(Engine.of(model, prompts, GREEDY))


def first_query(model: Transformer) -> Any:
    assert model.decoder is not None
    return next(iter(model.decoder.layers())).mixer.q


def check_steps(change: Callable[[Transformer, int], None], cut: Callable[..., None] = lambda *anything: None) -> None:
    """The logits of four steps, before each of which something happens, are the CPU's."""

    def steps(model: Transformer) -> Any:
        cache, ids = model.new_cache(1), torch.tensor([[1, 5, 2]], device=model.device)
        model(ids, cache=cache)
        logits = []
        for number, token in enumerate((4, 2, 7, 1)):
            change(model, number)
            cut(model, number, cache)
            new = torch.tensor([[token]], device=model.device)
            scores = (
                model.logits(model(new, cache=cache).hidden[:, -1]) if model.steps is None else model.steps(new, cache)
            )
            logits.append(scores.log_softmax(-1).tolist())
        return logits

    with torch.no_grad():
        expected = steps(tiny(GUESSED[0]))
        with Imitation():
            assert_same(expected, steps(graphed(tiny(GUESSED[0]))), ROUNDING)


@imitated
@pytest.mark.parametrize(
    "number", [OTHER, *thorough(*(number for number, config in enumerate(FAMILIES) if config in ALONE))]
)
def test_every_family_and_sampling(number: int) -> None:
    config = FAMILIES[number]
    expected = rows(tiny(config), LIMITS[number % 4])
    with Imitation():
        model = graphed(tiny(config))
        assert_same(expected, rows(model, LIMITS[number % 4]), ROUNDING)
        assert isinstance(model.steps, GraphedSteps)
        assert bool(model.steps.graphs) is (config in ALONE)


@imitated
def test_a_long_text_needs_few_launches_a_token() -> None:
    """The engine captures by itself; a cache that grows has another graph."""
    config = ALONE[0]
    sampling = GREEDY.model_copy(update={"max_tokens": 40})
    expected = run(Engine.of(tiny(config), PROMPTS[:1], sampling))
    with Imitation() as gpu:
        model = tiny(config).to("cuda")
        engine = Engine.of(model, PROMPTS[:1], sampling)
        engine.step()
        engine.step()
        gpu.reset()
        engine.step()
        assert gpu.launches.total() < 20
        events = {0: list(expected[0])[:3]}
        for row, left in run(engine).items():
            events[row] += left
        assert_same(expected, events, ROUNDING)


@imitated
@pytest.mark.parametrize("way", ["in place", "in other memory", "another parameter"])
def test_a_changed_weight_is_used(way: str) -> None:
    def change(model: Transformer) -> Any:
        layer: Any = first_query(model)
        before = texts(model)
        with torch.no_grad():
            if way == "in place":
                layer.weight.mul_(-1)
            elif way == "in other memory":
                layer.weight.data = -layer.weight.data
            else:
                layer.weight = torch.nn.Parameter(-layer.weight)
        return before, texts(model)

    expected = change(tiny(ALONE[0]))
    assert expected[0] != expected[1]
    with Imitation():
        assert_same(expected, change(graphed(tiny(ALONE[0]))), ROUNDING)


@imitated
def test_a_weight_that_moves_within_a_text() -> None:
    def change(model: Transformer, number: int) -> None:
        if number == 2:
            layer: Any = first_query(model)
            layer.weight.data = -layer.weight.data

    check_steps(change)


@imitated
def test_a_hook_sees_every_step() -> None:
    seen = []

    def hook(model: Transformer, number: int) -> None:
        assert model.decoder is not None
        if number == 1:
            model.decoder.final_norm.register_forward_hook(lambda *anything: seen.append(model.device.type))

    check_steps(hook)
    assert seen.count("cuda") == seen.count("cpu") == 3


@imitated
def test_a_hook_on_all_modules_sees_every_step() -> None:
    seen, handles = [], []

    def note(module: torch.nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(module, Transformer):
            seen.append(module.device.type)

    def hook(model: Transformer, number: int) -> None:
        if number == 1:
            handles.append(torch.nn.modules.module.register_module_forward_hook(note))
        elif number == 3:
            handles.pop().remove()

    check_steps(hook)
    assert seen.count("cuda") == seen.count("cpu") == 2


@imitated
def test_tokens_that_are_taken_back() -> None:
    """A cache in a graph is cut, and continues."""

    def cut(model: Transformer, number: int, cache: Cache) -> None:
        if number == 2:
            cache.truncate([4])

    check_steps(lambda *anything: None, cut)


@imitated
@pytest.mark.parametrize("number", first(2, range(len(ALONE))))
def test_two_caches_take_turns(number: int) -> None:
    def turns(model: Transformer) -> Any:
        engines = [Engine.of(model, prompts, GREEDY) for prompts in (PROMPTS[:2], PROMPTS[2:4])]
        return [engine.step() for _ in range(4) for engine in engines]

    expected = turns(tiny(ALONE[number]))
    with Imitation():
        assert_same(expected, turns(graphed(tiny(ALONE[number]))), ROUNDING)


@imitated
def test_a_module_that_reads_numbers_is_not_captured() -> None:
    class Reads(torch.nn.Module):
        def __init__(self, inner: torch.nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Any) -> Any:
            return self.inner(x) if x.sum().item() < 1e9 else x

    expected = texts(tiny(ALONE[0]))
    with Imitation():
        model = graphed(tiny(ALONE[0]))
        assert model.decoder is not None
        model.decoder.final_norm = Reads(model.decoder.final_norm)
        assert_same(expected, texts(model), ROUNDING)
        assert isinstance(model.steps, GraphedSteps)
        assert not model.steps.graphs
