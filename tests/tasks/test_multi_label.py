"""Several labels for each text: torch's binary cross-entropy, scikit-learn's scores, and what is refused."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score
from torch.nn import functional as F

import heddle
from heddle.config import ClassificationConfig, MultiLabelConfig, RunConfig, TransformerConfig
from heddle.data.buckets import EMPTY
from heddle.data.records import Column
from heddle.errors import HeddleError
from heddle.model import build
from heddle.model.transformer import Transformer
from heddle.tasks import ExampleIndices, MultiLabelTask
from heddle.tasks.metrics import label_counts, label_metrics
from heddle.train import evaluate
from tests.tasks.labelled import TOKENIZER, spec_for

CONFIG = MultiLabelConfig()
WARM = {"warm": 2.0}


def task(config: MultiLabelConfig = CONFIG, **head: float) -> MultiLabelTask:
    made = spec_for(config, "labels", head=head) if head else spec_for(config, "labels")
    return MultiLabelTask(config, made)


def scores_of(model: Transformer, made: MultiLabelTask, batch: heddle.data.Batch) -> torch.Tensor:
    assert model.head is not None
    return model.head(model(batch.tokens, batch.layout).hidden, batch.layout, model.embedding.weight)


@pytest.mark.parametrize("weights", [None, (3.0, 0.25), WARM, "balanced"])
def test_the_loss_is_the_mean_binary_cross_entropy(weights: Any) -> None:
    """With weights for having a label, which change what is minimised and not what is reported, as torch's `pos_weight`."""
    made = task(MultiLabelConfig(label_weights=weights))
    model = build(made.spec.model, seed=3).double()
    records = made.spec.records(held_out=False)
    batch = made.batch(ExampleIndices(np.array([3, EMPTY, 8, 9, 11])))
    real = torch.tensor([True, False, True, True, True])
    assert torch.equal(batch.weights, real.float())
    labels = torch.zeros(4, 2)
    for row, record in enumerate((3, 8, 9, 11)):
        labels[row, records.columns["label"][record]] = 1
    assert torch.equal(batch.targets[real], labels)
    assert 0 < labels.mean() < 1
    there = np.bincount(records.columns["label"].values, minlength=2)
    known = {str(None): (1.0, 1.0), str(WARM): (1.0, 2.0), "balanced": tuple((len(records) - there) / there)}
    having = torch.tensor(known.get(str(weights), weights), dtype=torch.float32)
    scores = scores_of(model, made, batch)[real]
    plain = F.binary_cross_entropy_with_logits(scores, labels.double())
    expected = F.binary_cross_entropy_with_logits(scores, labels.double(), pos_weight=having.double())
    loss = made.objective(model)(batch)
    torch.testing.assert_close(loss.total / loss.count, expected)
    torch.testing.assert_close(loss.plain / loss.count, plain)
    leaves = list(model.parameters())
    pairs = zip(torch.autograd.grad(loss.total / 4, leaves), torch.autograd.grad(expected, leaves), strict=True)
    for ours, reference in pairs:
        torch.testing.assert_close(ours, reference, rtol=0, atol=1e-12)


@pytest.mark.parametrize("threshold", [0.5, 0.47, 0.9])
def test_what_is_reported_is_what_scikit_learn_computes(threshold: float) -> None:
    made = task(threshold=threshold)
    model = build(made.spec.model, seed=1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3)
    there = made.spec.records(held_out=True)
    batch = made.batch(ExampleIndices(np.arange(len(there)), held_out=True))
    shares = scores_of(model, made, batch).sigmoid().detach().numpy()
    chosen, right = shares > threshold, batch.targets.numpy() > 0
    scored = evaluate(model, made, rows=6)
    expected = {
        "micro_f1": f1_score(right, chosen, average="micro", zero_division=0),
        "macro_f1": f1_score(right, chosen, average="macro", zero_division=0),
        "subset_accuracy": accuracy_score(right, chosen),
    }
    assert dict(scored.metrics) == pytest.approx(expected, abs=1e-6)
    assert (scored.tokens, scored.share) == (len(there), 1.0)
    shown = made.sample(model, TOKENIZER, 0, 30)
    assert shown is not None
    assert all(line.startswith("[") for line in shown.splitlines())


@pytest.mark.parametrize("seed", range(4))
def test_scores_of_random_labels_are_those_of_scikit_learn(seed: int) -> None:
    """Also of labels that no text has and none is predicted to have, and of texts without any."""
    draw = np.random.default_rng(seed)
    right, chosen = draw.random((2, 30, 5)) < np.array([0.5, 0.1, 0.9, 0.0, 0.3 * (seed % 2)])
    counts = label_counts(torch.from_numpy(chosen), torch.from_numpy(right).float())
    metrics = label_metrics({name: float(each.mean()) for name, each in counts.items()}, 5)
    assert metrics["micro_f1"] == pytest.approx(f1_score(right, chosen, average="micro", zero_division=0))
    assert metrics["macro_f1"] == pytest.approx(f1_score(right, chosen, average="macro", zero_division=0))
    assert metrics["subset_accuracy"] == pytest.approx(accuracy_score(right, chosen))
    nothing = label_metrics(dict.fromkeys(counts, 0.0), 5)
    assert (nothing["micro_f1"], nothing["macro_f1"]) == (0.0, 0.0)


def test_a_label_that_nobody_learned_is_missed() -> None:
    """For scikit-learn: one more label, which is never predicted; F1 averaged over labels is of those that were learned."""
    draw = np.random.default_rng(0)
    right, chosen = draw.random((2, 30, 3)) < 0.4
    strange = draw.integers(0, 3, 30)
    targets = torch.from_numpy(np.concatenate([right, strange[:, None]], axis=1)).float()
    metrics = label_metrics(
        {name: float(each.mean()) for name, each in label_counts(torch.from_numpy(chosen), targets).items()}, 3
    )
    more = np.stack([strange > 0, strange > 1], axis=1)  # up to two of them in a text
    every, none = np.concatenate([right, more], axis=1), np.concatenate([chosen, np.zeros_like(more)], axis=1)
    assert metrics["micro_f1"] == pytest.approx(f1_score(every, none, average="micro"))
    assert metrics["macro_f1"] == pytest.approx(f1_score(right, chosen, average="macro"))
    assert metrics["subset_accuracy"] == pytest.approx(accuracy_score(every, none))
    assert metrics["subset_accuracy"] < accuracy_score(right, chosen)


DATA = [
    ("the warp", ["thread", "long"]),
    ("the weft", ["thread"]),
    ("is held", []),
    ("the warp is", ["long", "thread"]),
    ("weft over", ("thread",)),
] * 8


def test_fit_learns_labels_that_do_not_exclude_each_other() -> None:
    tokenizer = heddle.tokenizer_for(CONFIG, DATA, "words")
    model = heddle.model_for(CONFIG, tokenizer, DATA, depth=1, dim=32, head={"threshold": 0.4})
    assert (model.config.head.names, model.config.head.threshold) == (("long", "thread"), 0.4)  # type: ignore[union-attr]
    history = heddle.fit(model, tokenizer, DATA, 60, task=CONFIG, validation=DATA, learning_rate=1e-2, progress=False)
    assert history.evaluation is not None
    assert history.evaluation.metrics["subset_accuracy"] == 1.0
    predictions = heddle.classify(model, tokenizer, [text for text, _ in DATA[:5]])
    assert [set(each.labels) for each in predictions] == [set(labels) for _, labels in DATA[:5]]  # type: ignore[union-attr]


def test_a_classifier_of_one_answer_and_one_of_several_are_not_taken_for_each_other() -> None:
    made = task()
    one = build(made.spec.model.override({"head.several": False}))
    with pytest.raises(HeddleError, match="'multi_label_classification' needs a classifier with several = true"):
        made.objective(one)
    for terms in ({"label_smoothing": 0.1}, {"z_loss": 1e-4}):
        with pytest.raises(HeddleError, match="have no effect on the task 'multi_label_classification'"):
            made.objective(build(made.spec.model), **terms)
    before = {**made.spec.model.to_dict()["head"], "threshold": 0.3, "dense": True}
    back = ClassificationConfig().head_table(before, "encoder", ("a", "b"))
    assert ("several" in back, "threshold" in back, back["dense"]) == (False, False, True)
    assert CONFIG.head_table(before, "encoder", ("a", "b"))["threshold"] == 0.3
    for head, message in (
        ({"threshold": 0.3, "several": False}, "has no effect"),
        ({"pooling": "none"}, "a token has one"),
    ):
        with pytest.raises(HeddleError, match=message):
            TransformerConfig.of({**made.spec.model.to_dict(), "head": {**before, **head}})
    with pytest.raises(HeddleError, match=r"label_weights: 'hott' is not one of the classes cold, warm"):
        task(MultiLabelConfig(label_weights={"hott": 2.0}))
    with pytest.raises(HeddleError, match=r"separator = '\\|' has no effect with task.kind = 'classification'"):
        RunConfig.of({"task": "classification", "data": {"separator": "|"}})
    with pytest.raises(HeddleError, match=r"unlabelled = - has no effect with task.kind = 'translation'"):
        RunConfig.of({"task": "translation", "data": {"unlabelled": "-"}})


def test_a_label_that_every_text_has_is_weighed_as_if_one_had_not() -> None:
    """And one that none has, as if one had: no weight is 0 or infinite."""
    made = task()
    labels = Column.of([[0], [0], [0, 1], [0]])
    assert made.balanced(labels).tolist() == [1 / 4, 3 / 1]
    assert made.balanced(Column.of([[0], [], []])).tolist() == [2 / 1, 3 / 1]


def test_shown_labels_are_those_above_the_threshold() -> None:
    made = task(threshold=0.9)
    records = made.spec.records(held_out=False)
    right = made._listed(records.columns["label"][0].tolist())
    shown = made.format_prediction(records, 0, torch.tensor([2.0, 3.0]), TOKENIZER, 30)
    label = "warm"  # sigmoid(2) = 0.88, sigmoid(3) = 0.95
    assert shown.startswith(f"[{label}]" if label == right else f"[{label} / {right}]")
