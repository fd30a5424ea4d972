"""The task of prefix language models: how long prefixes are, what is predicted after them, and that runs resume and are shown."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import heddle
from heddle.config import ModelChoice, NextTokenConfig, PrefixLMConfig, RunConfig, TranslationConfig, sized
from heddle.data.batch import IGNORED
from heddle.data.corpus import Corpus
from heddle.errors import HeddleError
from heddle.model import build
from heddle.nn import Layout
from heddle.runs import prepare, show_step
from heddle.tasks import DataSpec, ExampleIndices, PrefixLMTask, make_task
from heddle.tasks.translation import TranslationTask
from heddle.train import evaluate
from tests.runs.test_resume import train, written
from tests.tasks.pairs import MODELS, TOKENIZER, of
from tests.tasks.test_layouts import LENGTH, text

CAUSAL = sized(1, vocab_size=100, context=LENGTH, dim=16)
MODEL = CAUSAL.override({"decoder.prefix": True})
PART = text([8 * 40 + 1], separator=None)
MANY = text([5, 12, 3, 8, 9, 2, 1, 17])
LAYOUTS = ("concatenate", "documents", "pack")


def task(layout: str = "concatenate", part: Any = PART, **settings: Any) -> PrefixLMTask:
    sizes = {"rows": 8, "seed": 3, **settings}
    made = make_task(PrefixLMConfig(), DataSpec(Corpus(part, part), MODEL, layout=layout, **sizes))
    assert isinstance(made, PrefixLMTask)
    return made


@pytest.mark.parametrize("layout", LAYOUTS)
def test_targets_are_the_tokens_after_each_documents_prefix(layout: str) -> None:
    """Read off what is seen: a document's last token that sees ahead or is the prefix's only one predicts the first target."""
    made = task(layout, MANY, rows=3)
    plain = make_task(NextTokenConfig(), DataSpec(Corpus(MANY, MANY), CAUSAL, 3, 3, layout=layout))
    several = 0
    for step in range(4):
        examples = made.examples(step)
        batch, usual = made.batch(examples), plain.batch(examples)
        assert torch.equal(batch.tokens, usual.tokens)
        assert torch.equal(batch.layout.position, usual.layout.position)
        assert torch.equal(batch.weights, (batch.targets != IGNORED).float())
        for row in range(len(batch.tokens)):
            for number in range(batch.layout.documents):
                inside = batch.layout.segment[row] == number
                expected = usual.targets[row, inside].tolist()
                there = sum(target != IGNORED for target in expected)
                if not there:
                    continue
                several += 1
                sees, targets = batch.layout.sees_to[row, inside].tolist(), batch.targets[row, inside].tolist()
                prefix = sees[0] + 1
                assert 1 <= prefix <= there
                assert sees == [max(place, prefix - 1) for place in range(len(sees))]
                assert targets == [IGNORED] * (prefix - 1) + expected[prefix - 1 :]
    assert several > 10


def test_every_length_is_equally_likely() -> None:
    made = task(rows=2000)
    lengths = made.batch(made.examples(0)).layout.sees_to[:, 0].numpy() + 1
    counts = np.bincount(lengths, minlength=LENGTH + 1)
    assert counts[0] == 0
    # Five standard deviations of a count of 2000 draws among 8.
    assert np.abs(counts[1:] - 250).max() < 5 * np.sqrt(2000 / 8 * 7 / 8)


def test_a_prefix_belongs_to_its_example_and_differs_between_epochs() -> None:
    whole, halves, other = task(), task(rows=4), task(seed=4)
    batch = whole.batch(whole.examples(3))
    parts = [halves.batch(halves.examples(step)) for step in (6, 7)]
    assert torch.equal(batch.layout.sees_to, torch.cat([each.layout.sees_to for each in parts]))
    examples = whole.examples(3)
    assert examples.keys is not None
    for again in (other.batch(examples), whole.batch(replace(examples, keys=examples.keys + 8))):
        assert torch.equal(again.tokens, batch.tokens)
        assert not torch.equal(again.targets, batch.targets)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_evaluation_scores_each_window_with_the_prefix_that_is_its_own(layout: str) -> None:
    """Written out: the sum of -log p of the tokens after it, over their number; the same for other sizes of batches."""
    made, model = task(layout, MANY), build(MODEL, seed=1, dtype=torch.float64).eval()
    evaluation, other = (evaluate(model, made, rows) for rows in (2, 5))
    assert evaluation.to_dict() == pytest.approx(other.to_dict())
    total, count = 0.0, 0
    for examples in made.held_out(3).batches:
        batch = made.batch(examples)
        with torch.no_grad():
            scores = model.logits(model(batch.tokens, batch.layout).hidden)
        total += F.cross_entropy(
            scores.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORED, reduction="sum"
        ).item()
        count += int((batch.targets != IGNORED).sum())
    assert evaluation.tokens == count
    assert evaluation.loss == pytest.approx(total / count, rel=1e-9)
    assert evaluation.metrics["perplexity"] == pytest.approx(np.exp(total / count))
    assert "bits_per_byte" not in evaluation.metrics


def test_a_sample_of_what_is_held_out_has_about_as_many_targets_as_asked() -> None:
    chosen = task().held_out(4, most=80)
    windows = sum(len(each.places) for each in chosen.batches)
    assert windows == 20  # of 8 tokens, half of which are targets
    assert chosen.share == pytest.approx(0.5)


def run_config(config: Any, **model: Any) -> RunConfig:
    return RunConfig.of({**config(model=model, steps=6, evaluate_every=3, save_every=2).to_dict(), "task": "prefix_lm"})


def test_a_stopped_run_ends_as_one_that_was_not(config: Callable[..., RunConfig], quick: None, tmp_path: Path) -> None:
    prepare(run_config(config, dropout=0.1), tmp_path / "run")
    stopped = shutil.copytree(tmp_path / "run", tmp_path / "stopped")
    train(tmp_path / "run")
    train(stopped, 1, 4)
    assert written(stopped) == written(tmp_path / "run")


def test_a_step_is_shown_with_its_mask(config: Callable[..., RunConfig], quick: None, tmp_path: Path) -> None:
    prepare(run_config(config), tmp_path / "run")
    view = show_step(tmp_path / "run", length=16)
    (row,), (mask,) = view.rows, view.masks
    prefix = row.weights.index(1.0) + 1
    assert mask.rule == "Causal(), a prefix both ways"
    assert mask.seen == [[key < max(query + 1, prefix) for key in range(16)] for query in range(16)]
    assert [target is None for target in row.targets] == [place < prefix - 1 for place in range(16)]


def test_the_task_decides_the_decoders_prefix() -> None:
    """Of a new model, of a preset, and of a model to start from; what contradicts it is refused."""
    choice, start = ModelChoice(depth=1), ModelChoice.of({"start": "runs/some"})

    def prefix(task: Any, choice: ModelChoice = choice, **start: Any) -> bool:
        return choice.resolve(100, 1, 8, task, **start).decoder.prefix

    assert prefix(PrefixLMConfig())
    assert prefix(PrefixLMConfig(), ModelChoice(preset="gpt2-small"))
    assert prefix(PrefixLMConfig(), start, start=CAUSAL)
    assert not prefix(NextTokenConfig(), start, start=MODEL)
    assert not prefix(TranslationConfig(), ModelChoice(depth=1, family="decoder"))
    assert prefix(TranslationConfig(), start, start=MODEL)
    with pytest.raises(
        HeddleError, match=r"^decoder.prefix = true: the task 'next_token' reads no prefix; leave it out"
    ):
        prefix(NextTokenConfig(), ModelChoice.of({"decoder": {"prefix": True}}))
    with pytest.raises(HeddleError, match=r"^decoder.prefix = false: the task 'prefix_lm' trains a decoder that"):
        prefix(PrefixLMConfig(), ModelChoice.of({"decoder": {"prefix": False}}))


def test_a_model_that_the_task_does_not_fit_is_refused() -> None:
    with pytest.raises(
        HeddleError, match=r"^the task 'prefix_lm' needs a decoder that reads a prefix: set decoder.prefix"
    ):
        task().objective(build(CAUSAL, "meta"))
    usual = make_task(NextTokenConfig(), DataSpec(Corpus(PART), CAUSAL))
    with pytest.raises(
        HeddleError, match=r"^this model reads the beginning of a text as a prefix, but the task 'next_token'"
    ):
        usual.objective(build(MODEL, "meta"))


def test_it_is_learned() -> None:
    """By `fit`, with the model that the task gets; generation then reads its prompt as a prefix and continues it."""
    texts = ["warp weft thread " * 3] * 40
    tokenizer = heddle.tokenizer_for("prefix_lm", texts, kind="characters")
    model = heddle.model_for("prefix_lm", tokenizer, depth=1, context=24, dim=32)
    history = heddle.fit(model, tokenizer, texts, steps=50, task="prefix_lm", learning_rate=1e-2, validation=texts[:1])
    assert history.evaluation is not None
    assert history.evaluation.loss < 0.5 < 2 < history.losses[0]
    assert heddle.generate_text(model, tokenizer, "warp we", max_tokens=11, temperature=0) == "ft thread w"


def test_a_decoder_that_translates_may_read_its_source_both_ways() -> None:
    prefixed = MODELS["decoder"].override({"decoder.prefix": True})
    spec = DataSpec(Corpus(of(("abc", "cba"), ("de", "e"))), prefixed, tokenizer=TOKENIZER)
    made = TranslationTask(TranslationConfig(), spec)
    batch = made.batch(ExampleIndices(np.array([0, 1])))
    # abc>cba and de>e: three letters or two, and the boundary, which predicts the first letter of the target.
    assert batch.layout.sees_to.tolist() == [[3, 3, 3, 3, 4, 5, 6], [2, 2, 2, 3, 4, 5, 6]]
    assert (batch.targets != IGNORED).int().argmax(1).tolist() == [3, 2]
    shared = TranslationTask(TranslationConfig(), replace(spec, layout="pack"))
    packed = shared.batch(shared.examples(0)).layout
    alone = {4: [3, 3, 3, 3, 4, 5, 6], 3: [2, 2, 2, 3]}  # by the length of the prefix
    ends = [packed.sees_to[0, packed.segment[0] == number].tolist() for number in range(packed.documents)]
    assert sorted(ends) == sorted(alone.values())
    model = build(prefixed, seed=1, dtype=torch.float64).eval()
    known = made.row(spec.records(held_out=False), 0).ids[:4].tolist()
    answer = made.answer(model, made.row(spec.records(held_out=False), 0), 3)
    for number, token in enumerate(answer):
        ids = torch.tensor([known + answer[:number]])
        whole = model(ids, Layout.whole(*ids.shape).prefixed(torch.tensor([[4]]))).hidden
        assert model.logits(whole)[0, -1].argmax() == token
    with pytest.raises(HeddleError, match=r"^source_loss predicts each token of the source from those before it"):
        TranslationTask(TranslationConfig(source_loss=True), spec)
    with pytest.raises(HeddleError, match="was made for another model"):
        made.objective(build(MODELS["decoder"], "meta"))
