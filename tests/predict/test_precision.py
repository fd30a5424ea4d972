"""In which precision a run predicts: as requested, or what it was trained or published in where that is fast."""

import json
from pathlib import Path

import pytest
import torch

import heddle
from heddle.account import machine
from heddle.cli.models import open_model
from heddle.config.saved import SavedConfig
from heddle.errors import HeddleError
from heddle.predict.precision import predicting_precision
from heddle.weights import read_config
from tests.cards import OLD, SMALL, Card, put_in


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """A model whose manifest says that it was published in bf16."""
    run = tmp_path / "run"
    heddle.save(heddle.build(heddle.sized(1, vocab_size=16, dim=16, context=8)), run)
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps({**manifest, "precision": "bf16"}))
    return run


@pytest.mark.parametrize(
    ("units", "slower", "expected"),
    [(True, 0.3, "bf16"), (None, 0.3, "bf16"), (True, 1.5, "fp32"), (False, 0.3, "fp32")],
)
def test_a_cpu_predicts_in_what_was_published_where_it_is_fast(
    published: Path,
    units: bool | None,
    slower: float,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(machine, "has_bf16", lambda: units)
    monkeypatch.setattr(machine, "slowdown", lambda dtype, device: slower)
    ready = open_model(published, "cpu", precision="auto")
    assert (ready.precision, ready.model.embedding.weight.dtype == torch.bfloat16) == (expected, expected == "bf16")
    reason = "" if expected == "bf16" else ", in which this machine is not fast"
    assert capsys.readouterr().err == f"{published} was published in bf16{reason}: using {expected}\n"


def test_what_is_compared_digit_by_digit_stays_in_fp32(published: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Commands without `--precision`, such as `heddle look`, and proofs."""
    assert open_model(published, "cpu").precision == "fp32"
    assert heddle.load(published, "cpu").model.embedding.weight.dtype == torch.float32
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_what_is_requested_is_used(published: Path, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "slowdown", lambda *arguments: pytest.fail("it was measured"))
    assert open_model(published, "cpu", precision=precision).precision == precision


@pytest.mark.parametrize(("card", "expected"), [(OLD, "fp32"), (SMALL, "bf16")])
def test_a_card_predicts_in_what_was_published_if_it_has_units(
    published: Path, card: Card, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in(card, monkeypatch)
    monkeypatch.setattr(machine, "slowdown", lambda *arguments: pytest.fail("a card was measured"))
    config, device = read_config(published), torch.device("cuda")
    assert predicting_precision(published, config, device, "auto")[0] == expected
    if expected == "fp32":
        with pytest.raises(HeddleError, match="precision = bf16: a Turing card of 8 GiB has no units for bf16"):
            predicting_precision(published, config, device, "bf16")


def test_a_run_without_a_manifest_is_in_fp32(tmp_path: Path) -> None:
    config = SavedConfig(model=heddle.sized(1, vocab_size=16, dim=16, context=8))
    assert predicting_precision(tmp_path, config, torch.device("cpu"), "auto") == ("fp32", "")
