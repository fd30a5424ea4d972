"""The lectures' ways to train, against formulas in float64."""

from math import sqrt

import numpy as np
import numpy.typing as npt
import pytest
import torch

from heddle.config import TrainConfig, TransformerConfig, preset
from heddle.data import Batch
from heddle.model import build
from heddle.nn import Layout
from heddle.nn.norm import make_norm
from heddle.tasks import CrossEntropy
from heddle.train.schedule import factor
from tests.lectures.golden import Case, load_norm, same

DIM, VOCAB, LENGTH = 24, 30, 6
NORM = {"kind": "layer", "eps": 1e-6, "unbiased": True, "eps_outside": True}


def annotated() -> TransformerConfig:
    """The original Transformer as "The Annotated Transformer" writes it out, small."""
    settings = {"dim": DIM, "vocab_size": VOCAB, "context": 16, "pad_vocab_to": 1, "decoder.block.cross.heads": 2}
    for stack in ("encoder", "decoder"):
        block = {"norm": NORM, "placement": "pre", "mixer.heads": 2}
        settings |= {
            f"{stack}.depth": 2,
            f"{stack}.final_norm": True,
            **{f"{stack}.block.{key}": block[key] for key in block},
        }
    return preset("vaswani-base").override(settings)


def normalised(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Its norm: the standard deviation over D - 1, and eps added to it outside of the root."""
    return (x - x.mean(-1, keepdims=True)) / (x.std(-1, ddof=1, keepdims=True) + 1e-6)


@pytest.mark.lecture("L3-36")
def test_the_annotated_transformer() -> None:
    """Its embeddings times √D, its norm, which comes first, Xavier's initial weights, and smoothed labels."""
    config, case = annotated(), Case("layernorm")
    norm = make_norm(config.last()[1].block.norm, 4).double()
    load_norm(norm, case.weights["gain"], case.weights["shift"])
    same(norm(case.inputs["x"]), case.outputs["annotated_transformer_unbiased_std_plus_eps"])
    model = build(config, seed=1).double().eval()
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            edge = sqrt(6 / sum(parameter.shape))
            assert 0.9 * edge < parameter.abs().max() <= edge, name
    read: dict[str, torch.Tensor] = {}
    block = model.encoder.blocks[0]  # type: ignore[union-attr]
    block.register_forward_pre_hook(lambda module, inputs: read.update(block=inputs[0]))
    block.mixer.register_forward_pre_hook(lambda module, inputs: read.update(mixer=inputs[0]))
    draw = torch.Generator().manual_seed(0)
    source, tokens, targets = torch.randint(0, VOCAB, (3, 2, LENGTH), generator=draw)
    with torch.no_grad():
        hidden = model(tokens, source=source).hidden
        scores = model.logits(hidden).numpy()
    rate = 10000.0 ** (-np.arange(0, DIM, 2) / DIM)
    angle = np.arange(LENGTH)[:, None] * rate
    places = np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(LENGTH, DIM)
    entered = model.embedding.weight.detach().numpy()[source.numpy()] * sqrt(DIM) + places
    np.testing.assert_allclose(read["block"].numpy(), entered, rtol=0, atol=1e-6)
    np.testing.assert_allclose(read["mixer"].numpy(), normalised(read["block"].numpy()), rtol=0, atol=1e-11)
    nats = np.log(np.exp(scores).sum(-1, keepdims=True)) - scores
    right = np.take_along_axis(nats, targets.numpy()[..., None], -1)[..., 0]
    batch = Batch(tokens, Layout.whole(2, LENGTH), targets, torch.ones(2, LENGTH), source, Layout.whole(2, LENGTH))
    loss = CrossEntropy(model, label_smoothing=0.1)(batch)
    assert loss.total.item() == pytest.approx((0.9 * right + 0.1 * nats.mean(-1)).sum(), rel=1e-9)


@pytest.mark.lecture("L3-36")
def test_its_learning_rates_rise_and_fall_with_the_step() -> None:
    """lr(s) = D^-0.5 min(s^-0.5, s w^-1.5) for steps s from 1, at any step of a long run."""
    width, warmup, steps = 512, 4000, 100_000
    config = TrainConfig(schedule="inverse_sqrt", warmup=warmup, learning_rate=width**-0.5 * warmup**-0.5)
    assert config.learning_rate == pytest.approx(6.987712429686843e-04, rel=1e-15)
    for step in (1, 2, 3999, 4000, 4001, 16_000, steps):
        expected = np.float64(width) ** -0.5 * min(np.float64(step) ** -0.5, step * np.float64(warmup) ** -1.5)
        factors = factor(step - 1, steps, warmup, config) * config.learning_rate
        assert factors == pytest.approx(expected, rel=1e-12), step
