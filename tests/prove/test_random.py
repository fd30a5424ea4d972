"""Random models out of every choice: each builds, learns, counts, survives writing, and is blamed for nothing."""

import tomllib

import pytest
import torch

from heddle.account.parameters import parameter_count
from heddle.config import TransformerConfig
from heddle.model import build
from tests.prove.draws import alarms, drawn


@pytest.mark.parametrize("seed", range(40))
def test_what_validates_works(seed: int) -> None:
    config = drawn(seed)
    assert TransformerConfig.of(config.to_dict()) == config
    assert TransformerConfig.of(tomllib.loads(config.to_toml())) == config
    model = build(config, seed=seed)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameter_count(config)
    tokens = torch.randint(config.vocab_size, (2, min(9, config.context)))
    source = torch.randint(config.source_vocab_size or config.vocab_size, (2, 5))
    both = config.encoder is not None and config.decoder is not None
    hidden, routings = model.run(tokens, None, source if both else None)
    logits = model.logits(hidden)[..., : config.vocab_size]
    assert logits.shape == (2, tokens.shape[1], config.vocab_size)
    assert logits.isfinite().all()
    loss = logits.square().mean() + sum(routing.terms for routing in routings)
    loss.backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert gradients
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_no_sound_model_is_blamed() -> None:
    """A few here; the module's command proves hundreds."""
    assert list(alarms(8)) == []
