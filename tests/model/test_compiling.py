"""Compiled decoding steps compute what the model computes, in few graphs, whatever changes between calls."""

import json
from pathlib import Path

import pytest
import torch

from heddle.errors import HeddleError
from heddle.model import build, device
from heddle.model.compiling import compile_steps
from tests import programs
from tests.models import config_of

PROGRAM = "model.compiled_steps"


def test_every_family_draws_the_same_tokens_in_few_graphs() -> None:
    """Over rows alone and together, of equal and unequal lengths, and over capacities of the cache."""
    report = json.loads(programs.run(PROGRAM, "families"))
    assert len(report) == 5
    graphs = {name: 3 if name == "encoder-decoder" else 2 for name in report}  # one for padded sources
    assert report == {name: [True, count] for name, count in graphs.items()}


def test_every_change_of_the_model_is_seen() -> None:
    report = json.loads(programs.run(PROGRAM, "changes"))
    assert len(report) == 10
    assert report == dict.fromkeys(report, True)


needs_compiler = pytest.mark.skipif(not device.has_compiler(), reason="torch.compile needs a C++ compiler")


@needs_compiler
def test_the_compiler_computes_the_same() -> None:
    """For one row. `inductor trained int8` has the compiler's own products, `both graphs trained` several rows, in minutes."""
    assert float(programs.run(PROGRAM, "libraries", "trained")) < 1e-5


def test_steps_of_rounded_weights_are_captured() -> None:
    """In the compiler's code they differ by the rounding of rows to bf16, here by nothing."""
    assert float(programs.run(PROGRAM, "captured", "int8")) < 1e-5


@needs_compiler
def test_the_cache_on_disk_never_serves_code_for_another_width_of_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    widest = torch.backends.cpu.get_cpu_capability()
    for width in (widest.lower(), "avx2" if widest == "AVX512" else "default"):
        monkeypatch.setenv("ATEN_CPU_CAPABILITY", width)
        assert float(programs.run(PROGRAM, "small")) < 1e-6


def test_what_has_no_steps_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HeddleError, match="no decoder"):
        compile_steps(build(config_of(family="encoder")))
    monkeypatch.setattr(device, "COMPILERS", ("no-such-compiler",))
    with pytest.raises(HeddleError, match="compiling needs a C\\+\\+ compiler"):
        compile_steps(build(config_of()))
