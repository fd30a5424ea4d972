"""Texts and pairs of texts with a class: their rows, the weights of classes, what is reported, and what is refused."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
from torch.nn import functional as F

from heddle.config import ClassificationConfig, ModelChoice, RunConfig, TransformerConfig, preset
from heddle.data.batch import IGNORED
from heddle.data.buckets import EMPTY
from heddle.data.corpus import Corpus
from heddle.data.records import Column, Records
from heddle.errors import HeddleError
from heddle.model import build
from heddle.tasks import ClassificationTask, DataSpec, ExampleIndices
from heddle.tasks.metrics import class_counts, class_metrics
from heddle.tasks.rows.framing import Frame
from heddle.text import train_tokenizer
from heddle.train import evaluate
from tests.tasks.labelled import CLS, NAMES, SEP, TOKENIZER, model_for, records, spec_for

CONFIG = ClassificationConfig()


def task(config: ClassificationConfig = CONFIG, **more: Any) -> ClassificationTask:
    return ClassificationTask(config, spec_for(config, "class", **more))


def test_a_row_is_a_text_between_its_marks() -> None:
    made = task()
    there = made.spec.records(held_out=False)
    batch = made.batch(ExampleIndices(np.array([3, EMPTY, 5])))
    for row, record in ((0, 3), (2, 5)):
        ids = [CLS, *there.columns["text"][record].tolist(), SEP]
        assert batch.tokens[row, batch.layout.real[row]].tolist() == ids
        assert batch.targets[row] == there.columns["label"][record][0]
    assert not batch.layout.real[1].any()
    assert (batch.targets[1], batch.weights.tolist()) == (IGNORED, [1, 0, 1])
    assert batch.types is None
    assert made.lengths(there).tolist() == [length + 2 for length in there.columns["text"].lengths]


def test_a_pair_has_types_where_the_model_has() -> None:
    made = task(pairs=True, encoder={"entry": {"types": 2}}, context=32)
    there = made.spec.records(held_out=False)
    batch = made.batch(ExampleIndices(np.array([4, 9])))
    assert batch.types is not None
    for row, record in enumerate((4, 9)):
        text, pair = (there.columns[name][record].tolist() for name in ("text", "pair"))
        real = batch.layout.real[row]
        assert batch.tokens[row, real].tolist() == [CLS, *text, SEP, *pair, SEP]
        assert batch.types[row, real].tolist() == [0] * (len(text) + 2) + [1] * (len(pair) + 1)
    assert task(pairs=True, context=32).batch(ExampleIndices(np.array([4]))).types is None


@pytest.mark.parametrize(
    ("lengths", "remaining"),
    [((3, 4), (3, 4)), ((20, 2), (6, 2)), ((2, 20), (2, 6)), ((9, 20), (4, 4)), ((0, 20), (0, 8))],
)
def test_the_longer_text_of_a_pair_loses_its_end(lengths: tuple[int, int], remaining: tuple[int, int]) -> None:
    frame = Frame(context=11, begin=(90,), between=(91,), end=(91,))
    assert frame.cropped_lengths(*lengths) == remaining
    there = Records({name: Column.of([range(length)]) for name, length in zip(("text", "pair"), lengths, strict=True)})
    row, first = frame.row(there, 0)
    assert row == [90, *range(remaining[0]), 91, *range(remaining[1]), 91]
    assert first == remaining[0] + 2


def test_long_texts_are_cropped_and_told() -> None:
    made = task(context=6)
    there = made.spec.records(held_out=False)
    long = there.columns["text"].lengths > 4
    assert made.remarks() == [
        f"{long.mean():.1%} of the training texts are longer than context = 6: they lose their ends"
    ]
    assert task().remarks() == []
    batch = made.batch(ExampleIndices(np.flatnonzero(long)))
    assert batch.tokens.shape[1] == made.lengths(there).max() == 6
    assert (batch.tokens[:, -1] == SEP).all()


def test_other_tokenizers_have_other_marks() -> None:
    """The end of a text marks both where there is nothing else; without any, a pair cannot be read."""
    plain = {"text": Column.of([[1, 2]]), "pair": Column.of([[3]]), "label": Column.of([[0]])}
    model = TransformerConfig.of(
        {
            "vocab_size": 300, "dim": 8, "context": 8, "encoder": {"depth": 1, "block": {"mixer": {"heads": 1}}},
            "head": {"kind": "classifier", "classes": 2},
        }
    )  # fmt: skip
    for special, row in (
        (("<|endoftext|>",), [1, 2, 256, 3, 256]),
        (("<s>", "</s>"), [256, 1, 2, 257, 3, 257]),
    ):
        tokenizer = train_tokenizer("bytes", [], special=special)
        made = ClassificationTask(CONFIG, DataSpec(Corpus(Records(plain)), model, tokenizer=tokenizer))
        assert made.batch(ExampleIndices(np.array([0]))).tokens[0].tolist() == row
    tokenizer = train_tokenizer("bytes", [], special=())
    with pytest.raises(HeddleError, match="need a token between them: add \\[SEP\\]"):
        ClassificationTask(CONFIG, DataSpec(Corpus(Records(plain)), model, tokenizer=tokenizer))
    imported = model.override({"ids": {"begin": 5, "end": 6}})
    made = ClassificationTask(CONFIG, DataSpec(Corpus(Records(plain)), imported))
    assert made.batch(ExampleIndices(np.array([0]))).tokens[0].tolist() == [5, 1, 2, 6, 3, 6]
    with pytest.raises(HeddleError, match="context = 4 has no room for 3 special tokens and a text: set context=5"):
        ClassificationTask(CONFIG, DataSpec(Corpus(Records(plain)), imported, context=4))


@pytest.mark.parametrize("weights", ["balanced", {"hot": 3.0}, (0.5, 1.0, 2.0)])
def test_class_weights_are_torchs(weights: Any) -> None:
    """The mean over the batch is torch's weighted mean; evaluation weighs nothing."""
    made = task(ClassificationConfig(class_weights=weights))
    labels = made.spec.records(held_out=False).columns["label"].values
    counts = np.bincount(labels, minlength=3)
    weight = {"balanced": 48 / (3 * counts)}.get(str(weights)) if weights == "balanced" else None
    weight = np.array([1, 1, 3]) if isinstance(weights, dict) else np.array(weights) if weight is None else weight
    model = build(made.spec.model)
    batch = made.batch(ExampleIndices(np.arange(12)))
    loss = made.objective(model)(batch)
    scores = model.head(model(batch.tokens, batch.layout).hidden, batch.layout, model.embedding.weight)
    expected = F.cross_entropy(scores, batch.targets, weight=torch.tensor(weight).float())
    torch.testing.assert_close(loss.total / loss.count, expected)
    assert made.batch(ExampleIndices(np.arange(4), held_out=True)).weights.tolist() == [1.0] * 4


def test_what_is_counted_gives_the_measures_of_scikit_learn() -> None:
    """Of random predictions, of several targets per row and of targets without weight; some classes never occur."""
    for seed in range(12):
        draw = np.random.default_rng(seed)
        classes = 2 + seed % 4
        predicted, right = draw.integers(0, classes, (2, 20, 3))
        right = np.where(draw.random((20, 3)) < 0.4, predicted, right)
        predicted[predicted == 3], right[right >= 2] = 2, 1  # one class never occurs, and others are only predicted
        weights = (draw.random((20, 3)) < 0.8).astype(np.float32)
        sums = class_counts(torch.tensor(predicted), torch.tensor(right), torch.tensor(weights), classes)
        means = {name: each.sum().item() / float(weights.sum()) for name, each in sums.items()}
        got, pair = class_metrics(means, classes), (right[weights > 0], predicted[weights > 0])
        assert got["accuracy"] == pytest.approx(accuracy_score(*pair))
        assert got["accuracy"] == pytest.approx(f1_score(*pair, average="micro"))
        assert got["macro_f1"] == pytest.approx(f1_score(*pair, average="macro"))
        assert got["matthews"] == pytest.approx(matthews_corrcoef(*pair))
        assert ("f1" in got) == (classes == 2)
        if classes == 2:
            assert got["f1"] == pytest.approx(f1_score(*pair, average="binary"))
    means = {
        "correct 0": 1.0,
        "predicted 0": 1.0,
        "actual 0": 1.0,
        "correct 1": 0.0,
        "predicted 1": 0.0,
        "actual 1": 0.0,
    }
    assert class_metrics(means, 2) == {"accuracy": 1.0, "macro_f1": 1.0, "f1": 0.0, "matthews": 0.0}


def test_evaluation_counts_what_the_model_predicts() -> None:
    made = task()
    model = build(made.spec.model)
    there = made.spec.records(held_out=True)
    batch = made.batch(ExampleIndices(np.arange(len(there)), held_out=True))
    scores = model.head(model(batch.tokens, batch.layout).hidden, batch.layout, model.embedding.weight)
    scored = evaluate(model, made, rows=6)
    assert scored.loss == pytest.approx(F.cross_entropy(scores, batch.targets).item(), abs=1e-5)
    assert scored.metrics["accuracy"] == pytest.approx((scores.argmax(-1) == batch.targets).float().mean().item())
    assert scored.tokens == 20
    shown = made.sample(model, TOKENIZER, 0, 12)
    assert shown is not None
    assert len(shown.splitlines()) == 3
    assert all(line.startswith("[") and line.split("]")[0][1:].split(" / ")[0] in NAMES for line in shown.splitlines())


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_the_head_follows_the_data_and_the_stack(stack: str) -> None:
    corpus = Corpus(records("class"))
    head = model_for(CONFIG, corpus, stack).head
    assert (head.kind, head.classes, head.names) == ("classifier", 3, NAMES)
    assert head.pooling == {"encoder": "first", "decoder": "last"}[stack]
    assert model_for(CONFIG, corpus, stack, head={"pooling": "max"}).head.pooling == "max"
    before = ModelChoice(preset="laptop-encoder").resolve(99, 1, 16, CONFIG)  # nothing was read yet
    assert (preset("laptop-encoder").head.kind, before.head.kind, before.head.classes) == ("embedding", "classifier", 2)


def test_what_does_not_fit_is_refused() -> None:
    spec = spec_for(CONFIG, "class")
    model = spec.model
    with pytest.raises(HeddleError, match=r"the records have the classes cold, warm, hot, but the model has 2 of them"):
        ClassificationTask(CONFIG, replace(spec, model=model.override({"head.classes": 2, "head.names": ()})))
    other = model.override({"head.names": ("cold", "warm", "mild")})
    with pytest.raises(HeddleError, match=r"but the model has cold, warm, mild"):
        ClassificationTask(CONFIG, replace(spec, model=other))
    for labels, message in (
        ([[0], [3]], "a label is 3, but the classes are 0 to 2"),
        ([[0], [1, 2]], "record 1 has 2 labels, but a text needs exactly one"),
    ):
        wrong = Records({"text": Column.of([[1], [1]]), "label": Column.of(labels)}, NAMES)
        with pytest.raises(HeddleError, match=message):
            ClassificationTask(CONFIG, replace(spec, corpus=Corpus(wrong)))
    with pytest.raises(HeddleError, match=r"'hott' is not one of the classes cold, warm, hot. Did you mean 'hot'"):
        ClassificationTask(ClassificationConfig(class_weights={"hott": 2.0}), spec)
    with pytest.raises(HeddleError, match="class_weights has 2 numbers, but there are 3 classes"):
        ClassificationTask(ClassificationConfig(class_weights=(1.0, 2.0)), spec)
    made = ClassificationTask(CONFIG, spec)
    for head, message in (
        ({"kind": "language"}, "needs a classifier with 3 classes"),
        ({"kind": "classifier", "classes": 4}, "needs a classifier with 3 classes"),
        ({"kind": "classifier", "classes": 3, "pooling": "none"}, "needs a pooling other than 'none'"),
    ):
        with pytest.raises(HeddleError, match=message):
            made.objective(build(TransformerConfig.of({**model.to_dict(), "head": head})))
    with pytest.raises(HeddleError, match="must be 3 different names"):
        model.override({"head.names": ("a", "b")})
    with pytest.raises(HeddleError, match=r"label_smoothing = 0.1 has no effect with task.kind = 'regression'"):
        RunConfig.of({"task": "regression", "train": {"label_smoothing": 0.1}})
