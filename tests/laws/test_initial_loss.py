"""A model that knows nothing is as surprised as a fair die with V sides."""

import json
from functools import cache
from math import log

import pytest
import torch
from torch.nn import functional as F

from heddle.config import TransformerConfig, preset, preset_names, sized
from heddle.model import build
from tests.models import COMBINATIONS, name_of

PREDICTING = [name for name in preset_names() if preset(name).head.kind == "language"]


def smaller(config: TransformerConfig) -> TransformerConfig:
    """The same kind of model with less depth and width. The vocabulary stays, since it is what the loss is about."""
    table = config.to_dict() | {"dim": 128, "context": min(config.context, 512)}
    for name in config.stacks():
        table[name] |= {"depth": 2, "overrides": []}
        block = table[name]["block"]
        for place in ("mixer", "cross"):
            if block[place] and block[place]["kind"] == "attention":
                block[place] |= {"heads": 4, "kv_heads": None, "head_dim": None, "value_dim": None}
        if block["ffn"]["kind"] == "moe":
            block["ffn"] |= {"experts": 4, "active": 2}
    return TransformerConfig.of(table)


def first_loss(config: TransformerConfig) -> float:
    return _first_loss(config.to_json())  # many presets are one model when small


@cache
def _first_loss(text: str) -> float:
    config = TransformerConfig.of(json.loads(text))
    generator = torch.Generator().manual_seed(1)
    shape = (2, min(32, config.context))
    tokens, targets, source = (torch.randint(config.vocab_size, shape, generator=generator) for _ in range(3))
    model = build(config, seed=0).eval()
    with torch.no_grad():
        hidden = model(tokens, source=source if len(config.stacks()) == 2 else None).hidden
        return F.cross_entropy(model.logits(hidden).flatten(0, 1), targets.flatten()).item()


@pytest.mark.lecture("L0-13")
@pytest.mark.parametrize("name", PREDICTING)
def test_presets_start_at_the_surprise_of_a_guess(name: str) -> None:
    config = preset(name) if name.startswith("laptop") else smaller(preset(name))
    assert abs(first_loss(config) - log(config.vocab_size)) < 0.3


@pytest.mark.parametrize("depth", [1, 3])
def test_sized_models_start_at_the_surprise_of_a_guess(depth: int) -> None:
    assert abs(first_loss(sized(depth, vocab_size=1000)) - log(1000)) < 0.3


@pytest.mark.parametrize("config", COMBINATIONS, ids=name_of)
def test_combinations_start_at_the_surprise_of_a_guess(config: TransformerConfig) -> None:
    assert abs(first_loss(config) - log(config.vocab_size)) < 0.3
