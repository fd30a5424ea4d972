"""An edit of a pass equals the same edit made by hand in the weights."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from heddle.config import TransformerConfig
from heddle.errors import HeddleError
from heddle.look import Edit, ablate, edited, replace, steer, trace
from heddle.model import Transformer
from tests.look.inputs import inputs_of
from tests.models import BOTH, FEW, awake, config_of, name_of, tokens_of


def hidden(model: Transformer, edits: Sequence[Edit] = ()) -> Tensor:
    tokens, more = inputs_of(model)
    with torch.no_grad(), edited(model, edits):
        output: Tensor = model(tokens, **more).hidden
    return output


def by_hand(config: TransformerConfig, change: Callable[[Any], None]) -> Tensor:
    model = awake(config)
    with torch.no_grad():
        change(model.last_stack().blocks[0])
    return hidden(model)


def check(config: TransformerConfig, edit: Edit, change: Callable[[Any], None]) -> None:
    model = awake(config)
    plain, edited = hidden(model), hidden(model, [edit])
    torch.testing.assert_close(edited, by_hand(config, change))
    assert (edited - plain).abs().max() > 1e-3


HEADS = [
    each
    for each in (*FEW, *BOTH[::3])
    if each.last()[1].blocks[0].mixer.kind == "attention" and each.last()[1].block.placement != "bare"
]


@pytest.mark.parametrize("config", HEADS, ids=name_of)
def test_a_head_that_is_ablated_is_one_without_output_weights(config: TransformerConfig) -> None:
    def change(block: Any) -> None:
        width = block.mixer.value_dim
        block.mixer.o.weight[:, width : 2 * width] = 0

    check(config, ablate("decoder.0.mixer.heads", heads=[1]), change)


def zero(*tensors: Tensor | None) -> None:
    for tensor in tensors:
        if tensor is not None:
            tensor.zero_()


def test_cross_attention_is_ablated() -> None:
    check(
        config_of(family="both"),
        ablate("decoder.0.cross.output"),
        lambda block: zero(block.cross.o.weight, block.cross.o.bias),
    )


@pytest.mark.parametrize("placement", ["pre", "post", "sandwich"])
def test_branches_and_neurons_are_ablated(placement: str) -> None:
    config = config_of(placement=placement)
    check(config, ablate("decoder.0.mixer.output"), lambda block: zero(block.mixer.o.weight, block.mixer.o.bias))
    check(config, ablate("decoder.0.ffn.output"), lambda block: zero(block.ffn.down.weight, block.ffn.down.bias))

    def without(block: Any) -> None:
        block.ffn.down.weight[:, [3, 5]] = 0

    check(config, ablate("decoder.0.ffn.hidden", neurons=[3, 5]), without)


@pytest.mark.parametrize("dispatch", ["loop", "grouped"])
def test_an_expert_is_ablated(dispatch: str) -> None:
    def without(block: Any) -> None:
        block.ffn.experts.down[1] = 0
        if block.ffn.experts.down_bias is not None:
            block.ffn.experts.down_bias[1] = 0

    check(config_of(ffn="moe", dispatch=dispatch), ablate("decoder.0.ffn.gates", experts=[1]), without)


def test_gates_are_those_of_the_chosen_experts() -> None:
    model = awake(config_of(ffn="moe"))
    tokens = tokens_of(2, 9)
    traced = trace(model, tokens, ["decoder.0.ffn.gates", "decoder.0.ffn.router_logits"])
    gates, logits = traced.values()
    assert ((gates > 0).sum(-1) == 2).all()
    torch.testing.assert_close(gates.sum((0, 1)) > 0, trace(model, tokens).output.routings[0].load > 0)
    best = logits.topk(2).indices
    assert (gates.gather(-1, best) > 0).all()


def test_a_direction_that_is_added_is_a_bias() -> None:
    config = config_of(placement="pre")
    vector = torch.randn(16, dtype=torch.float64)

    def change(block: Any) -> None:
        block.ffn.down.bias += 2.5 * vector

    check(config, steer("decoder.0.residual_after", vector, 2.5), change)


def test_patching_everything_gives_the_other_prompt() -> None:
    model = awake(config_of())
    one, two = tokens_of(1, 6), tokens_of(1, 6, seed=9)
    clean = trace(model, one, "decoder.0.residual_after")
    edit = replace("decoder.0.residual_after", clean["decoder.0.residual_after"])
    with edited(model, [edit]):
        assert torch.equal(model(two).hidden, clean.output.hidden)


def test_patching_a_token_is_the_prompt_with_that_token() -> None:
    """At the entry, a position's vector is its token's: by hand, another id."""
    model = awake(config_of())
    one, two = tokens_of(1, 6), tokens_of(1, 6, seed=9)
    mixed = two.clone()
    mixed[0, 3] = one[0, 3]
    assert one[0, 3] != two[0, 3]
    edit = replace("decoder.entry", trace(model, one, "decoder.entry")["decoder.entry"], positions=[3])
    with edited(model, [edit]):
        torch.testing.assert_close(model(two).hidden, model(mixed).hidden * 0 + trace(model, mixed).output.hidden)


def test_weights_and_scores_are_replaced() -> None:
    model = awake(config_of(kernel="sdpa"))
    tokens = tokens_of(2, 6)
    plain = trace(model, tokens, ["decoder.0.mixer.v", "decoder.0.mixer.heads", "decoder.0.mixer.scores"])
    even = torch.ones(6, 6, dtype=torch.float64).tril()
    even /= even.sum(-1, keepdim=True)
    traced = trace(model, tokens, "decoder.0.mixer.heads", edits=[replace("decoder.0.mixer.weights", even)])
    torch.testing.assert_close(traced["decoder.0.mixer.heads"], even @ plain["decoder.0.mixer.v"])
    blocked = Edit("decoder.0.mixer.scores", lambda scores: scores.masked_fill(torch.eye(6) == 0, -torch.inf))
    traced = trace(model, tokens, "decoder.0.mixer.heads", edits=[blocked])
    torch.testing.assert_close(traced["decoder.0.mixer.heads"], plain["decoder.0.mixer.v"])


def test_what_cannot_be_selected_is_said() -> None:
    model = awake(config_of())
    with pytest.raises(HeddleError, match="residual_after has no heads: choose from its rows, positions, channels"):
        hidden(model, [ablate("decoder.0.residual_after", heads=[0])])
    with pytest.raises(
        HeddleError, match=r"decoder.0.mixer.heads is \[2, 4, 9, 4\]: index 4 is out of range for axis 1"
    ):
        hidden(model, [ablate("decoder.0.mixer.heads", heads=[4])])
    with pytest.raises(HeddleError, match=r"an edit of decoder.0.mixer.heads returned \[2, 4, 9\] instead of"):
        hidden(model, [Edit("decoder.0.mixer.heads", lambda tensor: tensor[..., 0])])
