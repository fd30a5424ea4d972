"""What the weights alone say."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from heddle.config import AlibiConfig, RotaryConfig, preset
from heddle.errors import HeddleError
from heddle.look import activation_curves, analogy, near, position_tables, trace
from heddle.nn import Layout
from heddle.nn.rotation import rotate
from heddle.vectors import WordVectors
from tests.models import awake, config_of, tokens_of


def test_neighbours_and_analogies_are_those_of_word_vectors() -> None:
    model = awake(config_of(pad_vocab_to=8), torch.float32)
    table = model.embedding.weight.detach()[:11].numpy()
    words = WordVectors(tuple(map(str, range(11))), np.ascontiguousarray(table))
    for ours, reference in (
        (near(model, 3, 4), words.near("3", 4)),
        (analogy(model, 1, 2, 3, 4), words.analogy("1", "2", "3", 4)),
    ):
        assert [str(token) for token, _ in ours] == [word for word, _ in reference]
        assert [cosine for _, cosine in near(model, 3, 4)] == pytest.approx(
            [cosine for _, cosine in words.near("3", 4)]
        )
    assert len(near(model, 3, 100)) == 10
    with pytest.raises(HeddleError, match="id 11 is out of range"):
        near(model, 11)


def test_tables_are_what_is_added() -> None:
    model = awake(config_of(positions="sinusoidal"))
    tokens = tokens_of(1, 6)
    traced = trace(model, tokens, ["decoder.embedded", "decoder.entry"])
    (table,) = position_tables(model, 6).values()
    torch.testing.assert_close(
        traced["decoder.entry"] - traced["decoder.embedded"], table[None].double(), rtol=0, atol=1e-6
    )
    with pytest.raises(HeddleError, match="160 learned positions"):
        position_tables(awake(config_of(positions="learned")), 200)
    assert position_tables(awake(config_of(positions="none"))) == {}


def test_angles_are_those_of_the_rotation() -> None:
    model = awake(config_of(positions="none", relative=RotaryConfig(base=100.0)))
    (angles,) = position_tables(model, 7).values()
    relative = model.decoder.relative[0]
    x = torch.zeros(1, 1, 7, 4)
    x[..., 0] = 1  # the first channel of the first pair
    turned = rotate(x, relative(Layout.whole(1, 7)))
    torch.testing.assert_close(turned[0, 0, :, 0], angles[:, 0].cos())


@pytest.mark.parametrize(("context", "rows"), [(100, 100), (300, 128)])
def test_tables_are_as_long_as_the_context_and_not_too_long(context: int, rows: int) -> None:
    model = awake(config_of(positions="none", relative=RotaryConfig()).override({"context": context}))
    (angles,) = position_tables(model).values()
    assert len(angles) == rows


def test_the_bias_is_what_scores_get() -> None:
    model = awake(config_of(positions="none", relative=AlibiConfig()))
    (bias,) = position_tables(model, 5).values()
    call = trace(model, tokens_of(1, 5), attention="decoder.0.mixer").attention["decoder.0.mixer"]
    steps = call.steps(4, 2)
    torch.testing.assert_close(steps.biased - steps.scaled, bias[2, 4].double())


@pytest.mark.lecture("L1-19")
def test_hidden_units_of_an_mlp() -> None:
    """An MLP maps each vector alone, by 4 D hidden units, which can be seen: 3,072 for GPT-2 (124M)."""
    model = awake(config_of())
    tokens = tokens_of(1, 5)
    traced = trace(model, tokens, ["decoder.0.ffn.input", "decoder.0.ffn.preactivation", "decoder.0.ffn.hidden"])
    block = model.decoder.blocks[0].ffn
    inputs, before, hidden = traced.values()
    assert hidden.shape == (1, 5, 4 * 16)
    torch.testing.assert_close(before, F.linear(inputs, block.up.weight, block.up.bias))
    torch.testing.assert_close(hidden, F.gelu(before, approximate="none"))
    config = preset("gpt2-small")
    assert config.decoder.block.ffn.width(config.dim) == 3072


def test_curves_are_the_functions() -> None:
    x, curves = activation_curves(["relu", "gelu"], -2, 2, 5)
    assert x.tolist() == [-2, -1, 0, 1, 2]
    assert curves["relu"].tolist() == [0, 0, 0, 1, 2]
    torch.testing.assert_close(curves["gelu"], F.gelu(x))
    with pytest.raises(HeddleError, match="unknown activation 'rely'"):
        activation_curves(["rely"])
