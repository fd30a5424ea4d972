"""Dropout: when its mask is drawn, what many passes tend to, where it acts, and which of its two rates is meant."""

from math import sqrt

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from heddle.config import TransformerConfig, preset
from heddle.errors import HeddleError
from heddle.model import build
from heddle.nn import Attention, Dropout, Layout, Setting
from heddle.nn.block import WIRINGS

SIZES = {"vocab_size": 7, "dim": 16, "context": 8}


@pytest.mark.lecture("L0-58", "D-54")
@pytest.mark.parametrize("mask", ["element", "batch"])
def test_one_mask_for_forward_and_backward_and_a_new_one_each_step(mask: str) -> None:
    block = {"mixer": {"kind": "attention", "heads": 2, "dropout": 0.3}, "dropout": 0.3}
    config = TransformerConfig.of({**SIZES, "dropout": {"mask": mask}, "decoder": {"depth": 1, "block": block}})
    model = build(config, dtype=torch.float64).train()
    (layer,), layout = model.decoder.blocks, Layout.whole(3, 8)
    (scope,) = model.decoder.scopes(layout)
    x = torch.randn(3, 8, 16, dtype=torch.float64)

    def run(again: bool, seed: int = 1) -> tuple[Tensor, Tensor]:
        torch.manual_seed(seed)
        leaf = x.clone().requires_grad_()
        made = checkpoint(layer, leaf, scope, use_reentrant=False) if again else layer(leaf, scope)
        (gradient,) = torch.autograd.grad(made[0].square().sum(), leaf)
        return made[0], gradient

    for plain, recomputed in zip(run(False), run(True), strict=True):
        assert torch.equal(plain, recomputed)
    assert not torch.equal(run(False)[0], run(False, seed=2)[0])
    assert not torch.equal(layer(x, scope).hidden, layer(x, scope).hidden)


@pytest.mark.lecture("D-54")
def test_rows_share_a_mask_only_when_asked_to() -> None:
    ones = torch.ones(4, 1000)
    shared, own = Dropout(0.5, shared=True).train()(ones), Dropout(0.5).train()(ones)
    assert (shared == shared[0]).all()
    assert not (own == own[0]).all()


@pytest.mark.lecture("L0-59")
def test_the_mean_of_many_passes_is_the_prediction() -> None:
    """For a linear layer: within four standard errors, for each of its outputs."""
    torch.manual_seed(0)
    layer = nn.Sequential(Dropout(0.3), nn.Linear(20, 5)).double()
    x, passes = torch.randn(20, dtype=torch.float64), 10_000
    drawn = layer.train()(x.expand(passes, 20))
    error = (drawn.mean(0) - layer.eval()(x)).abs()
    assert (error < 4 * drawn.std(0) / sqrt(passes)).all()
    assert (drawn.std(0) > 0.1).all()


@pytest.mark.lecture("L0-60", "D-03")
def test_a_retain_probability_is_read_as_the_rate_of_dropped_values() -> None:
    def block(**rates: float) -> TransformerConfig:
        mixer = {"kind": "attention", "heads": 2}
        return TransformerConfig.of({**SIZES, "decoder": {"depth": 1, "block": {"mixer": mixer, **rates}}})

    assert block(keep_prob=0.75) == block(dropout=0.25) == block(keep_prob=0.75, dropout=0.25)
    assert block(keep_prob=0.9).decoder.block.dropout == 0.1
    with pytest.raises(HeddleError, match=r"keep_prob = 0.75 and dropout = 0.75 contradict each other"):
        block(keep_prob=0.75, dropout=0.75)


@pytest.mark.lecture("L0-61")
def test_weights_times_the_retain_probability_predict_what_units_times_it_do() -> None:
    """(pW)x = W(px): slide 38 scales the weights that read the dropped units, heddle the units; the shift is not scaled."""
    keep, x = 0.75, torch.randn(6, 20, dtype=torch.float64)
    layer, scaled = nn.Linear(20, 5).double(), nn.Linear(20, 5).double()
    scaled.load_state_dict({"weight": keep * layer.weight, "bias": layer.bias})
    prediction = layer(Dropout(1 - keep, classic=True).eval()(x))
    torch.testing.assert_close(prediction, scaled(x), rtol=0, atol=1e-14)
    assert (prediction - layer(x)).abs().max() > 0.01


@pytest.mark.lecture("D-33", "D-56")
def test_each_place_has_a_rate_of_its_own() -> None:
    block = {"mixer": {"kind": "attention", "heads": 2, "dropout": 0.1}, "dropout": 0.2, "placement": "post"}
    stack = {"depth": 1, "block": block, "entry": {"dropout": 0.4}}
    with torch.device("meta"):
        made = WIRINGS["serial"](TransformerConfig.of({**SIZES, "decoder": stack}).decoder.block, Setting(16))
    assert isinstance(made.mixer, Attention)
    rates = [each.dropout.rate for each in (made.mixer.kernel, made.mixer_residual, made.ffn_residual)]
    assert rates == [0.1, 0.2, 0.2]
    whole = build(TransformerConfig.of({**SIZES, "decoder": stack}), "meta")
    assert whole.decoder.entry.dropout.rate == 0.4


@pytest.mark.lecture("L0-66")
def test_gpt2_drops_nothing_unless_asked_to() -> None:
    """The presets are of released weights; 0.1 everywhere is what the paper trained with."""
    config = preset("gpt2-small")
    assert (config.decoder.entry.dropout, config.decoder.block.dropout, config.decoder.block.mixer.dropout) == (0,) * 3
    more = {"decoder.entry.dropout": 0.1, "decoder.block.dropout": 0.1, "decoder.block.mixer.dropout": 0.1}
    assert config.override(more).decoder.block.mixer.dropout == 0.1
