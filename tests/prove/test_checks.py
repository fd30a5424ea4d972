"""The checks look where a model can go wrong: at every state that forgets, at types, in the shortest of contexts."""

from typing import Any

import pytest
import torch
from torch import Tensor

from heddle.config import TransformerConfig, sized
from heddle.errors import HeddleError
from heddle.model import Transformer, build
from heddle.model.entry import Entry
from heddle.nn.layout import PADDING
from heddle.nn.state import Growing, Rolling
from heddle.prove import Verdict, prove, prove_config
from heddle.prove.checks import CHECKS
from heddle.prove.proof import first_loss
from heddle.prove.subject import Subject, awaken
from heddle.prove.verdict import Comparison, NotApplicable, judge
from tests.thorough import thorough

SMALL = {"vocab_size": 31, "dim": 32, "context": 48}
HEADS = {"kind": "attention", "heads": 4, "relative": {"kind": "rotary"}}


def model(
    mixer: dict[str, Any], stack: dict[str, Any] | None = None, name: str = "decoder", **top: Any
) -> TransformerConfig:
    return TransformerConfig.of({**SMALL, **top, name: {"depth": 2, "block": {"mixer": mixer}, **(stack or {})}})


def verdicts(config: TransformerConfig) -> dict[str, Verdict]:
    """By check, what comes of it with weights at which every part has a say."""
    return {verdict.check: verdict for verdict in prove(awaken(build(config, seed=1), 1)).verdicts}


def failed(config: TransformerConfig) -> set[str]:
    return {check for check, verdict in verdicts(config).items() if not verdict.holds}


def rolling(config: TransformerConfig) -> Verdict:
    """What comes of the one check that reads on after layers have begun to forget."""
    subject, check = Subject(awaken(build(config, seed=1), 1)), "rolling window"
    return judge(check, list(CHECKS[check](subject)), subject.bounds, subject.scales)


FORGETFUL = {
    "two windows": model({**HEADS, "window": 4}, {"overrides": [{"layers": "1", "block": {"mixer": {"window": 40}}}]}, context=100),
    "a wide window": model({**HEADS, "window": 40}, context=48),
    "a long reach": model({"kind": "convolution", "taps": 3, "dilation": 16}, context=80),
    "both": model({"kind": "linear", "taps": 3}, {"overrides": [{"layers": "0", "block": {"mixer": {**HEADS, "window": 30}}}]},
                  context=64),
}  # fmt: skip


@pytest.mark.parametrize("ragged", [False, True], ids=["any rows", "uneven rows"])
@pytest.mark.parametrize("config", FORGETFUL.values(), ids=FORGETFUL)
def test_a_state_that_is_lost_once_it_is_full_is_found(
    config: TransformerConfig, ragged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the layer that looks back furthest alone, so that the others being right does not excuse it."""
    update, far = Rolling.update, Subject(build(config)).state_windows()[-1]

    def losing(self: Rolling, new, at, keys):  # type: ignore[no-untyped-def]
        values = update(self, new, at, keys)
        if self.window == far and int(at.position.max()) >= far and (at.form in ("padded", "ragged") or not ragged):
            self.buffers = tuple(torch.zeros_like(buffer) for buffer in self.buffers)
        return values

    assert rolling(config).holds
    monkeypatch.setattr(Rolling, "update", losing)
    assert not rolling(config).holds


def test_what_never_forgets_is_not_said_to_roll() -> None:
    for config in (model(HEADS), model({**HEADS, "window": 48})):
        with pytest.raises(NotApplicable, match=r"no layer has a window|no window is shorter"):
            rolling(config)


def test_uneven_pieces_amid_a_text_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tokens each, of rows that are of different lengths already."""
    update = Growing.update

    def lost(self: Growing, new, at, keys):  # type: ignore[no-untyped-def]
        uneven = at.form == "ragged" and at.width > 1 and bool((at.segment == PADDING).any())
        return update(self, tuple(torch.zeros_like(tensor) for tensor in new) if uneven else new, at, keys)

    monkeypatch.setattr(Growing, "update", lost)
    assert failed(model(HEADS)) == {"rows alone"}


MIXERS = {
    "attention": HEADS, "window": {**HEADS, "window": 1}, "convolution": {"kind": "convolution"}, "gru": {"kind": "recurrent"},
}  # fmt: skip


@pytest.mark.parametrize("context", [1, *thorough(2, 3)])
@pytest.mark.parametrize("mixer", MIXERS.values(), ids=MIXERS)
def test_the_shortest_contexts_are_proved(mixer: dict[str, Any], context: int) -> None:
    for vocabulary in (1, 2):
        config = model(mixer, {"entry": {"positions": "learned"}, "depth": 1}, context=context, vocab_size=vocabulary)
        proof = prove_config(config)
        assert [verdict for verdict in proof.verdicts if not verdict.holds] == []
        unchecked = {verdict.check for verdict in proof.verdicts if verdict.word == "NOT CHECKED"}
        assert ("causality" in unchecked) == (context == 1 or vocabulary == 1), "nothing can be changed"
        assert ("prefix" in unchecked) == ("packing" in unchecked) == ("forked rows" in unchecked) == (context == 1)
        assert not {"cached one by one", "rows alone", "drawn tokens", "padding on the left", "repeats"} & unchecked


def test_the_shortest_encoders_are_proved() -> None:
    for name, context, vocabulary in (("encoder", 1, 2), ("encoder", 2, 1), ("both", 1, 1), ("both", 2, 2)):
        stacks = {"encoder": {"depth": 1, "block": {"mixer": HEADS}}}
        if name == "both":
            stacks["decoder"] = {"depth": 1, "block": {"mixer": HEADS, "cross": {"heads": 4}}}
        proof = prove_config(
            TransformerConfig.of({**SMALL, "context": context, "vocab_size": vocabulary, **stacks}), seed=3
        )
        assert [verdict for verdict in proof.verdicts if not verdict.holds] == []
        words = {verdict.check: verdict.word for verdict in proof.verdicts}
        assert words["seeing both ways"] == "NOT CHECKED", "there is no other last token"


def test_a_cut_named_twice_is_one_cut() -> None:
    subject = Subject(awaken(build(model({"kind": "recurrent"}))))
    tokens = subject.tokens(2, 5)
    for place, tensor in subject.stepwise_pass(tokens, [3, 1, 3, 1, 0, 9]).items():
        assert torch.equal(tensor, subject.stepwise_pass(tokens, [1, 3])[place])


def types_of_the_first_row(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = Entry.forward

    def mixed_up(self: Entry, x: Tensor, layout: Any, types: Tensor | None = None) -> Tensor:
        return forward(self, x, layout, types if types is None else types[:1].expand_as(types))

    monkeypatch.setattr(Entry, "forward", mixed_up)


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_types_are_said(stack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = model(HEADS, {"entry": {"types": 3}}, stack)
    assert failed(config) == set()
    types_of_the_first_row(monkeypatch)
    assert {"padding on the right", "padding on the left"} <= failed(config)


@pytest.mark.thorough
def test_types_are_said_to_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cached call that forgets the types is found by every check of a cache."""
    forward = Transformer.forward

    def forgetful(self: Transformer, tokens: Tensor, *args: Any, cache: Any = None, **more: Any) -> Any:
        more = more if cache is None else {**more, "types": None}
        return forward(self, tokens, *args, cache=cache, **more)

    config = model({**HEADS, "window": 7}, {"entry": {"types": 2}})
    cached = {"cached one by one", "cached in chunks", "rolling window", "rows alone", "forked rows", "joined rows"}
    verdict_words = verdicts(config)
    assert {verdict_words[check].word for check in cached} <= {"EXACT", "ROUNDING"}
    assert all(verdict.holds for verdict in verdict_words.values())
    monkeypatch.setattr(Transformer, "forward", forgetful)
    assert failed(config) == cached


def test_a_few_numbers_that_are_all_small_may_round_as_others_do() -> None:
    expected, actual = {"output": torch.tensor([1e-6])}, {"output": torch.tensor([1.1e-6])}
    bounds = {"output": 1e-7}
    assert judge("a", [Comparison("", actual, expected)], bounds).word == "DIFFERENT"
    assert judge("a", [Comparison("", actual, expected)], bounds, {"output": 1.0}).word == "ROUNDING"
    assert judge("a", [Comparison("", actual, expected, exact=True)], bounds, {"output": 1.0}).word == "DIFFERENT"


def test_a_first_loss_is_not_asked_of_scores_that_begin_large() -> None:
    config = model(HEADS, initial={"rule": "xavier"}, vocab_size=7)
    assert first_loss(config).word == "NOT CHECKED"
    assert first_loss(config.override({"vocab_size": 400})).word == "ROUNDING"
    assert first_loss(config.override({"initial.rule": "normal"})).word == "ROUNDING"


def test_a_model_elsewhere_is_refused() -> None:
    with pytest.raises(HeddleError, match=r"the model is on meta, and the checks compute on the CPU: model.cpu\(\)"):
        prove(build(sized(1, vocab_size=41, context=8, dim=16), device="meta"))
