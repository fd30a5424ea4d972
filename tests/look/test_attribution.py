"""What parts add to a score sums to the score, and each share is what a by-hand calculation says."""

import pytest
import torch

from heddle.config import TransformerConfig
from heddle.errors import HeddleError
from heddle.look import ablate, attribute, replace, trace
from tests.look.inputs import inputs_of
from tests.models import EVERY, awake, config_of, name_of, tokens_of


@pytest.mark.parametrize("config", EVERY, ids=name_of)
def test_the_parts_sum_to_the_score(config: TransformerConfig) -> None:
    model = awake(config)
    tokens, more = inputs_of(model)
    parts = attribute(model, tokens, positions=(2, -1), **more)
    assert parts.error() < 1e-9
    logits = trace(model, tokens, **more).logits[:, [2, 8]]
    torch.testing.assert_close(parts.score, logits.amax(-1))
    targets, against = torch.tensor([[1, 2], [3, 4]]), torch.tensor([[5, 5], [6, 6]])
    parts = attribute(model, tokens, targets, against, positions=(2, -1), **more)
    assert parts.error() < 1e-9
    expected = logits.gather(-1, targets[..., None]) - logits.gather(-1, against[..., None])
    torch.testing.assert_close(parts.score, expected[..., 0])
    torch.testing.assert_close(sum(parts.by_layer().values()), parts.score)


@pytest.mark.parametrize("wiring", ["serial", "parallel"])
def test_a_head_of_the_last_layer_adds_what_its_absence_takes_away(wiring: str) -> None:
    """Without a last norm nothing behind the heads divides: only the feed-forward must be held as it was."""
    model = awake(config_of(wiring=wiring))
    model.decoder.final_norm = torch.nn.Identity()
    tokens, name = tokens_of(1, 6), "decoder.1.ffn.added"
    parts = attribute(model, tokens)
    held = replace(name, trace(model, tokens, name)[name])
    for head in range(4):
        less = trace(model, tokens, edits=[held, ablate("decoder.1.mixer.heads", heads=[head])]).logits
        share = float(parts.parts[f"decoder.1.mixer.heads.{head}"])
        assert share == pytest.approx(float(parts.score) - float(less[0, -1, int(parts.targets)]), abs=1e-9)
        assert abs(share) > 1e-4


def test_neurons_sum_to_their_layer() -> None:
    for ffn in ("mlp", "gated"):
        model = awake(config_of(ffn=ffn, ffn_bias=False))
        parts = attribute(model, tokens_of(2, 6), positions=(1, 5))
        assert list(parts.neurons) == ["decoder.0.ffn", "decoder.1.ffn"]
        for name, each in parts.neurons.items():
            torch.testing.assert_close(each.sum(-1), parts.parts[name])


def test_heads_have_no_bias_of_their_own() -> None:
    """What a mixer adds beside its heads is its output bias, and nothing if there is none."""
    model = awake(config_of(bias=False))
    parts = attribute(model, tokens_of(1, 6))
    assert float(parts.parts["decoder.0.mixer.bias"].abs().max()) < 1e-12
    with_bias = attribute(awake(config_of(bias=True)), tokens_of(1, 6))
    assert float(with_bias.parts["decoder.0.mixer.bias"].abs().max()) > 1e-4


def test_in_bf16_the_sum_differs_by_rounding() -> None:
    parts = attribute(awake(config_of(), torch.float32).bfloat16(), tokens_of(1, 20))
    assert 0 < parts.error() < 0.05
    assert "score" in parts._repr_html_()


def test_what_cannot_be_divided_is_said() -> None:
    model = awake(config_of())
    with pytest.raises(HeddleError, match="position 9 is out of range: the text has 4 tokens"):
        attribute(model, tokens_of(1, 4), positions=[9])
