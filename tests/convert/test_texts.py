"""Imported models write what transformers writes, id by id: they begin, stop and leave out as their files say."""

from pathlib import Path

import pytest

from benchmarks.imports import DRAWS, STYLES, WRITERS, compare_texts, trial, undrawn
from heddle.config import SamplingConfig
from heddle.convert import export_model, import_model
from heddle.convert.families import ALL
from heddle.generate.text import text_engine
from heddle.weights import load, read_config, save
from tests.thorough import first

SOME = [
    *(("LlamaForCausalLM", style) for style in STYLES),
    # Every family in one style, each style in some families; the benchmark has all of them.
    *((name, list(STYLES)[1 + number % 5]) for number, name in enumerate(WRITERS) if name != "LlamaForCausalLM"),
]


@pytest.mark.parametrize(("architecture", "style"), first(9, SOME))
def test_greedy_texts_are_those_of_transformers(tmp_path: Path, architecture: str, style: str) -> None:
    outcome = compare_texts(architecture, style, 25, tmp_path, length=12, lengths=(1, 4))
    assert (outcome.equal, outcome.textless) == (25, 0)
    assert (outcome.ended > 0) == (style != "none")
    # One id without text is likely, and often it would have been drawn.
    assert outcome.suppressed > 0 or architecture != "LlamaForCausalLM"


def test_every_family_is_drawn_and_every_field_of_its_class() -> None:
    assert set(DRAWS) == {family.architecture for family in ALL}
    assert {name: undrawn(name) for name in DRAWS} == {name: [] for name in DRAWS}
    assert set(WRITERS) == {family.architecture for family in ALL if family.options.stacks == ("decoder",)}


@pytest.mark.parametrize("architecture", first(9, DRAWS))
def test_a_random_config_comes_through_or_is_refused(tmp_path: Path, architecture: str) -> None:
    """One of each class; `benchmarks/imports.py` draws hundreds."""
    outcome = trial(architecture, 1, tmp_path)
    assert outcome.came in ("equal", "refused", "not theirs"), outcome


def test_special_ids_survive_loading_and_saving(tmp_path: Path) -> None:
    """From import to export, with a run in between that `save` wrote, and out again: the same ids begin and end."""
    compare_texts("MistralForCausalLM", "Gemma", 1, tmp_path)
    model, tokenizer = load(tmp_path / "run", "cpu")
    assert tokenizer is not None
    save(model, tmp_path / "saved", tokenizer)
    export_model(tmp_path / "saved", tmp_path / "out")
    import_model(tmp_path / "out", tmp_path / "again")
    first, *others = [read_config(tmp_path / name).model for name in ("run", "saved", "again")]
    assert first.ids is not None
    assert (first.ids.begin, first.ids.end, first.ids.padding) == (258, (257, 260), 256)
    assert first.architecture == "MistralForCausalLM"
    for other in others:
        assert (other.ids, other.architecture) == (first.ids, first.architecture)
    for name in ("saved", "again"):
        loaded, cut = load(tmp_path / name, "cpu")
        assert cut is not None
        assert text_engine(loaded, cut, ["a"], SamplingConfig()).waiting[0].ids == [258, 97]
