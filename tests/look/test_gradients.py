"""Gradients against finite differences, integrated gradients that add up, rollouts by hand."""

import pytest
import torch

from heddle.config import LayerNormConfig
from heddle.config.model import ClassifierHeadConfig
from heddle.errors import HeddleError
from heddle.look import Edit, input_gradients, integrated_gradients, rollout, trace
from tests.look.inputs import inputs_of
from tests.models import BOTH, FEW, awake, config_of, name_of, tokens_of


@pytest.mark.parametrize("config", [*FEW[:2], BOTH[0]], ids=name_of)
def test_gradients_are_those_of_finite_differences(config) -> None:  # type: ignore[no-untyped-def]
    model = awake(config)
    tokens, more = inputs_of(model, rows=1, length=5)
    attributions = input_gradients(model, tokens, 3, position=3, **more)
    vectors = trace(model, tokens, "decoder.embedded", **more)["decoder.embedded"]
    step = 1e-6
    for place in range(5):
        moved = vectors.clone()
        moved[0, place] *= 1 + step
        edit = Edit("decoder.embedded", lambda old, moved=moved: moved)
        score = float(trace(model, tokens, edits=[edit], **more).logits[0, 3, 3])
        assert float(attributions.values[place]) == pytest.approx(
            (score - attributions.score) / step, rel=1e-3, abs=1e-6
        )
    assert float(attributions.values[4]) == 0  # after the position that is scored


def test_the_error_of_integrated_gradients_falls_with_the_square_of_the_steps() -> None:
    """As a sum at midpoints does; at either end of each step it would fall with the steps alone."""
    model, tokens = awake(config_of(positions="learned")), tokens_of(1, 6)
    baseline = 0.5 * trace(model, tokens, "decoder.embedded")["decoder.embedded"]  # away from zero, where norms bend
    gaps = []
    for steps in (32, 64, 128):
        attributions = integrated_gradients(model, tokens, 3, steps=steps, baseline=baseline)
        assert attributions.baseline is not None
        gaps.append(abs(float(attributions.values.double().sum()) - (attributions.score - attributions.baseline)))
    assert gaps[0] / gaps[1] == pytest.approx(4, rel=0.2)
    assert gaps[1] / gaps[2] == pytest.approx(4, rel=0.2)


def test_integrated_gradients_add_up() -> None:
    """From zeros, which a norm with a small eps would bend the line at: with a large one fewer steps suffice."""
    model = awake(config_of(norm=LayerNormConfig(eps=1.0), positions="learned"))
    tokens = tokens_of(1, 6)
    for against in (None, 5):
        attributions = integrated_gradients(model, tokens, 3, against=against, steps=64)
        assert attributions.baseline is not None
        assert float(attributions.values.sum()) == pytest.approx(
            attributions.score - attributions.baseline, rel=2e-3, abs=2e-3
        )
    zero = trace(model, tokens, edits=[Edit("decoder.embedded", torch.zeros_like)]).logits[0, -1]
    assert attributions.baseline == pytest.approx(float(zero[3] - zero[5]))
    assert "score" in attributions._repr_html_()


def test_a_classifier_has_scores_of_classes() -> None:
    config = config_of(family="encoder").model_copy(update={"head": ClassifierHeadConfig(classes=3)})
    model = awake(config)
    attributions = input_gradients(model, tokens_of(1, 5), 2)
    with torch.no_grad():
        scores = model.head(model(tokens_of(1, 5)).hidden, None, model.embedding.weight)
    assert attributions.score == pytest.approx(float(scores[0, 2]))
    lengths = input_gradients(model, tokens_of(1, 5), 2, times_input=False)
    assert (lengths.values >= 0).all()
    with pytest.raises(HeddleError, match="score 3 is out of range"):
        input_gradients(model, tokens_of(1, 5), 3)


@pytest.mark.lecture("L1-42")
def test_a_rollout_of_one_layer_is_its_map() -> None:
    model = awake(config_of(depth=3))
    layers = list(trace(model, tokens_of(2, 7), attention="decoder.*.mixer").attention.values())
    alone, identity = layers[0].weights().mean(1), torch.eye(7, dtype=torch.float64)
    torch.testing.assert_close(rollout(layers[:1], residual=0), alone)
    torch.testing.assert_close(rollout(layers[:1]), 0.5 * alone + 0.5 * identity)
    whole = rollout(layers)
    torch.testing.assert_close(whole.sum(-1), torch.ones(2, 7, dtype=torch.float64))
    by_hand = [0.5 * layer.weights().mean(1) + 0.5 * identity for layer in layers]
    torch.testing.assert_close(whole, by_hand[2] @ by_hand[1] @ by_hand[0])
    one_head = rollout(layers, 0, combine=lambda maps: maps[:, 1])
    torch.testing.assert_close(
        one_head, layers[2].weights()[:, 1] @ layers[1].weights()[:, 1] @ layers[0].weights()[:, 1]
    )


def test_what_cannot_be_rolled_out_is_said() -> None:
    model = awake(config_of(family="both"))
    call = trace(model, tokens_of(1, 5), attention="*.cross", source=tokens_of(1, 4)).attention
    with pytest.raises(HeddleError, match=r"maps of a whole text of at most 4,096 tokens, not 5 × 4"):
        rollout(list(call.values()))
    with pytest.raises(HeddleError, match="at least one attention layer"):
        rollout([])
