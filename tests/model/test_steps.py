"""Decoding steps by compiled parts: they compute what the model computes, and a part is never taken for another."""

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from heddle.config import SamplingConfig
from heddle.config.train import LoRAConfig
from heddle.generate import Engine
from heddle.model import Transformer, build, compile_steps, packages, steps
from heddle.model.linear import use_few_rows
from heddle.model.lora import adapt
from heddle.model.packages import Library, Part, Undescribed, described, steps_folder
from heddle.model.parts import SHORT, Kind, parts_of, sizes_of
from heddle.model.precision import cast
from heddle.model.quantize import quantize
from heddle.model.steps import PackagedSteps, described_for_compiling, package_steps
from heddle.native.library import operators
from heddle.nn.cache import Cache
from tests import programs
from tests.model.packaged_steps import BEAMS, PROMPTS, furthest, plain, texts, translations
from tests.models import BOTH, COMBINATIONS, config_of

PROGRAM = "model.packaged_steps"
needs_compiler = pytest.mark.skipif(operators() is None, reason="no C++ compiler")
SAMPLING = SamplingConfig(max_tokens=12, temperature=0)


class Uncompiled(Library):
    """A part as it was before it was compiled, in place of its library."""

    def __init__(self, file: Path, module: nn.Module) -> None:
        self.module = module

    def __call__(self, inputs: list[Tensor]) -> list[Tensor]:
        outputs: list[Tensor] = self.module(*inputs)
        return outputs


@pytest.fixture
def uncompiled(new_machine: Path, monkeypatch: pytest.MonkeyPatch) -> list[Part]:
    """All parts are there, and compute by their modules; which ones were looked for."""
    monkeypatch.setattr(steps, "Library", Uncompiled)
    monkeypatch.setattr(steps, "LOOK", 0.0)
    parts: list[Part] = []

    def listed(*arguments: Any) -> list[Part]:
        parts.extend(parts_of(*arguments))
        return parts_of(*arguments)

    monkeypatch.setattr(steps, "parts_of", listed)
    monkeypatch.setattr(Path, "exists", lambda self: True)
    return parts


def packaged(model: Transformer) -> Transformer:
    model.steps = PackagedSteps(model)
    return model


@needs_compiler
@pytest.mark.parametrize("config", COMBINATIONS, ids=range(len(COMBINATIONS)))
@pytest.mark.parametrize("prompts", [PROMPTS[:1], PROMPTS], ids=["alone", "several"])
def test_parts_are_the_step(config: Any, prompts: list[list[int]], uncompiled: list[Part]) -> None:
    model = build(config, seed=1).eval()
    expected, actual = texts(plain(model), prompts, SAMPLING), texts(packaged(model), prompts, SAMPLING)
    assert len(uncompiled) == len(model.last_stack().blocks) + 2
    assert furthest(expected, actual) < 2e-5
    assert [[token for token, _ in row] for row in expected] == [[token for token, _ in row] for row in actual]


@needs_compiler
@pytest.mark.parametrize("config", BOTH, ids=range(len(BOTH)))
@pytest.mark.parametrize("sources", [PROMPTS[:1], PROMPTS[:2]], ids=["alone", "several"])
def test_parts_are_the_step_of_an_encoder_decoder(
    config: Any, sources: list[list[int]], uncompiled: list[Part]
) -> None:
    model = build(config, seed=1).eval()
    expected, actual = texts(plain(model), sources, SAMPLING), texts(packaged(model), sources, SAMPLING)
    assert len(uncompiled) == len(model.last_stack().blocks) + 2
    assert furthest(expected, actual) < 2e-5
    assert [[token for token, _ in row] for row in expected] == [[token for token, _ in row] for row in actual]


@needs_compiler
@pytest.mark.parametrize("config", [*BOTH[:4], *COMBINATIONS[:2]], ids=range(6))
@pytest.mark.parametrize("sources", [PROMPTS[:1], PROMPTS], ids=["alone", "several"])
def test_beams_share_their_source(config: Any, sources: list[list[int]], uncompiled: list[Part]) -> None:
    model = build(config, seed=1).eval()
    expected, actual = translations(plain(model), sources), translations(packaged(model), sources)
    assert [each.ids for each in expected] == [each.ids for each in actual]
    assert max(abs(one.logprob - other.logprob) for one, other in zip(expected, actual, strict=True)) < 1e-4
    assert isinstance(model.steps, PackagedSteps)
    several = len(sources) > 1 or model.encoder is None
    assert Kind(several, False, 1 if model.encoder is None else BEAMS) in model.steps.libraries


@needs_compiler
def test_a_source_of_one_token_takes_plain_steps(uncompiled: list[Part]) -> None:
    model = build(config_of(family="both", depth=1), seed=1).eval()
    assert texts(plain(model), [[5]], SAMPLING) == texts(packaged(model), [[5]], SAMPLING)
    assert not uncompiled


@needs_compiler
def test_rows_that_join_and_leave(uncompiled: list[Part]) -> None:
    """Texts of several lengths: the steps are of one row and of several, in turns."""
    model = build(config_of(depth=2), seed=1).eval()
    samplings = [SamplingConfig(max_tokens=count, temperature=0) for count in (3, 9, 30)]
    rows = [texts(plain(model), [prompt], sampling)[0] for prompt, sampling in zip(PROMPTS, samplings, strict=True)]
    engine, actual = Engine(packaged(model)), [list[tuple[int, float]]() for _ in PROMPTS]
    for prompt, sampling in zip(PROMPTS, samplings, strict=True):
        engine.submit(prompt, sampling)
    while engine:
        for event in engine.step():
            actual[event.row].append((event.token, event.logprob))
    assert furthest(rows, actual) < 2e-5
    assert list(map(len, actual)) == [3, 9, 30]
    assert isinstance(model.steps, PackagedSteps)
    assert set(model.steps.libraries) == {Kind(True, False), Kind(False, False)}


@needs_compiler
def test_a_weight_in_another_place_is_read(uncompiled: list[Part]) -> None:
    """Between two steps of a text: its parts are loaded anew."""
    model = packaged(build(config_of(depth=1), seed=1).eval())
    cache, token = used(model), torch.zeros(1, 1, dtype=torch.long)
    assert isinstance(model.steps, PackagedSteps)
    with torch.inference_mode():
        model.steps(token, cache)
        model.steps(token, cache)
        count = len(uncompiled)
        assert count == 3
        block: Any = model.last_stack().blocks[0]
        block.mixer.o.weight.data = block.mixer.o.weight.clone()
        model.steps(token, cache.select([0]))
    assert len(uncompiled) == 2 * count


@needs_compiler
@pytest.mark.parametrize("count", [SHORT - 2, SHORT + 2])
def test_a_long_context_has_parts_of_its_own(count: int, uncompiled: list[Part]) -> None:
    model = build(config_of(depth=1).override({"context": 2000}), seed=1).eval()
    prompt = torch.arange(count).remainder(11).tolist()
    expected, actual = texts(plain(model), [prompt], SAMPLING), texts(packaged(model), [prompt], SAMPLING)
    assert furthest(expected, actual) < 2e-5
    assert isinstance(model.steps, PackagedSteps)
    assert Kind(False, True) in model.steps.libraries


def files(model: Transformer, rows: int = 1, long: bool = False) -> list[str]:
    return [part.file.name for part in parts_of(model, sizes_of(used(model, rows)), Kind(rows > 1, long))]


def used(model: Transformer, rows: int = 1) -> Cache:
    """A cache whose rows have a token each."""
    cache = model.new_cache(rows)
    with torch.inference_mode():
        model(torch.zeros(rows, 1, dtype=torch.long), cache=cache)
    return cache


def test_equal_blocks_share_a_part() -> None:
    names = files(build(config_of(depth=4)).eval())
    assert len(names) == 6
    assert len(set(names)) == 3
    assert files(build(config_of(depth=4), seed=2).eval()) == names  # whatever its weights


# What changes the numbers that a part computes, or how it computes them.
DIFFERENT: dict[str, Callable[[], Transformer]] = {
    "width": lambda: build(config_of(depth=1, dim=48)),
    "activation": lambda: build(config_of(depth=1, activation="relu")),
    "scale": lambda: build(config_of(depth=1, scale="dim")),
    "window": lambda: build(config_of(depth=1, window=5)),
    "cap": lambda: build(config_of(depth=1, cap=2.0)),
    "heads": lambda: build(config_of(depth=1, kv_heads=2)),
    "placement": lambda: build(config_of(depth=1, placement="sandwich")),
    "branch scale": lambda: build(config_of(depth=1, branch_scale=0.5)),
    "bf16": lambda: cast(build(config_of(depth=1)), "bf16"),
    "int8": lambda: quantize(build(config_of(depth=1)), "int8"),
    "int4": lambda: quantize(build(config_of(depth=1)), "int4"),
}


def test_another_model_has_another_name() -> None:
    names = {"itself": files(build(config_of(depth=1)).eval())[1]}
    names |= {name: files(make().eval())[1] for name, make in DIFFERENT.items()}
    names["products"] = files(use_few_rows(build(config_of(depth=1)).eval()))[1]
    model = build(config_of(depth=1)).eval()
    names["several"], names["long"] = files(model, rows=2)[1], files(model, long=True)[1]
    names["beams"] = parts_of(model, sizes_of(used(model, 2)), Kind(True, False, BEAMS))[1].file.name
    model.last_stack().blocks[0].mixer.kernel.scale *= 2
    names["an attribute"] = files(model)[1]
    assert len(set(names.values())) == len(names)


@pytest.mark.parametrize("what", ["processor", "torch", "source"])
def test_another_machine_or_version_has_another_name(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build(config_of(depth=1)).eval()
    monkeypatch.setattr(packages, "surroundings", packages.surroundings.__wrapped__)
    before = files(model)
    if what == "processor":
        monkeypatch.setattr("heddle.native.measured.processor", lambda: "another")
    elif what == "torch":
        monkeypatch.setattr(torch, "__version__", "3.0.0")
    else:
        real = Path.read_bytes
        monkeypatch.setattr(Path, "read_bytes", lambda self: real(self) + b" " * (self.name == "norm.py"))
    assert not set(before) & set(files(model))


@pytest.mark.parametrize("value", [object(), lambda x: x, nn.ReLU().forward, {1: object()}, Path])
def test_what_cannot_be_described_has_no_name(value: object) -> None:
    with pytest.raises(Undescribed):
        described(value)


class Halved(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / 2


@needs_compiler
def test_hooks_adapters_and_own_modules_take_plain_steps(uncompiled: list[Part]) -> None:
    model = packaged(build(config_of(depth=1), seed=1).eval())
    expected = texts(plain(copy.deepcopy(model)), PROMPTS[:1], SAMPLING)
    seen: list[int] = []
    hook = model.last_stack().blocks[0].register_forward_hook(lambda *arguments: seen.append(1))
    assert texts(model, PROMPTS[:1], SAMPLING) == expected
    assert len(seen) == SAMPLING.max_tokens
    hook.remove()
    adapted = adapt(build(config_of(depth=1), seed=1), LoRAConfig(rank=2, layers=("*",))).eval()
    assert furthest(texts(packaged(adapted), PROMPTS[:1], SAMPLING), expected) < 2e-5
    own = build(config_of(depth=1), seed=1).eval()
    own.last_stack().blocks[0].ffn_residual.after = Halved()
    assert not uncompiled
    assert texts(plain(own), PROMPTS[:1], SAMPLING) == texts(packaged(own), PROMPTS[:1], SAMPLING)
    assert own.steps is not None


@pytest.mark.parametrize("family", ["decoder", "both"])
def test_only_models_on_a_cpu_that_predict_have_them(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(config_of(family=family, depth=1)).eval()
    package_steps(model)  # tests set $HEDDLE_STEPS to plain
    assert model.steps is None
    monkeypatch.delenv("HEDDLE_STEPS")
    for other in (build(config_of(depth=1)), build(config_of(family="encoder")).eval()):
        package_steps(other)
        assert other.steps is None
    package_steps(model)
    assert isinstance(model.steps, PackagedSteps)
    assert copy.deepcopy(model).steps is None


@needs_compiler
def test_parts_are_requested_once_when_plain_steps_took_long(
    new_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[Kind] = []
    monkeypatch.setattr(steps, "request", lambda model, sizes, kind: requests.append(kind))
    monkeypatch.setattr(steps, "AGAIN", 0.0)
    monkeypatch.setattr(steps, "LOOK", 0.0)
    monkeypatch.setattr(steps, "PATIENCE", 1e9)
    model = packaged(build(config_of(depth=1), seed=1).eval())
    texts(model, PROMPTS[:1], SAMPLING)
    assert not requests
    monkeypatch.setattr(steps, "PATIENCE", 0.0)
    for _ in range(2):
        texts(model, PROMPTS[:1], SAMPLING)
    assert requests == [Kind(several=False, long=False)]


@needs_compiler
def test_a_part_that_failed_is_not_requested_again(new_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: Any) -> None:
        raise RuntimeError("no room for an operator")

    requests: list[Any] = []
    monkeypatch.setattr(compile_steps, "compile_part", fails)
    monkeypatch.setattr(steps, "request", lambda *arguments: requests.append(arguments))
    monkeypatch.setattr(steps, "LOOK", 0.0)
    monkeypatch.setattr(steps, "PATIENCE", 0.0)
    model = packaged(build(config_of(depth=1), seed=1).eval())
    texts(model, PROMPTS[:1], SAMPLING)
    compile_steps.compile_all(described_for_compiling(*requests[0]))
    failures = [file.read_text() for file in steps_folder().glob("*.failed")]
    assert failures == ["RuntimeError: no room for an operator\n"] * 3
    texts(packaged(model), PROMPTS[:1], SAMPLING)
    assert len(requests) == 1


@needs_compiler
def test_a_damaged_part_is_removed(new_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "LOOK", 0.0)
    model = packaged(build(config_of(depth=1), seed=1).eval())
    expected = texts(plain(copy.deepcopy(model)), PROMPTS[:1], SAMPLING)
    steps_folder().mkdir(parents=True)
    use_few_rows(model)
    for name in files(model):
        (steps_folder() / name).write_bytes(b"\x7fELF damaged")
    assert texts(model, PROMPTS[:1], SAMPLING) == expected
    assert not list(steps_folder().glob("*.so"))


@needs_compiler
def test_the_oldest_parts_are_removed(tmp_path: Path) -> None:
    for age in range(5):
        file = tmp_path / f"{age}.so"
        file.touch()
        os.utime(file, (1000 - age, 1000 - age))
    compile_steps.remove_oldest(tmp_path, 2)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["0.so", "1.so"]


@needs_compiler
def test_two_processes_do_not_compile_at_once(new_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps_folder().mkdir(parents=True)
    calls: list[Any] = []
    monkeypatch.setattr(compile_steps, "compile_all", calls.append)
    monkeypatch.setattr(sys, "argv", ["", "{}"])
    monkeypatch.setattr(os, "nice", lambda more: 0)
    with compile_steps._alone(steps_folder() / "lock") as alone:
        assert alone
        compile_steps.main()
    assert not calls
    compile_steps.main()
    assert calls == [{}]


def test_the_request_starts_a_process(new_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(subprocess, "Popen", lambda words, **settings: started.append(words))
    model = cast(build(config_of(depth=1)), "bf16").eval()
    steps.request(model, sizes_of(used(model)), Kind(several=True, long=False))
    ((program, *words),) = started
    assert (program, words[:2]) == (sys.executable, ["-m", "heddle.model.compile_steps"])
    again = compile_steps.skeleton(json.loads(words[2]))
    assert described(use_few_rows(model)) == described(again)


@needs_compiler
@pytest.mark.thorough
@pytest.mark.parametrize(("number", "rows"), [(1, 1), (5, 3)])
def test_many_options_are_compiled(number: int, rows: int, tmp_path: Path) -> None:
    """Two of the models that together have every option; `python -m tests.model.packaged_steps family N ROWS` tries another."""
    report = json.loads(programs.traced(PROGRAM, "family", number, rows, HEDDLE_CACHE=str(tmp_path)))
    assert report["failures"] == []
    assert report["difference"] < 5e-5
    assert report["compiled"] == 1


@needs_compiler
@pytest.mark.thorough
@pytest.mark.parametrize("name", ["int4", "long"])
def test_kinds_of_weights_are_compiled(name: str, tmp_path: Path) -> None:
    report = json.loads(programs.traced(PROGRAM, "kind", name, HEDDLE_CACHE=str(tmp_path)))
    assert report["failures"] == []
    # An input of a rounded product that lies between two integers may go to either.
    assert report["difference"] < {"bf16": 0.1, "long": 5e-5}.get(name, 5e-3)
    assert report["compiled"] == 1


@needs_compiler
@pytest.mark.thorough
def test_beams_of_an_encoder_decoder_are_compiled(tmp_path: Path) -> None:
    report = json.loads(programs.traced(PROGRAM, "beams", HEDDLE_CACHE=str(tmp_path)))
    assert report["difference"] < 1e-4
    assert report["kinds"] == [[False, 3], [True, 3]]


@needs_compiler
@pytest.mark.thorough
def test_a_changed_model_is_the_changed_model(tmp_path: Path) -> None:
    report = json.loads(programs.traced(PROGRAM, "changes", HEDDLE_CACHE=str(tmp_path)))
    assert report == dict.fromkeys(("in place", "another parameter", "a hook", "no hook", "between two steps"), True)
