"""Looking inside on the imitated GPU gives the CPU's tables; on a device without float64, too."""

from typing import Any

import pytest
import torch

from heddle.look import (
    ablate,
    attribute,
    difference_of_logits,
    find_heads,
    input_gradients,
    integrated_gradients,
    lens,
    patch,
    rollout,
    score_heads,
    steer,
    trace,
)
from heddle.look.probes import probe
from heddle.look.readings import take_reading
from heddle.look.weights import head_products, near, position_tables
from heddle.model import Transformer
from tests.device.compare import assert_same
from tests.device.imitated import imitated
from tests.device.imitation import Imitation
from tests.look.inputs import inputs_of
from tests.models import BOTH, ENCODERS, awake, config_of, tokens_of
from tests.thorough import first

ROUNDING = 1e-4  # of the largest number of a table, in fp32: the CPU takes another attention kernel
MODELS = {
    "rotary": config_of(),
    "learned": config_of(positions="learned", kv_heads=2, ffn="gated"),
    "encoder": ENCODERS[0],
    "both": BOTH[0],
}
DECODERS = ("rotary", "learned")


def model_of(name: str, device: str) -> Transformer:
    return awake(MODELS[name], torch.float32).to(device)


def traced(model: Transformer, **more: Any) -> Any:
    tokens, inputs = inputs_of(model)
    inputs = {name: each.to(model.device) for name, each in inputs.items()}
    record = trace(model, tokens.to(model.device), "*.residual_after", attention="*.mixer", **inputs, **more)
    return dict(record), {name: each.weights() for name, each in record.attention.items()}


def gradients(model: Transformer) -> Any:
    tokens = tokens_of(1, 7).to(model.device)
    return input_gradients(model, tokens, 3), integrated_gradients(model, tokens, 3, steps=4)


def edits(model: Transformer) -> Any:
    vector = torch.ones(16, device=model.device)
    return [
        traced(model, edits=[each])
        for each in (ablate("decoder.0.mixer.heads", heads=[1]), steer("decoder.0.residual_after", vector))
    ]


def patched(model: Transformer) -> Any:
    one, two = (tokens_of(1, 5, seed=seed).to(model.device) for seed in (1, 9))
    return patch(model, one, two, difference_of_logits(3, 4), "decoder.*.residual_after").values


def heads(model: Transformer) -> Any:
    attention = trace(model, tokens_of(1, 7).to(model.device), attention="*").attention
    scores = {name: score_heads(each, tokens_of(1, 7).to(model.device)) for name, each in attention.items()}
    return scores, rollout(list(attention.values())), find_heads(model, length=6)


def probed(model: Transformer) -> Any:
    tokens = tokens_of(6, 9).to(model.device)
    return probe(model, tokens, tokens % 2, "decoder.1.residual_after")["decoder.1.residual_after"].accuracy


def tables(model: Transformer) -> Any:
    return head_products(model.decoder.blocks[0].mixer), near(model, 3, 4), position_tables(model, 8)


def measured(model: Transformer) -> Any:
    return take_reading(model, tokens_of(1, 9).to(model.device))


def seen(model: Transformer) -> Any:
    tokens = tokens_of(1, 7).to(model.device)
    return lens(model, tokens, 3), attribute(model, tokens, positions=(2, -1))


def check(name: str, look: Any, double: bool = True) -> None:
    expected = look(model_of(name, "cpu"))
    with Imitation(double):
        assert_same(expected, look(model_of(name, "cuda")), ROUNDING)


@imitated
@pytest.mark.parametrize("name", MODELS)
def test_traces(name: str) -> None:
    check(name, traced)


@imitated
@pytest.mark.parametrize("name", first(1, DECODERS))
@pytest.mark.parametrize("look", ["gradients", "edits", "patched", "heads", "probed", "tables", "measured", "seen"])
def test_tables(name: str, look: str) -> None:
    check(name, globals()[look])


@imitated
@pytest.mark.parametrize("look", ["heads", "seen", "gradients"])
def test_without_float64(look: str) -> None:
    check("rotary", globals()[look], double=False)
