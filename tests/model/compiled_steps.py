"""A program: what compiled decoding steps generate, and how many graphs that takes, as JSON.

It runs in a process without the shape checks, which cannot be traced. Graphs of `families` run as they were captured, which takes
a second each; `inductor` is the real compiler, for one model.
"""

import copy
import json
import sys
from functools import partial
from typing import Any

import torch

from heddle.config import RecurrentConfig, RotaryConfig, SamplingConfig
from heddle.errors import HeddleError
from heddle.generate import Engine, PromptLookup, generate, naive
from heddle.model import Transformer, build
from heddle.model.compiling import LIBRARIES, compile_steps, warm_up
from heddle.model.device import compile_graphs
from heddle.model.quantize import quantize
from tests.graphs import Graphs
from tests.models import config_of

FAMILIES: dict[str, dict[str, Any]] = {
    "learned": {},
    "rotary, grouped, window": {
        **{"window": 5, "relative": RotaryConfig(), "positions": "none", "kv_heads": 2, "ffn": "gated"},
    },
    "recurrent, experts": {"first": RecurrentConfig(cell="lstm"), "positions": "none", "ffn": "moe"},
    "prefix": {"prefix": True, "ffn": "none"},
    "encoder-decoder": {"family": "both", "ffn": "none"},
}
COMPILE = torch.compile
PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8], [9]]


def made(name: str, depth: int = 2, **more: Any) -> Transformer:
    settings = {**FAMILIES[name], **more}
    prefix = settings.pop("prefix", False)
    config = config_of(**settings)
    config = config.override({"context": 160, "initial": {"std": 0.3, "scale_residual": False}})
    assert config.decoder is not None
    config = config.override({"decoder": config.decoder.override({"prefix": prefix, "depth": depth})})
    return build(config, seed=2).eval()


def tokens(model: Transformer, prompts: list[list[int]], count: int) -> list[list[int]]:
    """What rows that start together draw."""
    texts: list[list[int]] = [[] for _ in prompts]
    sources = None if model.encoder is None else [prompt[::-1] for prompt in prompts]
    for event in generate(model, prompts, SamplingConfig(max_tokens=count, temperature=0.7), sources=sources):
        texts[event.row].append(event.token)
    return texts


def by_definition(model: Transformer, prompt: list[int], count: int) -> list[int]:
    source = None if model.encoder is None else prompt[::-1]
    return naive(model, prompt, SamplingConfig(max_tokens=count, temperature=0.7), source=source)


def families() -> dict[str, Any]:
    """For each family: whether the tokens are those of the definition, and the number of graphs of all calls."""
    results = {}
    for name in FAMILIES:
        graphs = Graphs()
        torch.compile = partial(COMPILE, backend=graphs)  # type: ignore[assignment]
        torch._dynamo.reset()
        model = compile_steps(made(name, depth=2 if "first" in FAMILIES[name] else 1))  # recurrent, then attention
        equal = tokens(model, PROMPTS[:1], 70) == [by_definition(model, PROMPTS[0], 70)]
        expected = [by_definition(model, prompt, 20) for prompt in PROMPTS]
        equal = equal and tokens(model, PROMPTS, 20) == expected
        equal = (
            equal and tokens(model, [PROMPTS[0]] * 2, 20) == [expected[0]] * 2
        )  # equal lengths, another number of rows
        results[name] = [equal, graphs.count]
    return results


def changes() -> dict[str, bool]:
    """Whether steps are captured anew after a change, right among guesses, and refused if they cannot be captured."""
    torch.compile = partial(COMPILE, backend=Graphs())  # type: ignore[assignment]
    model = compile_steps(made("learned", depth=1))
    assert model.decoder is not None
    before = tokens(model, PROMPTS, 8)
    results = {}
    block = model.decoder.blocks[0]
    handle = block.register_forward_hook(lambda module, inputs, out: out._replace(hidden=-out.hidden))
    now = tokens(model, PROMPTS, 8)
    results["a hook"] = before != now == [by_definition(model, prompt, 8) for prompt in PROMPTS]
    handle.remove()
    engine = Engine.of(
        model, [[1, 2, 3, 1, 2, 3, 1, 2]], SamplingConfig(max_tokens=12, temperature=0.7), draft_source=PromptLookup()
    )
    guessed = [event.token for _ in range(12) if engine for event in engine.step()]
    results["with guesses"] = guessed == by_definition(model, [1, 2, 3, 1, 2, 3, 1, 2], 12)
    block.register_forward_hook(lambda module, inputs, out: torch._dynamo.graph_break())
    try:
        tokens(model, PROMPTS, 8)
    except HeddleError as error:
        results["what cannot be compiled is refused"] = "cannot be compiled" in str(error)
    return results


def inductor(kind: str, graphs: int = 1, libraries: bool = False) -> float:
    """The largest difference of logits from those of the same steps without a compiler, relative to the largest one.

    The compiler's own products for one row take twice as long to compile as those of `libraries`.
    """
    more = {"relative": RotaryConfig(), "positions": "none", "kv_heads": 2, "ffn": "gated"}
    model = quantize(made("learned", depth=1, dim=64, **more), kind)
    compiled = compile_steps(copy.deepcopy(model))
    if libraries:
        assert compiled.steps is not None
        compiled.steps.use(False, LIBRARIES)  # type: ignore[attr-defined]
    warm_up(compiled, (1, 2)[:graphs])
    worst = 0.0
    with torch.inference_mode():
        for rows in (1, 3)[:graphs]:
            caches = [each.new_cache(rows) for each in (model, compiled)]
            ids = torch.arange(rows * 62).view(rows, 62) % 11
            for each, cache in zip((model, compiled), caches, strict=True):
                each(ids, cache=cache)
            assert compiled.steps is not None
            for number in range(4):  # across the next multiple of the caches' capacities
                one = torch.full((rows, 1), number)
                expected = model.logits(model(one, cache=caches[0]).hidden[:, -1])
                compiled_step = compiled.steps(one, caches[1])
                worst = max(worst, ((compiled_step - expected).abs().max() / expected[..., :11].abs().max()).item())
    return worst


def captured(kind: str) -> float:
    """The same of graphs that run as they were captured."""
    torch.compile = partial(COMPILE, backend=Graphs())  # type: ignore[assignment]
    return inductor(kind, 2)


def small(width: str) -> float:
    """The largest error of a compiled softmax over rows that are no multiple of any vector's width, with vectors of this one."""
    assert torch.backends.cpu.get_cpu_capability().lower() == width
    torch._inductor.config.cpp_cache_precompile_headers = False  # they pay from a second kernel on
    x = torch.linspace(-3, 3, 50 * 203).view(50, 203)
    return (compile_graphs(lambda x: (x * x).softmax(-1))(x) - (x * x).softmax(-1)).abs().max().item()


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    parts = {
        "families": families,
        "changes": changes,
        "inductor": lambda: [inductor(kind) for kind in words],
        "libraries": lambda: inductor(words[0], libraries=True),
        "captured": lambda: captured(words[0]),
        "both graphs": lambda: inductor(words[0], 2),
        "small": lambda: small(words[0]),
    }
    print(json.dumps(parts[what]()))
