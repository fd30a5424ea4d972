"""What is cut, left out or has no prediction is part of every score, for every task."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heddle.config import TokenClassificationConfig
from heddle.config.data import TextLayout
from heddle.data.corpus import Corpus
from heddle.data.encode import records_of
from heddle.data.records import Column, Records
from heddle.data.sources.examples import Example
from heddle.model import build
from heddle.tasks import DataSpec, ExampleIndices, TokenClassificationTask, make_task
from heddle.tasks.extent import Extent
from heddle.tasks.metrics import spans
from heddle.train import evaluate, fit
from tests.prove.tasks import RUNS, TOKENIZER, store, training
from tests.tasks.labelled import TOKENIZER as WORDS
from tests.tasks.labelled import model_for, texts

LONG = 96  # ids in which every record of those runs fits
TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")


def test_words_beyond_the_context_have_the_wrong_class() -> None:
    """Against all words at once, with spans as sets; a span that goes on beyond the context is not found by its beginning."""
    draw = np.random.default_rng(0)
    records = texts(30, 1, most=14)
    tags = [draw.choice(5, len(text), p=[0.2, 0.1, 0.35, 0.1, 0.25]).tolist() for text in records]
    config, context = TokenClassificationConfig(), 7
    corpus = Corpus(validation=Records({"text": Column.of(records), "label": Column.of(tags)}, TAGS))
    model = build(model_for(config, corpus, context=context), seed=4)
    made = TokenClassificationTask(config, DataSpec(corpus, model.config, tokenizer=WORDS))
    result = evaluate(model, made, rows=4)
    right = hits = there = guesses = 0
    for number, row in enumerate(tags):
        batch = made.batch(ExampleIndices(np.array([number]), held_out=True))
        scores = model.head(model(batch.tokens, batch.layout).hidden, batch.layout, model.embedding.weight)
        read = scores[0].argmax(-1).tolist()[1 : 1 + min(len(row), context - 2)]
        right += sum(predicted == expected for predicted, expected in zip(read, row, strict=False))
        predicted, expected = spans([TAGS[each] for each in read]), spans([TAGS[each] for each in row])
        hits, there, guesses = hits + len(predicted & expected), there + len(expected), guesses + len(predicted)
    words, cut = sum(map(len, tags)), sum(max(0, len(row) - context + 2) for row in tags)
    assert result.metrics["accuracy"] == pytest.approx(right / words)
    assert result.metrics["span_f1"] == pytest.approx(2 * hits / (there + guesses))
    assert (result.extent, result.tokens) == (
        Extent(words, cut=cut, examples=30, shortened=sum(len(row) > context - 2 for row in tags)), words - cut,
    )  # fmt: skip
    assert result.share == pytest.approx(1 - cut / words)
    assert f"{cut} of {words} words are cut off by the context, and count as wrong" in result.note
    assert result.to_dict()["cut"] == cut


def test_a_sentence_of_which_nothing_is_read_counts() -> None:
    """Its first word has its class at an id beyond the context."""
    label = [[1, 2], [-100] * 6 + [1, 2]]
    corpus = Corpus(validation=Records({"text": Column.of([[3, 4], [3] * 8]), "label": Column.of(label)}, TAGS))
    config = TokenClassificationConfig()
    model = build(model_for(config, corpus, context=7), seed=4)
    result = evaluate(model, TokenClassificationTask(config, DataSpec(corpus, model.config, tokenizer=WORDS)))
    assert result.extent == Extent(4, cut=2, examples=2, shortened=1, left_out=1)
    assert result.metrics["accuracy"] <= 0.5


@pytest.mark.parametrize("name", [
    "next token, rotary", "next token, documents", "next token, packed", "translation, both", "translation, decoder",
    "translation, decoder, all targets", "translation, packed", "chat", "chat, packed", "classes, encoder", "tags, encoder",
    "contrast, encoder", "numbers, encoder",
])  # fmt: skip
def test_what_a_short_context_leaves_out_is_what_a_long_one_scores(name: str, tmp_path: Path) -> None:
    tried = training(name, store(name, tmp_path))
    spec = tried.task.spec
    short, long = (made(name, spec, context) for context in (9, LONG))
    scored = {
        task: sum(int((task.batch(each).weights > 0).sum()) for each in task.held_out(4).batches)
        for task in (short, long)
    }
    extent, whole = short.extent(), long.extent()
    assert extent is not None
    assert whole is not None
    assert whole.cut == whole.shortened == 0
    assert whole.targets - whole.unscored == scored[long]
    assert extent.targets - extent.cut - extent.unscored == scored[short]
    assert extent.targets == whole.targets
    cuts = name.startswith(("next token, doc", "translation", "chat", "tags"))
    assert (extent.cut > 0) == cuts
    assert (extent.shortened > 0) == (not name.startswith(("next token, r", "next token, p")))


def made(name: str, spec: DataSpec, context: int) -> Any:
    layout: TextLayout = RUNS[name].layout
    model = spec.model.override({"context": context})
    return make_task(
        RUNS[name].task,
        replace(spec, model=model, layout=layout, corpus=Corpus(validation=spec.corpus.validation)),
    )


def test_blank_records_and_what_is_cut_are_told_with_fits_score() -> None:
    """In its result, in its reports and in its line."""
    config = TokenClassificationConfig()
    rows = [(["ab", "c"], ["x", "y"]), (["c", "ab", "ab", "ab"], ["y", "x", "x", "x"])] * 3
    corpus = Corpus(
        records_of(
            [Example({"text": tuple(words)}, tuple(tags), "") for words, tags in rows], TOKENIZER, "tokens", ("x", "y")
        )
    )
    model = build(model_for(config, corpus, context=8).override({"vocab_size": TOKENIZER.vocab_size}), seed=0)
    blank = ([" ", ""], ["x", "y"])
    settings: Any = {"validation": [*rows, blank], "progress": False, "evaluate_every": 1}
    history = fit(model, TOKENIZER, rows, 2, task=config, **settings)
    assert history.evaluation is not None
    extent = history.evaluation.extent
    assert extent is not None
    assert (extent.blank, extent.cut > 0) == (1, True)
    assert "1 record with an empty text left out" in repr(history)
    values = next(report.values for report in history.reports if "validation_loss" in report.values)
    assert (values["blank"], values["cut"]) == (1, extent.cut)
    assert Extent.summarise_counts(values).startswith(f"{extent.cut} cut, ")


def test_what_is_scored_is_the_rest_of_what_is_cut_and_unscored() -> None:
    extent = Extent(10, cut=2, unscored=3, examples=5, left_out=1)
    assert extent.share == 0.5
    assert extent.unscored_counts() == {"cut": 2, "unscored": 3, "left_out": 1}
    assert Extent(0).share == 1.0
    assert Extent(7, examples=3).unscored_counts() == {}
    assert (
        Extent.summarise_counts({"loss": 1.0, "targets": 9, "cut": 1741, "shortened": 60, "blank": 0})
        == "1,741 cut, 60 shortened"
    )


@pytest.mark.parametrize("wrong", [False, True])
def test_a_target_without_a_prediction_counts_as_wrong_where_it_does(wrong: bool) -> None:
    so = ", and count as wrong" if wrong else ""
    assert Extent(10, cut=2, unscored=3, examples=5, left_out=1).describe("words", wrong) == (
        f"2 of 10 words are cut off by the context{so}; 3 of 10 words have no prediction{so}; nothing of 1 of 5 texts is scored"
    )
