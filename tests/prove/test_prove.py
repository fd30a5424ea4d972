"""`prove`: every family holds, planted faults do not, and what it says can be read by machines."""

import json
import re

import pytest
import torch

from heddle.config import TransformerConfig, preset, preset_names
from heddle.model import build
from heddle.prove import laptop, prove, prove_config
from heddle.prove.subject import awaken
from heddle.prove.verdict import Comparison, judge
from tests.thorough import thorough

SMALL = {"vocab_size": 31, "dim": 32, "context": 48}
ROTARY = {"heads": 4, "bias": False, "relative": {"kind": "rotary"}}


def tiny(**block: object) -> TransformerConfig:
    return TransformerConfig.of({**SMALL, "decoder": {"depth": 2, "block": {"mixer": ROTARY, **block}}})


def failed(config: TransformerConfig) -> set[str]:
    """The checks that do not hold of a model with weights at which every part has a say."""
    return {verdict.check for verdict in prove(awaken(build(config, seed=1), 1)).verdicts if not verdict.holds}


def distinct() -> list[str]:
    """One preset for each that differs in more than numbers at laptop size: GPT-2's and GPT-3's rows are one model there."""
    choices = {name: re.sub(r"(?<=: )-?[0-9][0-9.e-]*", "0", laptop(preset(name)).to_json()) for name in preset_names()}
    return list({choice: name for name, choice in choices.items()}.values())


LAPTOP = ("laptop-tiny", "laptop-moe", "laptop-translate")


@pytest.mark.parametrize("name", [*LAPTOP, *thorough(*(name for name in distinct() if name not in LAPTOP))])
def test_every_preset_holds(name: str) -> None:
    """At laptop size, in which a preset keeps its choices; `heddle prove NAME` proves those of up to 20 million weights whole."""
    proof = prove_config(laptop(preset(name)), name)
    assert [verdict for verdict in proof.verdicts if not verdict.holds] == []
    assert sum(verdict.word != "NOT CHECKED" for verdict in proof.verdicts) >= 6


def test_a_large_model_is_tried_with_its_own_choices_at_laptop_size() -> None:
    proof = prove_config(preset("mistral-7b"), "mistral-7b")
    assert proof.reduced
    small, large = proof.config.decoder.block, preset("mistral-7b").decoder.block
    assert (small.placement, small.norm, small.ffn.kind) == (large.placement, large.norm, large.ffn.kind)
    assert (small.mixer.heads, small.mixer.key_heads(), small.mixer.window) == (4, 2, 7)
    assert len(laptop(preset("laptop-window")).decoder.blocks) == 2, "one layer of each kind"


def test_a_proof_is_data() -> None:
    data = prove_config(tiny()).to_dict()
    assert json.loads(json.dumps(data)) == data
    assert {check["check"]: check["word"] for check in data["checks"]}["routing"] == "NOT CHECKED"


def test_the_first_differing_place_is_named() -> None:
    expected = {"entry": torch.ones(2, 3), "layer 0": torch.ones(2, 3), "output": torch.ones(2, 3)}
    near = {**expected, "layer 0": expected["layer 0"] + 1e-6}
    far = {**expected, "layer 0": expected["layer 0"] + 1e-3, "output": expected["output"] + 1.0}
    bounds = dict.fromkeys(expected, 1e-6)
    assert judge("a", [Comparison("", expected, expected)], bounds).word == "EXACT"
    assert judge("a", [Comparison("", near, expected)], bounds).word == "ROUNDING"
    assert judge("a", [Comparison("", near, expected, exact=True)], bounds).word == "DIFFERENT"
    verdict = judge("a", [Comparison("case", far, expected)], bounds)
    assert (verdict.word, verdict.layer, verdict.detail) == ("DIFFERENT", "layer 0", "case")
    broken = {**expected, "output": torch.full((2, 3), torch.nan)}
    assert judge("a", [Comparison("", broken, expected)], bounds).word == "DIFFERENT"
    blocked = {"output": torch.tensor([1.0, -torch.inf])}
    assert judge("a", [Comparison("", {"output": torch.tensor([1.0, 0.5])}, blocked)], bounds).word == "DIFFERENT"
    assert (
        judge("a", [Comparison("", {"output": torch.tensor([1.0 + 1e-6, -torch.inf])}, blocked)], bounds).word
        == "ROUNDING"
    )


def test_a_users_own_mixer_is_proved_too() -> None:
    """One that looks back only holds; one that looks at the whole text does not (L0-07)."""
    mixer = {"kind": "custom", "target": "tests.models:Own"}
    assert failed(tiny(mixer=mixer)) == set()
    assert "causality" in failed(tiny(mixer={"kind": "custom", "target": "tests.prove.mixers:Peeking"}))


def test_a_model_that_rounds_too_much_cannot_be_told_apart_from_a_wrong_one() -> None:
    proof = prove(awaken(build(tiny(mixer={"kind": "custom", "target": "tests.prove.mixers:Chaotic"}), seed=1), 1))
    assert not proof.holds
    assert all(verdict.bound <= 1e-3 for verdict in proof.verdicts)
    assert any("too large for a verdict" in verdict.detail for verdict in proof.verdicts)


def test_what_breaks_off_does_not_hold() -> None:
    proof = prove(awaken(build(tiny(mixer={"kind": "custom", "target": "tests.prove.mixers:Failing"}), seed=1), 1))
    words = {verdict.check: (verdict.word, verdict.detail) for verdict in proof.verdicts}
    assert words["cached one by one"] == ("DIFFERENT", "raised KeyError: 'my own error'")
    assert words["causality"][0] == "EXACT"
    json.dumps(proof.to_dict(), allow_nan=False)


def test_sizes_that_no_family_has_are_not_exported_though_the_small_model_could_be() -> None:
    by_check = {verdict.check: verdict for verdict in prove_config(preset("gpt3-13b-as-printed")).verdicts}
    assert by_check["export"].word == "NOT CHECKED"
    assert "5140" in by_check["export"].detail


def test_another_function_in_training_is_found() -> None:
    """The creed itself. Dropout is the one thing that may differ."""
    assert failed(tiny(mixer={"kind": "custom", "target": "tests.prove.mixers:Twice"})) == {"training"}
    assert failed(tiny(dropout=0.5, mixer={**ROTARY, "dropout": 0.5})) == set()


def test_a_users_own_mixer_is_tried_on_longer_texts() -> None:
    assert "causality" in failed(tiny(mixer={"kind": "custom", "target": "tests.prove.mixers:Late"}))
