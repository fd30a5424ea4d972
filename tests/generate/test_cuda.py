"""Generation on a GPU, where there is one: the same texts as on the CPU."""

from typing import Any

import pytest
import torch

from heddle.config import SamplingConfig
from heddle.generate import Engine, naive
from tests.generate.test_engine import FAMILIES, source_of, tiny
from tests.models import name_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

PROMPTS = [[1, 5, 2], [7], [3, 3, 9, 4, 6, 2, 8]]
SAMPLINGS = [SamplingConfig(temperature=0, max_tokens=12), SamplingConfig(temperature=0.8, max_tokens=9, seed=3)]


@pytest.mark.parametrize("config", FAMILIES, ids=name_of)
def test_texts_are_those_of_the_naive_loop_on_the_cpu(config: Any) -> None:
    """In fp32; greedy and sampled rows, of which each begins two steps after the one before it."""
    model, engine, texts = tiny(config), Engine(tiny(config).to("cuda"), 0), dict[int, list[int]]()
    for row, prompt in enumerate(PROMPTS):
        engine.submit(prompt, SAMPLINGS[row % 2], seed=row, source=source_of(model, row))
        for event in (*engine.step(), *engine.step()):
            texts.setdefault(event.row, []).append(event.token)
    while engine:
        for event in engine.step():
            texts.setdefault(event.row, []).append(event.token)
    for row, prompt in enumerate(PROMPTS):
        assert texts[row] == naive(model, prompt, SAMPLINGS[row % 2], 0, source_of(model, row), seed=row)
