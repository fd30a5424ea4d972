"""A program: what steps by parts of torch's ahead-of-time compiler generate, as JSON.

It runs in a process without the shape checks, which cannot be traced, and with a cache of its own.
"""

import json
import sys
from itertools import chain
from typing import Any

import torch

from heddle.config import BeamConfig, SamplingConfig
from heddle.generate import Engine, Hypothesis, beam_search, generate
from heddle.model import Transformer, build, steps
from heddle.model.compile_steps import compile_all, compile_now
from heddle.model.graphs import Eager
from heddle.model.packages import steps_folder
from heddle.model.precision import cast
from heddle.model.quantize import quantize
from heddle.model.steps import PackagedSteps
from tests.models import FEW, VOCABULARY, config_of

LONG = SamplingConfig(max_tokens=70, temperature=0)  # past a capacity of the cache
PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8], [9]]
BEAMS = 3
END = 0  # an encoder-decoder's answer starts after it


def texts(
    model: Transformer, prompts: list[list[int]], sampling: SamplingConfig = LONG
) -> list[list[tuple[int, float]]]:
    """The tokens of each row with their log probabilities; an encoder-decoder reads the prompts as sources."""
    rows: list[list[tuple[int, float]]] = [[] for _ in prompts]
    starts, sources = (prompts, None) if model.encoder is None else ([[END] for _ in prompts], prompts)
    for event in generate(model, starts, sampling, sources=sources):
        rows[event.row].append((event.token, event.logprob))
    return rows


def translations(model: Transformer, sources: list[list[int]]) -> list[Hypothesis]:
    """All that beam search finds for sources, or after prompts."""
    prompts, encoded = (sources, None) if model.encoder is None else ([[] for _ in sources], sources)
    config = BeamConfig(beams=BEAMS, best=BEAMS, max_tokens=12)
    hypotheses = dict(beam_search(model, prompts, config, END, sources=encoded))
    return [each for number in sorted(hypotheses) for each in hypotheses[number]]


def plain(model: Transformer) -> Transformer:
    """The model, with steps that are not compiled."""
    model.steps = Eager(model)
    return model


def furthest(one: list[list[tuple[int, float]]], other: list[list[tuple[int, float]]]) -> float:
    """The largest difference of two log probabilities up to the first token that differs."""
    most = 0.0
    for row, again in zip(one, other, strict=True):
        for (token, logprob), (same, near) in zip(row, again, strict=True):
            if token != same:
                break
            most = max(most, abs(logprob - near))
    return most


def compared(model: Transformer, prompts: list[list[int]], sampling: SamplingConfig = LONG) -> dict[str, Any]:
    """What plain and compiled steps generate, how many parts were compiled for it, and why others were not."""
    requests: list[Any] = []
    steps.LOOK, steps.PATIENCE, steps.AGAIN = 0.0, 0.0, 0.0
    steps.request = lambda *about: requests.append(about)
    model.steps = Eager(model)
    expected = texts(model, prompts, sampling)
    model.steps = PackagedSteps(model)
    texts(model, prompts, sampling)
    for about in requests:
        compile_all(steps.described_for_compiling(*about))
    model.steps = PackagedSteps(model)
    actual, folder = texts(model, prompts, sampling), steps_folder()
    return {
        "difference": furthest(expected, actual),
        "equal": [[token for token, _ in row] for row in expected] == [[token for token, _ in row] for row in actual],
        "compiled": sum(libraries is not None for libraries in model.steps.libraries.values()),
        "parts": len(list(folder.glob("*.so"))),
        "failures": [file.read_text() for file in folder.glob("*.failed")],
    }


def family(number: str, rows: str) -> dict[str, Any]:
    """One of the models that together have every option, with so many rows."""
    model = build(FEW[int(number)], seed=1).eval()
    return compared(model, PROMPTS[: int(rows)], SamplingConfig(max_tokens=20, temperature=0))


def kind(name: str) -> dict[str, Any]:
    """A kind of weights, or a long context."""
    if name == "long":
        far = build(config_of(depth=2).override({"context": 2000}), seed=1).eval()
        return compared(far, [torch.arange(800).remainder(VOCABULARY).tolist()])
    model = build(config_of(dim=64, depth=2, ffn="gated"), seed=1).eval()
    return compared(cast(model, name) if name == "bf16" else quantize(model, name), PROMPTS)


def beams() -> dict[str, Any]:
    """An encoder-decoder's best translations, of one source and of several: by plain and by compiled steps."""
    model = build(config_of(family="both", depth=2), seed=1).eval()
    expected = [translations(plain(model), PROMPTS[:count]) for count in (1, 3)]
    model.steps = PackagedSteps(model)
    compile_now(model, (1, 2), beams=BEAMS)
    steps.LOOK = 0.0
    actual = [translations(model, PROMPTS[:count]) for count in (1, 3)]
    kinds = [kind for kind, libraries in model.steps.libraries.items() if libraries is not None]
    pairs = zip(chain(*expected), chain(*actual), strict=True)
    return {
        "difference": max(abs(one.logprob - other.logprob) for one, other in pairs),
        "kinds": sorted([kind.several, kind.share] for kind in kinds),
    }


def changes() -> dict[str, bool]:
    """What compiled steps do when something about the model changes: the next text is that of the changed model."""
    model = build(config_of(depth=2), seed=1).eval()
    compared(model, PROMPTS[:1])
    results = {}

    def check(name: str) -> None:
        packaged, model.steps = model.steps, Eager(model)
        expected = texts(model, PROMPTS[:1])
        model.steps = packaged
        results[name] = furthest(expected, texts(model, PROMPTS[:1])) < 1e-4

    block: Any = model.last_stack().blocks[0]
    with torch.no_grad():
        block.mixer.o.weight.neg_()
    check("in place")
    block.mixer.o.weight = torch.nn.Parameter(block.mixer.o.weight.detach().flip(0))
    check("another parameter")
    hook = block.register_forward_hook(lambda module, inputs, output: output._replace(hidden=-output.hidden))
    check("a hook")
    hook.remove()
    check("no hook")
    packaged, rows = model.steps, []
    for steps_of_model in (Eager(model), packaged, packaged):
        model.steps = steps_of_model
        engine = Engine.of(model, PROMPTS[:1], LONG)
        events = [engine.step()[0] for _ in range(10)]
        with torch.no_grad():
            block.ffn.down.weight.mul_(-3 if len(rows) < 2 else 1)
        rows.append([(event.token, event.logprob) for event in events + [engine.step()[0] for _ in range(10)]])
        with torch.no_grad():
            block.ffn.down.weight.mul_(-1 / 3 if len(rows) < 3 else 1)
    results["between two steps"] = furthest(rows[:1], rows[1:2]) < 1e-4 < furthest(rows[:1], rows[2:])
    return results


if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    print(json.dumps(globals()[name](*arguments)))
