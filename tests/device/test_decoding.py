"""Decoding on the imitated GPU: every way gives the CPU's tokens and log probabilities."""

from collections.abc import Callable
from typing import Any

import pytest

from heddle.config import BeamConfig, EngineConfig, SamplingConfig
from heddle.generate import DraftModel, Engine, PromptLookup, beam_search, generate, generate_text, naive, stream
from heddle.model import Transformer
from tests.device.compare import assert_same
from tests.device.imitated import imitated
from tests.device.imitation import Imitation
from tests.generate.test_engine import FAMILIES, LIMITS, SAMPLINGS, cannot_take_back, run, source_of, tiny
from tests.models import config_of
from tests.serve.conftest import TOKENIZER, models
from tests.thorough import thorough

ROUNDING = 1e-5  # of log probabilities: the CPU takes another attention kernel
PROMPTS = [[1, 5, 2], [7], [3, 3, 9, 4, 6, 2, 8], [1, 5, 2], [4, 4, 4, 4, 4], [2, 9]]
ALONE = [config for config in FAMILIES if config.encoder is None and config.decoder is not None]
GUESSED = [config for config in ALONE if not cannot_take_back(config)]


def check(ways: Callable[[Transformer], Any], *configs: Any) -> None:
    """What this gives with each model on the CPU and on the device."""
    for config in configs:
        expected = ways(tiny(config))
        with Imitation():
            assert_same(expected, ways(tiny(config).to("cuda")), ROUNDING)


def rows(model: Transformer, limits: EngineConfig, **more: Any) -> dict[int, Any]:
    """Rows of all samplings, of which each two begin a step after those before them."""
    engine, events = Engine(model, 0, config=limits, **more), dict[int, list[Any]]()
    for row, (prompt, sampling) in enumerate(zip(PROMPTS, SAMPLINGS, strict=True)):
        engine.submit(prompt, sampling, seed=row, source=source_of(model, row))
        for event in engine.step() if row % 2 else ():
            events.setdefault(event.row, []).append(event)
    for row, left in run(engine).items():
        events.setdefault(row, []).extend(left)
    return events


@imitated
@pytest.mark.parametrize(
    "number", [*range(0, len(FAMILIES), 3), *thorough(*(number for number in range(len(FAMILIES)) if number % 3))]
)
def test_every_family_and_sampling(number: int) -> None:
    check(lambda model: rows(model, LIMITS[number % 4]), FAMILIES[number])


@pytest.mark.thorough
@imitated
def test_one_text_at_a_time() -> None:
    """The loop without a cache, the loop with one, and the engine's for many prompts."""

    def ways(model: Transformer) -> Any:
        one = [list(stream(model, PROMPTS[2], each, 0)) for each in SAMPLINGS[:4]]
        return one, naive(model, PROMPTS[0], SAMPLINGS[1], 0), list(generate(model, PROMPTS[:3], SAMPLINGS[2], 0))

    check(ways, ALONE[0])


@pytest.mark.thorough
@imitated
def test_guessed_tokens() -> None:
    check(lambda model: rows(model, LIMITS[0], draft_source=PromptLookup()), GUESSED[1])

    def drafted(model: Transformer) -> Any:
        draft = tiny(config_of()).to(model.device)
        return rows(model, LIMITS[2], draft_source=DraftModel(draft))

    check(drafted, GUESSED[0])


@imitated
def test_prompts_that_are_echoed() -> None:
    def ways(model: Transformer) -> Any:
        engine = Engine(model, 0, config=EngineConfig(chunk=3))
        for prompt in PROMPTS[:3]:
            engine.submit(prompt, SamplingConfig(temperature=0, max_tokens=2, logprobs=2), echo=True)
        return run(engine)

    check(ways, *[config for config in ALONE if not config.last()[1].prefix][:2])


@imitated
def test_beam_search() -> None:
    def ways(model: Transformer) -> Any:
        inputs = {"prompts": PROMPTS[:3]}
        if model.encoder is not None:
            inputs = {"prompts": [[]] * 3, "sources": PROMPTS[:3]}
        return dict(beam_search(model, config=BeamConfig(beams=3, max_tokens=6), end_of_text=0, **inputs))

    check(ways, ALONE[0], *[config for config in FAMILIES if config.encoder is not None][:1])


@imitated
def test_constrained_texts() -> None:
    def texts(model: Transformer) -> list[str]:
        settings = {"max_tokens": 20, "seed": 3}
        return [
            generate_text(model, TOKENIZER, "the", choice=["warp", "weft"], **settings),
            generate_text(model, TOKENIZER, "the", regex="[a-c]{2,4}x?", temperature=2.0, **settings),
        ]

    expected = texts(models()["plain"])
    with Imitation():
        assert texts(models()["plain"].to("cuda")) == expected
