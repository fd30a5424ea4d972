"""Held-out scores are those of a plain loop over every target, counted once."""

from math import exp, log, sqrt
from typing import Any

import numpy as np
import pytest
import torch

from heddle.config import NextTokenConfig, sized
from heddle.data.batch import Batch, next_token_batch
from heddle.data.corpus import Corpus, Part
from heddle.data.memory import part_of
from heddle.data.order import held_out_windows
from heddle.data.sources.documents import Document
from heddle.errors import HeddleError
from heddle.model import Transformer, build
from heddle.nn.layout import Layout
from heddle.tasks import DataSpec, make_task
from heddle.tasks.metrics import CountingCrossEntropy
from heddle.tasks.own_batches import BatchesTask
from heddle.tasks.own_loss import scored
from heddle.text import train_tokenizer
from heddle.train import Evaluation
from heddle.train import evaluate as score
from heddle.train.evaluate import batch_rows

CONTEXT = 8


def model(**changes: Any) -> Transformer:
    config = sized(2, vocab_size=257, context=CONTEXT, dim=16).override({"initial.std": 0.5, **changes})
    return build(config, dtype=torch.float64)


def text(length: int = 100) -> Part:
    ids = np.random.default_rng(0).integers(0, 257, length).astype(np.uint16)
    return Part(ids, bytes=2 * length, documents=1, first_token_bytes=3)


def evaluate(scored: Transformer, part: Part, context: int, rows: int = 16, most: int | None = None) -> Evaluation:
    """A text scored by how well each next token is predicted."""
    task = make_task(NextTokenConfig(), DataSpec(Corpus(validation=part), scored.config, context=context))
    return score(scored, task, rows, most=most)


@torch.no_grad()
def window_by_window(scored: Transformer, part: Part, context: int) -> list[float]:
    """The surprise of each target in nats, by softmax over all logits."""
    ids, nats = part.tokens.astype(np.int64), []
    for start in range(0, len(ids) - 1, context):
        stop = min(start + context, len(ids) - 1)
        chances = scored.logits(scored(torch.from_numpy(ids[None, start:stop])).hidden)[0].softmax(-1)
        nats += [-log(chances[row, ids[start + row + 1]].item()) for row in range(stop - start)]
    return nats


@pytest.mark.lecture("L1-24")
@pytest.mark.parametrize("length", [2, 8, 9, 17, 100])
@pytest.mark.parametrize("context", [1, 5, 8])
def test_every_target_counts_once(length: int, context: int) -> None:
    scored, part = model(), text(length)
    nats = window_by_window(scored, part, context)
    result = evaluate(scored, part, context, rows=3)
    assert result.tokens == length - 1 == len(nats)
    assert result.loss == pytest.approx(sum(nats) / len(nats), rel=1e-12)
    assert result.metrics["perplexity"] == pytest.approx(exp(result.loss), rel=1e-12)
    assert result.metrics["bytes"] == 2 * length - 3  # the first token is no target
    assert result.metrics["bits_per_byte"] == pytest.approx(sum(nats) / log(2) / (2 * length - 3), rel=1e-12)


@pytest.mark.lecture("L0-57")
def test_nothing_is_dropped() -> None:
    """And a model in training is in training again."""
    places = ("decoder.block.dropout", "decoder.entry.dropout", "decoder.block.mixer.dropout")
    dropping, plain = model(**dict.fromkeys(places, 0.5)), model()
    dropping.train()
    assert evaluate(dropping, text(), CONTEXT) == evaluate(plain, text(), CONTEXT)
    assert dropping.training
    plain.eval()
    evaluate(plain, text(), CONTEXT)
    assert not plain.training


def test_a_hopeless_model_has_a_finite_perplexity() -> None:
    scored = model()
    with torch.no_grad():
        scored.decoder.final_norm.weight.fill_(1e4)
    result = evaluate(scored, text(), CONTEXT)
    assert result.loss > 700
    assert np.isfinite(result.metrics["perplexity"])


def test_no_gradient_is_kept() -> None:
    scored = model()
    evaluate(scored, text(), CONTEXT)
    assert all(parameter.grad is None for parameter in scored.parameters())


def test_text_becomes_a_part() -> None:
    tokenizer = train_tokenizer("bytes", [])
    part = part_of([Document("héllo", "a"), Document("wörld", "b")], tokenizer)
    assert part.tokens.tolist() == [*"héllo".encode(), 256, *"wörld".encode()]
    assert (part.bytes, part.documents, part.first_token_bytes) == (12, 2, 1)
    without = part_of([Document("ab", "a"), Document("ba", "b")], train_tokenizer("characters", ["ab"], special=()))
    assert without.tokens.tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize("texts", [[], ["a"]])
def test_text_without_a_target_is_refused(texts: list[str]) -> None:
    with pytest.raises(HeddleError, match=rf"has {len(texts)} token\(s\); it needs at least 2"):
        part_of([Document(text, "here") for text in texts], train_tokenizer("bytes", []))


def test_a_sample_is_spread_and_says_how_far_it_may_be_off() -> None:
    """The same windows every time; the standard error is that of the windows' losses."""
    scored, part = model(), text(801)
    everything, some = evaluate(scored, part, CONTEXT), evaluate(scored, part, CONTEXT, most=160)
    assert (everything.standard_error, everything.share) == (0.0, 1.0)
    assert (some.tokens, some.share, some.metrics["bytes"]) == (160, 0.2, round(1599 / 5))
    assert some == evaluate(scored, part, CONTEXT, rows=3, most=160)
    nats = window_by_window(scored, part, CONTEXT)
    losses = [
        sum(nats[start:stop]) / CONTEXT for start, stop in held_out_windows(len(part.tokens), CONTEXT, 160 // CONTEXT)
    ]
    assert some.loss == pytest.approx(np.mean(losses), rel=1e-12)
    assert some.standard_error == pytest.approx(np.std(losses, ddof=1) / sqrt(len(losses)) * sqrt(0.8), rel=1e-9)
    rates = [each.metrics["bits_per_byte"] / each.loss for each in (some, everything)]
    assert rates[0] == pytest.approx(rates[1], rel=1e-12)
    assert evaluate(scored, part, CONTEXT, most=800) == everything


def test_a_sample_is_of_the_whole_part() -> None:
    """A text of two halves, one much harder: a sample of its beginning would see only one of them."""
    scored, easy = model(), np.full(1000, 7, np.uint16)
    part = Part(np.concatenate([easy, text(1000).tokens]), bytes=2000, documents=1, first_token_bytes=1)
    true = evaluate(scored, part, CONTEXT)
    for most in (200, 400):
        some = evaluate(scored, part, CONTEXT, most=most)
        assert some.standard_error is not None
        assert abs(some.loss - true.loss) < 3 * some.standard_error


def test_a_sample_has_at_least_four_windows() -> None:
    scored, part = model(), text(2001)
    assert evaluate(scored, part, CONTEXT, most=1).tokens == 4 * CONTEXT
    assert evaluate(scored, text(20), CONTEXT, most=1).share == 1.0


def test_progress_counts_examples() -> None:
    progress: list[tuple[int, int]] = []
    task = make_task(NextTokenConfig(), DataSpec(Corpus(validation=text(21)), model().config, context=CONTEXT))
    score(model(), task, 2, lambda done, total: progress.append((done, total)))
    assert progress == [(2, 3), (3, 3)]


def test_a_text_of_one_token_is_refused() -> None:
    with pytest.raises(HeddleError, match=r"1 token\(s\); it needs at least 2"):
        evaluate(model(), text(1), CONTEXT)


def test_a_task_without_a_text_to_score_is_refused() -> None:
    with pytest.raises(HeddleError, match="no text to score"):
        score(model(), make_task(NextTokenConfig(), DataSpec(Corpus(text()), model().config)))


def test_rows_to_score_are_few_of_long_ones_and_no_more_than_help() -> None:
    assert [batch_rows(context) for context in (16, 64, 100, 256, 512, 8192)] == [64, 64, 40, 16, 16, 16]


def test_a_target_that_counts_half_is_half_right() -> None:
    model = build(sized(1, vocab_size=13, dim=16, context=8), seed=1)
    features, targets = torch.randn(2, 4, 16), torch.randint(13, (2, 4))
    best = scored(model, features).argmax(-1)
    targets[:, :2] = best[:, :2]
    weights = torch.tensor([[0.5, 0.0, 1.0, 0.25], [1.0, 0.25, 0.5, 0.0]])
    batch = Batch(targets, Layout.whole(2, 4), targets, weights)
    accuracy = CountingCrossEntropy(model).counts(features, batch)["accuracy"]
    torch.testing.assert_close(accuracy, ((best == targets) * weights).sum(1))
    assert accuracy[0] >= 0.5


def test_a_part_of_ones_own_batches_is_a_part_of_an_epoch() -> None:
    model = build(sized(1, vocab_size=13, dim=16, context=8), seed=1)
    batches = [next_token_batch(np.arange(10).reshape(2, 5))] * 2
    assert BatchesTask(batches, None, model, None).epochs(5) == 2.5
    assert BatchesTask(iter(batches), None, model, None).epochs(5) is None
