"""A part that is switched off: what the lectures' definition computes with that mistake, or a model without the part."""

from typing import Any

import pytest
import torch
from torch import Tensor

import heddle
from heddle.config import TransformerConfig
from heddle.errors import HeddleError
from heddle.lessons.definition import below, model
from heddle.lessons.fault import changed
from heddle.lessons.faults import fault
from heddle.look import edited, lens, switch_off, switches, trace
from heddle.model import Transformer
from tests.lessons.drawn import HEADS, draw
from tests.lessons.test_definition import CONFIG, renamed
from tests.look.inputs import inputs_of
from tests.models import BOTH, ENCODERS, FEW, awake, name_of, tokens_of

MISTAKES = {
    "no mask": "decoder.*.mixer.mask",
    "no W_O": "decoder.*.mixer.o",
    "positions left out": "decoder.positions",
    "no skip around attention": "decoder.*.mixer.skip",
    "no skip around the MLP": "decoder.*.ffn.skip",
    "no norm before attention": "decoder.*.mixer.before",
    "no norm before the MLP": "decoder.*.ffn.before",
}


@pytest.fixture(scope="module")
def gpt() -> tuple[Transformer, dict[str, Tensor], Tensor]:
    """A small GPT in float64, its weights by the names of the definition, and ids."""
    built = heddle.build(TransformerConfig.of(CONFIG)).double()
    draw(built.state_dict(), seed=5)
    state = built.state_dict()
    weights = {
        "tokens.weight": state["embedding.weight"],
        "positions.weight": state["decoder.entry.positions.weight"],
        "norm.weight": state["decoder.final_norm.weight"],
        "norm.bias": state["decoder.final_norm.bias"],
    }
    for index in range(2):
        inner = renamed(dict(below(state, f"decoder.blocks.{index}")))
        weights |= {f"blocks.{index}.{name}": each for name, each in inner.items()}
    return built, weights, torch.randint(11, (2, 8), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("mistake", [*MISTAKES, "no last norm"])
def test_a_part_that_is_off_is_the_definition_with_that_mistake(
    gpt: tuple[Transformer, dict[str, Tensor], Tensor], mistake: str
) -> None:
    built, weights, ids = gpt
    last = changed({"model.last_norm": lambda x, gain, shift: x})
    steps = last if mistake == "no last norm" else fault(mistake).steps()
    edits = [switch_off(MISTAKES.get(mistake, "decoder.final_norm"))]
    expected, right = model(ids, weights, HEADS, steps), model(ids, weights, HEADS)
    with torch.no_grad():
        whole = built.logits(built(ids).hidden)
        with edited(built, edits):
            without = built.logits(built(ids).hidden)
        again = built.logits(built(ids).hidden)
    torch.testing.assert_close(without, expected, rtol=0, atol=1e-10)
    assert (expected - right).abs().max() > 1e-2
    assert torch.equal(whole, again)  # everything is as it was
    torch.testing.assert_close(trace(built, ids, edits=edits).logits, expected, rtol=0, atol=1e-10)


def test_nothing_that_is_off_changes_nothing(gpt: tuple[Transformer, dict[str, Tensor], Tensor]) -> None:
    built, _, ids = gpt
    with torch.no_grad(), edited(built, []):
        assert torch.equal(built(ids).hidden, built(ids).hidden)
    assert torch.equal(trace(built, ids, edits=[]).output.hidden, trace(built, ids).output.hidden)


def test_one_layer_s_mask_is_off_for_that_layer_alone(gpt: tuple[Transformer, dict[str, Tensor], Tensor]) -> None:
    built, _, ids = gpt
    layers = trace(built, ids, attention="*", edits=[switch_off("decoder.1.mixer.mask")]).attention
    assert not layers["decoder.0.mixer"].allowed()[0, 0].triu(1).any()
    assert layers["decoder.1.mixer"].allowed().all()
    assert layers["decoder.1.mixer"].error() < 1e-12
    assert len(built.last_stack().patterns) == 1


def test_the_lens_ends_with_the_prediction_without_the_final_norm(
    gpt: tuple[Transformer, dict[str, Tensor], Tensor],
) -> None:
    built, _, ids = gpt
    edits = [switch_off("decoder.final_norm")]
    logits = trace(built, ids[:1], edits=edits).logits
    expected = torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:])
    torch.testing.assert_close(lens(built, ids[:1], edits=edits).losses()[-1], expected)


def hidden(built: Transformer, off: tuple[str, ...] = ()) -> Tensor:
    tokens, more = inputs_of(built)
    with torch.no_grad(), edited(built, [switch_off(name) for name in off]):
        result: Tensor = built(tokens, **more).hidden
    return result


@pytest.mark.parametrize("config", [*FEW, *ENCODERS[::6], *BOTH[::6]], ids=name_of)
def test_every_part_of_every_family_can_be_off_and_on_again(config: TransformerConfig) -> None:
    built = awake(config)
    whole, parts = hidden(built), switches(built)
    for name in parts:
        without = hidden(built, (name,))
        assert without.shape == whole.shape
        assert without.isfinite().all(), name
    hidden(built, tuple(parts))
    assert torch.equal(hidden(built), whole)


def decoder(**stack: Any) -> TransformerConfig:
    block = {"mixer": {"heads": 2}, **stack.pop("block", {})}
    stack = {"depth": 2, "entry": {"positions": "none"}, **stack, "block": block}
    return TransformerConfig.of({"vocab_size": 64, "dim": 8, "context": 16, "decoder": stack})


@pytest.mark.parametrize("relative", [{"kind": "rotary"}, {"kind": "alibi"}, {"kind": "buckets"}], ids=str)
def test_positions_off_is_a_model_without_positions(relative: dict[str, Any]) -> None:
    """For rotary positions, for those added to scores, and for a table that is concatenated: its channels are 0."""
    placed = awake(decoder(block={"mixer": {"heads": 2, "relative": relative}}))
    bare = awake(decoder())
    bare.load_state_dict({name: each for name, each in placed.state_dict().items() if name in bare.state_dict()})
    torch.testing.assert_close(hidden(placed, ("decoder.positions",)), hidden(bare), rtol=0, atol=1e-12)
    assert (hidden(placed) - hidden(bare)).abs().max() > 1e-3


def test_a_parallel_block_has_one_skip_and_a_norm_after_the_sum_is_off_alone() -> None:
    both = awake(decoder(block={"wiring": "parallel"}))
    assert [name for name in switches(both) if name.endswith("skip")] == [
        "decoder.0.mixer.skip",
        "decoder.1.mixer.skip",
    ]
    tokens = tokens_of(2, 9)
    names = ["decoder.1.residual_before", "decoder.1.residual_after"]
    whole = trace(both, tokens, names)
    without = trace(both, tokens, names, edits=[switch_off("decoder.1.mixer.skip")])
    torch.testing.assert_close(without[names[1]], whole[names[1]] - whole[names[0]])
    post = awake(decoder(depth=1, block={"placement": "post"}))
    names = ["decoder.0.residual_before", "decoder.0.mixer.added", "decoder.0.residual_middle"]
    traced = trace(post, tokens, names, edits=[switch_off("decoder.0.mixer.outside")])
    torch.testing.assert_close(traced[names[2]], traced[names[0]] + traced[names[1]])


def test_only_what_a_model_has_is_offered_and_others_are_refused() -> None:
    wide = awake(decoder(block={"mixer": {"heads": 2, "head_dim": 8}}))
    assert "decoder.0.mixer.o" not in switches(wide)  # 16 channels of heads, width 8
    assert "decoder.positions" not in switches(wide)
    for name in ("decoder.0.mixer.o", "decoder.9.mixer.mask", "decoder.0.ffn.mask", "decoder.0.mixer.output"):
        with pytest.raises(HeddleError, match="is not a part of this model that can be switched off"):
            hidden(wide, (name,))
    encoder = awake(next(each for each in ENCODERS))
    assert not [name for name in switches(encoder) if name.endswith("mask")]
