"""Words with a class: which ids are targets, what spans are, and what is reported."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from heddle.config import TokenClassificationConfig
from heddle.data.batch import IGNORED
from heddle.data.buckets import EMPTY
from heddle.data.corpus import Corpus
from heddle.data.records import Column, Records
from heddle.errors import HeddleError
from heddle.model import build
from heddle.tasks import DataSpec, ExampleIndices, TokenClassificationTask
from heddle.tasks.metrics import are_spans, span_f1, spans
from heddle.train import evaluate
from tests.tasks.labelled import CLS, SEP, TOKENIZER, model_for, spec_for

CONFIG = TokenClassificationConfig()
TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")


def test_targets_are_the_first_ids_of_words() -> None:
    """The pieces of a word after its first, the marks, and what is cut off have no target."""
    labels = [[1, IGNORED, IGNORED, 0], [2, 0, IGNORED, 1, 0, 2, 1]]
    texts = [[3, 4, 5, 6], [1, 2, 3, 4, 5, 6, 7]]
    there = Records({"text": Column.of(texts), "label": Column.of(labels)}, ("O", "B-A", "I-A"))
    corpus = Corpus(there)
    made = TokenClassificationTask(
        CONFIG, DataSpec(corpus, model_for(CONFIG, corpus, context=7), 2, tokenizer=TOKENIZER)
    )
    batch = made.batch(ExampleIndices(np.array([0, EMPTY, 1])))
    assert batch.tokens.tolist() == [[CLS, 3, 4, 5, 6, SEP, 0], [0] * 7, [CLS, 1, 2, 3, 4, 5, SEP]]
    none = IGNORED
    assert batch.targets.tolist() == [
        [none, 1, none, none, 0, none, none],
        [none] * 7,
        [none, 2, 0, none, 1, 0, none],
    ]
    assert torch.equal(batch.weights, (batch.targets != IGNORED).float())
    assert made.targets(there).tolist() == [2, 4]
    wrong = Corpus(Records({"text": Column.of([[1, 2]]), "label": Column.of([[1]])}, ("O", "B-A")))
    with pytest.raises(HeddleError, match="record 0 has 1 labels for 2 ids"):
        TokenClassificationTask(CONFIG, DataSpec(wrong, model_for(CONFIG, wrong), tokenizer=TOKENIZER))


# By the rules of CoNLL's evaluation, worked out by hand.
CASES: dict[str, set[tuple[int, int, str]]] = {
    "O O": set(),
    "B-PER I-PER O B-LOC": {(0, 2, "PER"), (3, 4, "LOC")},
    "B-PER B-PER I-PER": {(0, 1, "PER"), (1, 3, "PER")},
    "I-PER I-PER O I-LOC": {(0, 2, "PER"), (3, 4, "LOC")},
    "B-PER I-LOC I-LOC": {(0, 1, "PER"), (1, 3, "LOC")},
    "O I-PER B-PER I-PER I-LOC": {(1, 2, "PER"), (2, 4, "PER"), (4, 5, "LOC")},
    "": set(),
}


@pytest.mark.parametrize("tags", CASES)
def test_spans(tags: str) -> None:
    assert spans(tags.split()) == CASES[tags]


# How each scheme writes a word inside a span, one that ends it, and a span of one word.
SCHEMES = {"IOB2": "IIB", "IOBES": "IES", "BILOU": "ILU", "BMES": "MES", "BMEWO": "MEW"}


def written(there: list[tuple[int, int, str]], length: int, scheme: str) -> list[str]:
    """Spans as tags, by the definition of the scheme."""
    inside, last, single = SCHEMES[scheme]
    tags = ["O"] * length
    for start, stop, kind in there:
        marks = [single] if stop - start == 1 else ["B", *[inside] * (stop - start - 2), last]
        tags[start:stop] = [f"{mark}-{kind}" for mark in marks]
    return tags


@pytest.mark.parametrize("scheme", SCHEMES)
def test_spans_of_every_scheme_come_back(scheme: str) -> None:
    """Beside each other, of one word and of several, of the same type and of others."""
    draw = np.random.default_rng(0)
    for _ in range(200):
        there, place = [], 0
        while place < 20:
            stop = int(min(20, place + draw.integers(1, 5)))
            if draw.random() < 0.6:
                there.append((place, stop, ["PER", "LOC"][draw.integers(2)]))
            place = stop
        tags = written(there, 20, scheme)
        assert spans(tags) == set(there)
        assert are_spans(sorted({"B-PER", "O", *tags}))


def test_tags_that_no_scheme_allows_begin_and_end_where_they_must() -> None:
    """As CoNLL's evaluation has it: E after E, I after S, another type, an end without a beginning."""
    assert spans(["E-A", "E-A", "I-A", "S-A", "I-A", "E-B"]) == {
        (0, 1, "A"), (1, 2, "A"), (2, 3, "A"), (3, 4, "A"), (4, 5, "A"), (5, 6, "B"),
    }  # fmt: skip
    assert spans(["B", "I", "O", "B", "B"]) == {(0, 2, ""), (3, 4, ""), (4, 5, "")}


def test_only_names_of_spans_are_spans() -> None:
    assert are_spans(TAGS)
    assert are_spans(("O", "B", "I"))
    assert are_spans(("B_PER", "I_PER", "O"))
    assert not are_spans(("B-PER", "L-PER", "E-PER", "O"))
    assert not are_spans(("B", "I"))
    assert not are_spans(("NOUN", "VERB", "O"))
    assert not are_spans(("O",))
    assert span_f1({"spans correct": 0.0, "spans predicted": 0.0, "spans actual": 0.0}) == 0.0


def test_evaluation_counts_words_and_spans() -> None:
    """Against all rows at once: torch's loss, the share of right words, and F1 = 2 · precision · recall / their sum."""
    made = TokenClassificationTask(CONFIG, spec_for(CONFIG, "tags"))
    model = build(made.spec.model, seed=3)
    there = made.spec.records(held_out=True)
    batch = made.batch(ExampleIndices(np.arange(len(there)), held_out=True))
    scores = model.head(model(batch.tokens, batch.layout).hidden, batch.layout, model.embedding.weight)
    scored = evaluate(model, made, rows=6)
    chosen = batch.targets != IGNORED
    assert scored.tokens == chosen.sum() == len(there.columns["label"].values)
    assert scored.loss == pytest.approx(F.cross_entropy(scores[chosen], batch.targets[chosen]).item(), abs=1e-5)
    best = scores.argmax(-1)
    right = (best == batch.targets)[chosen].float().mean().item()
    assert scored.metrics["accuracy"] == pytest.approx(right)
    hits = predicted = gold_count = 0
    for row in range(len(there)):
        own_spans = spans([made.names[tag] for tag in best[row][chosen[row]]])
        gold = spans([made.names[tag] for tag in batch.targets[row][chosen[row]]])
        hits, predicted, gold_count = hits + len(own_spans & gold), predicted + len(own_spans), gold_count + len(gold)
    precision, recall = hits / max(predicted, 1), hits / gold_count
    expected = 2 * precision * recall / (precision + recall) if hits else 0.0
    assert scored.metrics["span_f1"] == pytest.approx(expected)
    assert set(scored.metrics) == {"accuracy", "span_f1"}
    shown = made.sample(model, TOKENIZER, 0, 30)
    assert shown is not None
    assert "[" in shown
    assert len(shown.splitlines()) == 3


def test_a_head_with_one_score_per_text_is_refused() -> None:
    made = TokenClassificationTask(CONFIG, spec_for(CONFIG, "tags"))
    assert made.spec.model.head.pooling == "none"
    pooled: Any = made.spec.model.override({"head.pooling": "first"})
    with pytest.raises(HeddleError, match=r"needs head.pooling = 'none', not head.pooling = 'first'"):
        made.objective(build(pooled))
