"""llama.cpp itself loads what heddle writes: greedy texts, ids of prompts, and log probabilities."""

from pathlib import Path

import pytest

from benchmarks.llama_cpp import MODELS, Outcome, compare
from heddle.convert.llama_cpp import ARCHITECTURES

TABLE = (
    "gpt2",
    "gemma2",
    "gemma3",
    "gptneox",
    "phi2",
)  # llama.cpp looks their activation up in a table of half precision
ONCE = {architecture: name for name, (architecture, _) in reversed(MODELS.items())}


@pytest.fixture(autouse=True)
def _installed() -> None:
    pytest.importorskip("xllamacpp", reason="llama.cpp is not installed")


def test_every_class_is_given_to_llama_cpp() -> None:
    assert {architecture for architecture, _ in MODELS.values()} == set(ARCHITECTURES)


@pytest.mark.parametrize("name", ONCE.values())
def test_llama_cpp_writes_what_heddle_does(tmp_path: Path, name: str) -> None:
    """Three prompts of each class; `benchmarks/llama_cpp.py` has twenty of each model."""
    (outcome,) = compare(name, 3, 8, tmp_path, eighths=False)
    assert (outcome.equal, outcome.close) == (3, 0)
    assert outcome.difference < (5e-3 if name in TABLE else 1e-5)


def test_rounded_to_eight_bits_it_is_near(tmp_path: Path) -> None:
    plain, eighth = compare("llama", 3, 8, tmp_path)
    assert plain.difference < 1e-5 < eighth.difference < 0.1
    assert eighth.equal + eighth.close == 3


def test_a_wrong_number_in_the_file_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rotated by angles of another base, which no reader of shapes or names would see."""
    from heddle.convert import llama_cpp

    right = llama_cpp.plain_base  # type: ignore[attr-defined]
    monkeypatch.setattr(llama_cpp, "plain_base", lambda *args: 2 * right(*args))
    (outcome,) = compare("llama", 3, 8, tmp_path, eighths=False)
    assert isinstance(outcome, Outcome)
    assert outcome.difference > 1e-3  # a hundred times what is allowed above
