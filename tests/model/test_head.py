"""Heads: one vector for a sequence, whatever else is in its row."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from heddle.config import TransformerConfig
from heddle.data.batch import Batch
from heddle.errors import HeddleError
from heddle.model import build
from heddle.nn import Layout
from heddle.tasks import CrossEntropy

HEADS: dict[str, dict[str, Any]] = {
    "tied": {"kind": "language", "scale": 0.5, "cap": 2.0},
    "untied": {"kind": "language", "tied": False, "bias": True, "transform": True},
    "classifier": {"kind": "classifier", "classes": 5, "pooling": "mean", "dense": True},
    "embedding": {"kind": "embedding"},
}
TOKENS, LAYOUT = torch.arange(10).view(2, 5), Layout.padded([5, 2], 5)


def model(head: dict[str, Any]) -> Any:
    block = {"mixer": {"heads": 2}}
    data = {"vocab_size": 13, "pad_vocab_to": 8, "dim": 8, "context": 5, "encoder": {"depth": 1, "block": block}}
    return build(TransformerConfig.of({**data, "decoder": None, "initial": {"std": 0.3}, "head": head}))


@pytest.mark.parametrize("name", HEADS)
def test_every_head_has_one_call(name: str) -> None:
    """And what it says of its scores gives the scores that it gives."""
    made = model(HEADS[name])
    hidden, table = made(TOKENS, LAYOUT).hidden, made.embedding.weight
    output = made.head(hidden, LAYOUT, table)
    if name == "embedding":
        assert output.shape == (2, 8)
        with pytest.raises(HeddleError, match="vectors, not scores"):
            made.head.scoring(table)
        return
    features, scores = made.head.features(hidden, LAYOUT), made.head.scoring(table)
    assert torch.equal(scores.finish(F.linear(features, scores.table, scores.bias)), output)
    assert output.shape == ((2, 5) if name == "classifier" else (2, 5, 16))
    assert (output[..., scores.vocab_size :] == -torch.inf).all()
    assert (scores.table is table) == (name == "tied")


def test_a_classifier_is_trained_by_the_same_loss() -> None:
    """Targets are one class for each row; a row of weight 0 teaches nothing."""
    made = model(HEADS["classifier"])
    batch = Batch(TOKENS, LAYOUT, torch.tensor([3, 1]), torch.tensor([1.0, 0.0]))
    loss = CrossEntropy(made)(batch)
    expected = F.cross_entropy(
        made.head(made(TOKENS, LAYOUT).hidden, LAYOUT, made.embedding.weight)[:1], torch.tensor([3])
    )
    torch.testing.assert_close(loss.total, expected)
    assert loss.count == 1
    assert CrossEntropy(made).by_row(batch)["loss"].tolist() == pytest.approx([expected.item(), 0.0])
    actual, right = (torch.autograd.grad(each, made.head.scores.weight)[0] for each in (loss.total, expected))
    torch.testing.assert_close(actual, right)


def test_an_encoder_decoder_is_trained_by_the_same_loss() -> None:
    """The source, its layout and the types of both reach the model."""
    entry = {"entry": {"types": 2}}
    stacks = {
        "encoder": {"depth": 1, "block": {"mixer": {"heads": 2}}, **entry},
        "decoder": {"depth": 1, "block": {"mixer": {"heads": 2}, "cross": {"heads": 2}}, **entry},
    }
    made = build(TransformerConfig.of({"vocab_size": 13, "dim": 8, "context": 5, "initial": {"std": 0.3}, **stacks}))
    source, at = TOKENS.flip(1), Layout.padded([3, 5], 5)
    inputs = {"source": source, "source_layout": at, "types": TOKENS % 2, "source_types": source % 2}
    batch = Batch(TOKENS, LAYOUT, (TOKENS + 1) % 13, LAYOUT.real.float(), **inputs)
    logits = made.logits(made(TOKENS, LAYOUT, **inputs).hidden)[LAYOUT.real]
    expected = F.cross_entropy(logits, batch.targets[LAYOUT.real], reduction="sum")
    torch.testing.assert_close(CrossEntropy(made)(batch).total, expected)
    halves = [CrossEntropy(made)(part).total for part in batch.split(2)]
    torch.testing.assert_close(sum(halves), expected)


def test_a_classifier_says_its_scores_and_a_language_model_what_it_lacks() -> None:
    made = model({"kind": "classifier", "classes": 3, "pooling": "mean"}).eval()
    hidden = made(TOKENS, LAYOUT).hidden
    means = torch.stack([hidden[0].mean(0), hidden[1, :2].mean(0)])
    expected = F.linear(means, made.head.scores.weight, made.head.scores.bias)
    torch.testing.assert_close(made.scores(hidden, LAYOUT), expected)
    with pytest.raises(HeddleError, match=r"of shape \[2, 4, 8\] cannot be pooled by a layout for \[B T\] = \[2, 5\]"):
        made.scores(hidden[:, 1:], LAYOUT)
    with pytest.raises(HeddleError, match="head is of kind 'language', which does not score classes"):
        model(HEADS["tied"]).scores(hidden)
