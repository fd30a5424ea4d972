"""`heddle.fit`: the same twice, and what it refuses."""

import pytest
import torch

import heddle
from heddle.config.train import TrainConfig
from heddle.errors import HeddleError

TEXT = "the quick brown fox jumps over the lazy dog. " * 20


def test_the_same_twice() -> None:
    tokenizer = heddle.train_tokenizer("bytes", [])
    models = [heddle.build(heddle.sized(1, vocab_size=257, context=16, dim=16)) for _ in range(2)]
    losses = [heddle.fit(model, tokenizer, TEXT, steps=4, config=TrainConfig(seed=3)) for model in models]
    assert losses[0] == losses[1]
    for name, value in models[0].state_dict().items():
        assert torch.equal(models[1].state_dict()[name], value), name
    assert not models[0].training


def test_what_cannot_work_is_refused() -> None:
    tokenizer = heddle.train_tokenizer("bytes", [])
    model = heddle.build(heddle.sized(1, vocab_size=257, context=16, dim=16))
    with pytest.raises(
        HeddleError, match="context = 16, but training has 16 tokens: set context=15 or less, or give more text"
    ):
        heddle.fit(model, tokenizer, TEXT[:16], steps=1)
    with pytest.raises(HeddleError, match=r"step \d+: loss is .*lower learning_rate"):
        heddle.fit(model, tokenizer, TEXT, steps=9, learning_rate=1e30, config=TrainConfig(optimizer="adamw"))
