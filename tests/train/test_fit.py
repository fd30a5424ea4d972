"""From nothing to text in a few lines."""

from pathlib import Path

import numpy as np
import pytest
import torch

import heddle
from heddle.config.run import TrainConfig
from heddle.errors import HeddleError

TEXT = "the quick brown fox jumps over the lazy dog. " * 20


@pytest.mark.lecture("L1-92")
def test_build_train_generate_save_load(tmp_path: Path) -> None:
    tokenizer = heddle.train_tokenizer("characters", [TEXT])
    model = heddle.build(heddle.sized(2, vocab_size=tokenizer.vocab_size, context=32, dim=32))
    losses = heddle.fit(model, tokenizer, TEXT, steps=60, learning_rate=1e-2)
    assert len(losses) == 60
    assert losses[0] == pytest.approx(np.log(tokenizer.vocab_size), abs=0.2)
    assert losses[-1] < 0.5
    text = heddle.generate_text(model, tokenizer, "the quick", max_tokens=10, temperature=0)
    assert text == " brown fox"
    heddle.save(model, tmp_path / "fox", tokenizer)
    again, reader = heddle.load(tmp_path / "fox", "cpu")
    assert reader is not None
    assert heddle.generate_text(again, reader, "the quick", max_tokens=10, temperature=0) == text


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
