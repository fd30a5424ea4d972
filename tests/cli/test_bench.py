"""`heddle bench` on a tiny model: what it prints, the file that it writes, bad input."""

import json
from pathlib import Path

import pytest
import torch

from heddle.bench import Speed
from heddle.config import preset

from .conftest import Heddle

CHANGES = {"dim": 16, "vocab_size": 50, "context": 16, "decoder.depth": 1, "decoder.block.mixer.heads": 2}


@pytest.fixture
def words(heddle: Heddle, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options for a tiny model, on a machine whose ceilings are measured by small products."""
    for name, value in (("SMALL", 32), ("FEW", 16), ("MEGABYTES", 1)):
        monkeypatch.setattr(f"heddle.bench.machine.{name}", value)
    for name in ("release", "forget"):  # look through all that the tests hold
        monkeypatch.setattr(f"heddle.bench.run.{name}", lambda device: None)
    Path("tiny.toml").write_text(preset("gpt2-small").override(CHANGES).to_toml())
    return ["--quick", "--model", "tiny.toml", "--rounds", "1", "--device", "cpu", "--precision", "fp32"]


def test_it_prints_markdown_and_writes_json(heddle: Heddle, words: list[str]) -> None:
    result = heddle("bench", *words, "--json", "b.json")
    assert result.code == 0
    assert "**Decoding, greedy**" in result.out
    assert result.err.startswith("ceilings\ntraining ")
    data = json.loads(Path("b.json").read_text())
    assert data.keys() == {"machine", "settings", "ceilings", "training", "decoding", "left_out", "complete"}
    assert data["complete"]
    assert "Not complete" not in result.out
    assert data["machine"]["torch"] == torch.__version__
    assert data["settings"]["device"] == "cpu"
    assert data["ceilings"][0].keys() == {"what", "rate"}
    for row in (*data["training"], *data["decoding"]):
        assert row.keys() == set(Speed.__dataclass_fields__)
        assert row["rate"].keys() == {"median", "least", "most"}


def test_what_was_measured_before_ctrl_c_is_kept(
    heddle: Heddle, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("heddle.bench.run.Run.decode", stopped)
    result = heddle("bench", *words, "--json", "b.json")
    assert result.code == 130
    assert "**Training, AdamW, clipping**" in result.out
    assert result.out.endswith("\nNot complete: stopped before everything was measured.\n")
    assert result.err.endswith("\nheddle: stopped\n")
    data = json.loads(Path("b.json").read_text())
    assert not data["complete"]
    assert data["training"][0]["contender"] == "heddle"
    assert data["decoding"] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--device", "cuda"], "does not find this device"),
        (["--only", "trainin"], "Did you mean 'training'"),
        (["--model", "gpt2-125m"], "not a preset, a run directory or a file"),
        (["--model", "t5-small"], "only decoders that predict the next token"),
        (["--precision", "fp8"], "precision = 'fp8': must be one of auto, fp32, bf16"),
        (["--rounds", "0"], "rounds = 0: must be at least 1"),
    ],
)
def test_bad_input_is_one_line(heddle: Heddle, words: list[str], message: str) -> None:
    if "cuda" in words and torch.cuda.is_available():
        pytest.skip("there is one")
    result = heddle("bench", *words)
    assert result.code == 2
    assert result.err.count("\n") == 1
    assert message in result.err
