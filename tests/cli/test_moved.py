"""A run that was trained in bf16, used on a machine where that is slow."""

from importlib import import_module

import pytest

from .conftest import TINY, Heddle


@pytest.fixture
def in_bf16(heddle: Heddle, corpus: str) -> None:
    """`runs/a`, trained in bf16."""
    words = ["precision=bf16" if word == "precision=fp32" else word for word in TINY]
    assert heddle("train", corpus, *words, "--name", "a").code == 0


@pytest.mark.parametrize("times", [200.0, 0.25])
@pytest.mark.parametrize("command", [("generate", "a", "--prompt", "the", "--max-tokens", "2"), ("eval", "a")])
def test_prediction_takes_the_precision_that_pays(
    heddle: Heddle, in_bf16: None, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], times: float
) -> None:
    """What was trained in bf16 predicts in bf16; where that is slow, in fp32, and a line on stderr says so."""
    monkeypatch.setattr(import_module("heddle.account.machine"), "slowdown", lambda dtype, device: times)
    result = heddle(*command, "--json")
    assert result.code == 0
    if times > 1:
        assert result.json["precision"] == "fp32"
        assert (
            "runs/a was trained in bf16, which is more than twice as slow as fp32 on this machine: using fp32\n"
            in result.err
        )
    else:
        assert result.json["precision"] == "bf16"
        assert "twice as slow" not in result.err


@pytest.mark.thorough
def test_a_resumed_run_says_that_it_is_not_bit_equal(
    heddle: Heddle, in_bf16: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_module("heddle.account.machine"), "slowdown", lambda dtype, device: 200.0)
    result = heddle("train", "--resume", "a")
    assert result.code == 0
    assert "bf16 is over twice as slow as fp32 here, so fp32 is used; the result will not be bit-identical" in " ".join(
        result.out.split()
    )
