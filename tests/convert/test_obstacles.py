"""Whatever the format, one error names all that is against an export, before the weights are read, and what to set."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from heddle.config import SavedConfig, TransformerConfig, preset, sized
from heddle.convert import export_adapter, export_gguf, export_model, gguf, hugging_face
from heddle.convert.fitting import choose
from heddle.convert.gguf_fitting import choose_for_llama_cpp
from heddle.errors import HeddleError
from heddle.model import build
from heddle.weights.adapter import Adapter
from heddle.weights.run import write_model
from tests.refusing import refusal

MIXER, FFN = "decoder.block.mixer", "decoder.block.ffn"
LINEAR = {"kind": "linear", "factor": 2.0}
SIZES = {"dim": 16, "context": 20, "decoder.depth": 2, "decoder.block.mixer.heads": 2, "vocab_size": 300}


def decoder(name: str = "", **changes: Any) -> TransformerConfig:
    """A small decoder: heddle's own, or a preset's."""
    base = preset(name).override(SIZES) if name else sized(2, vocab_size=257, context=16, dim=16)
    return base.override(changes)


# Models with several obstacles for a GGUF file, and a part of the line of each.
FOR_LLAMA_CPP: dict[str, tuple[TransformerConfig, list[str]]] = {
    "settings that llama.cpp fixes": (
        decoder(**{f"{MIXER}.window": 5, f"{FFN}.activation": "mish"}),
        [f"hidden_act = 'mish' .* set {FFN}.activation=silu", f"use_sliding_window = True .* set {MIXER}.window=none"],
    ),
    "a width that no family has": (
        decoder("gpt2-small", **{f"{FFN}.activation": "gelu", f"{MIXER}.head_dim": 4}),
        [f"{MIXER}.head_dim is 4, GPT2LMHeadModel has 8", f"{MIXER}.value_dim is 4", f"set {FFN}.activation=gelu_tanh"],
    ),
    "a family and a fixed setting": (
        decoder("gpt2-small", **{f"{MIXER}.window": 5, f"{FFN}.activation": "gelu"}),
        [f"{MIXER}.window is 5, GPT2LMHeadModel has none", f"set {FFN}.activation=gelu_tanh"],
    ),
    "scaled angles and an activation": (
        decoder("llama-7b", **{f"{MIXER}.relative.scaling": {"kind": "yarn", "factor": 2.0, "original": 8, "fast": 7.0}}
                | {f"{FFN}.activation": "gelu"}),
        [f"set {FFN}.activation=silu", rf"yarn scaling has other settings .* set only factor and original in {MIXER}\.relative"],
    ),
    "two settings of a family": (
        decoder("gpt2-small", **{"decoder.block.placement": "post", f"{MIXER}.cap": 4.0}),
        ["decoder.block.placement is post, GPT2LMHeadModel has pre", f"{MIXER}.cap is 4.0, GPT2LMHeadModel has none",
         "decoder.final_norm is false"],
    ),
}  # fmt: skip


def numbered(line: str, count: int) -> bool:
    """Whether an error lists so many problems."""
    return re.findall(r"\((\d)\) ", line) == [str(number) for number in range(1, count + 1)]


def make_run(folder: Path, config: TransformerConfig) -> Path:
    (folder / "run").mkdir()
    write_model(folder / "run", build(config, seed=1).state_dict(), SavedConfig(model=config), None, step=1)
    return folder / "run"


@pytest.fixture
def without_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading weights fails."""
    for module in (gguf, hugging_face):
        monkeypatch.setattr(module, "load", lambda *words: pytest.fail("weights were read"))


@pytest.mark.usefixtures("without_weights")
@pytest.mark.parametrize("kind", FOR_LLAMA_CPP)
def test_a_gguf_file(kind: str, tmp_path: Path) -> None:
    config, parts = FOR_LLAMA_CPP[kind]
    run = make_run(tmp_path, config)
    line = refusal(lambda: export_gguf(run, tmp_path / "a.gguf"))
    assert numbered(line, len(parts)), line
    assert all(re.search(part, line) for part in parts), line
    assert sorted(tmp_path.iterdir()) == [run]


@pytest.mark.parametrize(
    "kind", ["settings that llama.cpp fixes", "a width that no family has", "a family and a fixed setting"]
)
def test_a_model_with_all_changes_is_written(kind: str) -> None:
    """No further obstacle appears after those of the error."""
    config, _ = FOR_LLAMA_CPP[kind]
    with pytest.raises(HeddleError) as caught:
        choose_for_llama_cpp(config)
    line = str(caught.value)
    advised = dict(re.findall(r"set (\S+)=(\S+)", line)) | dict(re.findall(r"(\S+) is \S+, \w+ has (\w+)", line))
    changed = config.override({path: None if value == "none" else value for path, value in advised.items()})
    assert choose_for_llama_cpp(changed).against == []


@pytest.mark.usefixtures("without_weights")
def test_a_directory(tmp_path: Path) -> None:
    """All differences from the nearest family, however many."""
    changes = {f"{MIXER}.cap": 4.0, f"{MIXER}.window": 5, f"{FFN}.bias": False}
    changes |= {"head.cap": 3.0, "decoder.entry.dropout": 0.5}
    config = decoder("gpt2-small", **changes)
    line = refusal(lambda: export_model(make_run(tmp_path, config), tmp_path / "out"))
    for path in changes.keys() - {"decoder.entry.dropout"}:  # which matters only in training
        assert f"{path} is " in line, line
    assert "more" not in line


def test_a_directory_of_sentence_transformers(tmp_path: Path) -> None:
    """What its own files cannot store is as much against the export as what the class cannot."""
    dense = [{"outputs": 8, "activation": "gelu_tanh"}, {"outputs": 8, "activation": "quick_gelu"}]
    config = preset("bert-base-like").override(
        {
            "dim": 16, "context": 16, "vocab_size": 300, "encoder.depth": 1, "encoder.block.mixer.heads": 2,
            "encoder.block.mixer.window": 3, "head": {"kind": "embedding", "dense": dense},
        }
    )  # fmt: skip
    line = refusal(lambda: export_model(make_run(tmp_path, config), tmp_path / "out"))
    for part in (
        "head.dense.0.activation is gelu_tanh, sentence-transformers has tanh",
        "head.dense.1.",
        "mixer.window is 3",
    ):
        assert part in line


def test_an_adapter(tmp_path: Path) -> None:
    """Tensors that peft does not store, and a base that no class has."""
    config = decoder(**{f"{FFN}.kind": "mlp"})
    run = make_run(tmp_path, config)
    width = config.dim
    factors = {
        "decoder.blocks.0.mixer.q.lora_a": torch.ones(2, width),
        "decoder.blocks.0.mixer.q.lora_b": torch.ones(width, 2),
    }
    norms = {
        "decoder.final_norm.weight": torch.ones(width),
        "decoder.blocks.0.ffn_residual.before.weight": torch.ones(width),
    }
    Adapter({**factors, **norms}, 1.0).save(run / "adapter.safetensors")
    (tmp_path / "out").mkdir()
    line = refusal(lambda: export_adapter(run, tmp_path / "out"))
    assert numbered(line, 3), line
    for part in (*norms, "were trained in full", "no Hugging Face family can express this model", "already exists"):
        assert part in line


@pytest.mark.usefixtures("without_weights")
@pytest.mark.parametrize(("export", "name"), [(export_gguf, "a.gguf"), (export_model, "out")])
def test_the_place_is_named_with_the_model(export: Callable[..., Any], name: str, tmp_path: Path) -> None:
    run = make_run(tmp_path, decoder("gpt2-small", **{f"{MIXER}.window": 5}))
    (tmp_path / name).mkdir()
    line = refusal(lambda: export(run, tmp_path / name))
    assert numbered(line, 2), line
    assert "already exists" in line
    assert f"{MIXER}.window is 5" in line


@pytest.mark.usefixtures("without_weights")
def test_a_missing_package_is_named_with_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    run = make_run(tmp_path, decoder(**{f"{MIXER}.window": 5}))
    (tmp_path / "a.gguf").touch()
    line = refusal(lambda: export_gguf(run, tmp_path / "a.gguf"))
    assert numbered(line, 3), line
    for part in ("already exists", "pip install 'heddle-lm[gguf]'", "use_sliding_window = True"):
        assert part in line


def test_a_class_that_llama_cpp_lacks_is_named_with_the_nearest_one_that_it_has() -> None:
    config = preset("gpt2-small").override({**SIZES, "decoder.block.placement": "post", "decoder.final_norm": False})
    config = config.override({f"{FFN}.activation": "relu", "decoder.entry.offset": 2})
    family, _ = choose(config)
    with pytest.raises(HeddleError) as caught:
        choose_for_llama_cpp(config)
    assert family.architecture == "OPTForCausalLM"
    assert "its class is OPTForCausalLM" in str(caught.value)
    assert "decoder.block.placement is post, GPT2LMHeadModel has pre" in str(caught.value)
