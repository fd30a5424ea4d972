"""Compiled decoding steps compute what the model computes, in few graphs, whatever changes between calls."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from heddle.errors import HeddleError
from heddle.model import Transformer, build, compiling, device, graphs
from heddle.model.compiling import compile_steps
from tests import programs
from tests.model.compiled_steps import PROMPTS, by_definition, made, tokens
from tests.models import config_of

PROGRAM = "model.compiled_steps"


@pytest.mark.thorough
def test_every_family_draws_the_same_tokens_in_few_graphs() -> None:
    """Over rows alone and together, of equal and unequal lengths, and over capacities of the cache."""
    report = json.loads(programs.traced(PROGRAM, "families"))
    assert len(report) == 5
    graphs = {name: 3 if name == "encoder-decoder" else 2 for name in report}  # one for padded sources
    assert report == {name: [True, count] for name, count in graphs.items()}


class Snapshot:
    """A graph as the compiler makes it, without a guard: it computes with what the model was in the first call."""

    def __init__(self) -> None:
        self.model: Transformer | None = None

    def __call__(self, model: Transformer, *inputs: Any) -> Tensor:
        if self.model is None:
            self.model = copy.deepcopy(model)
        return graphs.step(self.model, *inputs)


def in_place(block: Any) -> None:
    with torch.no_grad():
        block.mixer.o.weight.neg_()


def another_parameter(block: Any) -> None:
    block.mixer.o.weight = nn.Parameter(block.mixer.o.weight.detach().flip(0))


def another_tensor(block: Any) -> None:
    block.mixer.o.weight.data = block.mixer.o.weight.data.flip(1).clone()


def another_module(block: Any) -> None:
    residual = copy.deepcopy(block.ffn_residual)
    with torch.no_grad():
        residual.before.weight.neg_()
    block.ffn_residual = residual


def another_hook(block: Any) -> None:
    block.register_forward_hook(lambda module, inputs, out: out._replace(hidden=-out.hidden))


def no_hook(block: Any) -> None:
    block._forward_hooks.clear()


def another_hook_instead(block: Any) -> None:
    block._forward_hooks.clear()
    another_hook(block)


def another_hook_before(block: Any) -> None:
    block.ffn_residual.before.register_forward_pre_hook(lambda module, inputs: (-inputs[0], *inputs[1:]))


CHANGES = (
    in_place,
    another_parameter,
    another_tensor,
    another_module,
    another_hook,
    another_hook_instead,
    no_hook,
    another_hook_before,
)


def right(model: Transformer) -> list[list[int]]:
    return [by_definition(model, prompt, 8) for prompt in PROMPTS]


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_of_the_model_is_seen(change: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "_compiled", Snapshot)
    model = compile_steps(made("learned", depth=1))
    assert model.decoder is not None
    block = model.decoder.blocks[0]
    block.register_forward_hook(lambda module, inputs, out: out._replace(hidden=out.hidden.flip(-1)))
    before = tokens(model, PROMPTS, 8)
    assert before == right(model)
    change(block)
    now = tokens(model, PROMPTS, 8)
    assert now != before
    assert now == right(model)


def test_a_model_has_steps_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "_compiled", Snapshot)
    model = compile_steps(made("learned", depth=1))
    tokens(model, PROMPTS, 8)
    assert copy.deepcopy(model).steps is None
    other = compile_steps(build(model.config, seed=9).eval())
    assert tokens(other, PROMPTS, 8) == right(other)


@pytest.mark.thorough
def test_a_changed_step_is_captured_anew_among_guesses_too_or_refused() -> None:
    report = json.loads(programs.traced(PROGRAM, "changes"))
    assert len(report) == 3
    assert report == dict.fromkeys(report, True)


needs_compiler = pytest.mark.skipif(not device.has_compiler(), reason="torch.compile needs a C++ compiler")


@pytest.mark.thorough
@needs_compiler
def test_the_compiler_computes_the_same() -> None:
    """For one row. `inductor trained int8` has the compiler's own products, `both graphs trained` several rows, in minutes."""
    assert float(programs.traced(PROGRAM, "libraries", "trained")) < 1e-5


@pytest.mark.thorough
def test_steps_of_rounded_weights_are_captured() -> None:
    """In the compiler's code they differ by the rounding of rows to bf16, here by nothing."""
    assert float(programs.traced(PROGRAM, "captured", "int8")) < 1e-5


@pytest.mark.thorough
@needs_compiler
def test_the_cache_on_disk_never_serves_code_for_another_width_of_vectors() -> None:
    widest = torch.backends.cpu.get_cpu_capability()
    for width in (widest.lower(), "avx2" if widest == "AVX512" else "default"):
        assert float(programs.traced(PROGRAM, "small", width, ATEN_CPU_CAPABILITY=width)) < 1e-6


def test_what_has_no_steps_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HeddleError, match="no decoder"):
        compile_steps(build(config_of(family="encoder")))
    monkeypatch.setattr(device, "COMPILERS", ("no-such-compiler",))
    with pytest.raises(HeddleError, match="compiling needs a C\\+\\+ compiler"):
        compile_steps(build(config_of()))
