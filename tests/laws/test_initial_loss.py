"""A model that knows nothing is as surprised as a fair die with V sides."""

from math import log

import pytest
import torch
from torch.nn import functional as F

from heddle.config import TransformerConfig, preset, preset_names, sized
from heddle.model import build
from tests.laws.models import COMBINATIONS, name_of

# The vocabulary of the large presets is kept, since it is what the loss is about; their depth and width are cut.
SMALLER = {"decoder.depth": 2, "dim": 256, "decoder.block.mixer.heads": 4}


def first_loss(config: TransformerConfig) -> float:
    generator = torch.Generator().manual_seed(1)
    tokens, targets = (torch.randint(config.vocab_size, (2, 32), generator=generator) for _ in range(2))
    model = build(config, seed=0).eval()
    with torch.no_grad():
        return F.cross_entropy(model.logits(model(tokens)).flatten(0, 1), targets.flatten()).item()


@pytest.mark.parametrize("name", preset_names())
def test_presets_start_at_the_surprise_of_a_guess(name: str) -> None:
    config = preset(name) if name.startswith("laptop") else preset(name).override(SMALLER)
    assert abs(first_loss(config) - log(config.vocab_size)) < 0.3


@pytest.mark.parametrize("depth", [1, 3])
def test_sized_models_start_at_the_surprise_of_a_guess(depth: int) -> None:
    assert abs(first_loss(sized(depth, vocab_size=1000)) - log(1000)) < 0.3


@pytest.mark.parametrize("config", COMBINATIONS, ids=name_of)
def test_combinations_start_at_the_surprise_of_a_guess(config: TransformerConfig) -> None:
    assert abs(first_loss(config) - log(config.vocab_size)) < 0.3
