"""A number for each text: the squared error of torch, Pearson's correlation of numpy, and labels as they are."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from heddle.config import RegressionConfig
from heddle.data.buckets import EMPTY
from heddle.data.corpus import Corpus
from heddle.data.records import Column, Records
from heddle.errors import HeddleError
from heddle.model import build
from heddle.tasks import ExampleIndices, RegressionTask
from heddle.train import evaluate
from tests.tasks.labelled import TOKENIZER, spec_for

CONFIG = RegressionConfig()


def test_the_loss_is_the_mean_squared_error() -> None:
    made = RegressionTask(CONFIG, spec_for(CONFIG, "number"))
    assert (made.spec.model.head.classes, made.spec.model.head.names) == (1, ())
    model = build(made.spec.model).double()
    there = made.spec.records(held_out=False)
    batch = made.batch(ExampleIndices(np.array([3, EMPTY, 8, 9])))
    real = torch.tensor([True, False, True, True])
    assert batch.weights.tolist() == real.float().tolist()
    labels = torch.tensor([there.columns["label"][record][0] for record in (3, 8, 9)])
    torch.testing.assert_close(batch.targets[real], labels.float())
    scores = model.head(model(batch.tokens, batch.layout).hidden, batch.layout, model.embedding.weight)[:, 0]
    expected = F.mse_loss(scores[real], batch.targets[real].double())
    loss = made.objective(model)(batch)
    torch.testing.assert_close(loss.total / loss.count, expected)
    assert torch.equal(loss.plain, loss.total.detach())
    leaves = list(model.parameters())
    pairs = zip(torch.autograd.grad(loss.total / 3, leaves), torch.autograd.grad(expected, leaves), strict=True)
    for ours, reference in pairs:
        torch.testing.assert_close(ours, reference, rtol=0, atol=1e-12)


def test_what_is_reported() -> None:
    made = RegressionTask(CONFIG, spec_for(CONFIG, "number"))
    model = build(made.spec.model, seed=1)
    there = made.spec.records(held_out=True)
    batch = made.batch(ExampleIndices(np.arange(len(there)), held_out=True))
    scores = model.head(model(batch.tokens, batch.layout).hidden, batch.layout, model.embedding.weight)[:, 0]
    predictions, labels = scores.detach().numpy().astype(float), there.columns["label"].values
    scored = evaluate(model, made, rows=6)
    assert scored.loss == pytest.approx(((predictions - labels) ** 2).mean(), rel=1e-4)
    assert scored.metrics["root_mean_squared_error"] == pytest.approx(scored.loss**0.5)
    assert scored.metrics["pearson"] == pytest.approx(np.corrcoef(predictions, labels)[0, 1], abs=1e-4)
    shown = made.sample(model, TOKENIZER, 0, 30)
    assert shown is not None
    assert all(" / " in line for line in shown.splitlines())


def test_the_correlation_of_numbers_far_from_zero_is_numpys() -> None:
    """Labels of 10,000 and a little: moments in fp32 would round the little away."""
    draw = np.random.default_rng(0)
    targets = (10_000 + draw.standard_normal(64)).astype(np.float32)
    predictions = (targets + 0.5 * draw.standard_normal(64)).astype(np.float32)
    made = RegressionTask(CONFIG, spec_for(CONFIG, "number"))
    batch = replace(
        made.batch(ExampleIndices(np.zeros(64, dtype=np.int64))),
        targets=torch.from_numpy(targets),
        weights=torch.ones(64),
    )
    objective: Any = made.objective(build(made.spec.model))
    objective._scores = lambda features: torch.from_numpy(predictions)  # type: ignore[method-assign]
    means = {name: float(each.sum()) / 64 for name, each in objective.counts(torch.empty(64, 8), batch).items()}
    expected = np.corrcoef(predictions.astype(np.float64), targets.astype(np.float64))[0, 1]
    assert made.metrics({**means, "loss": 1.0}, 1.0)["pearson"] == pytest.approx(expected, abs=1e-6)


def test_labels_far_from_a_new_model_are_told_and_wrong_ones_refused() -> None:
    spec = spec_for(CONFIG, "number")
    columns = spec.records(held_out=False).columns

    def labelled(values: list[float]) -> RegressionTask:
        changed = {"text": columns["text"], "label": Column.of([[value] for value in values], np.float64)}
        return RegressionTask(CONFIG, replace(spec, corpus=Corpus(Records(changed))))

    assert labelled([0.0, 1.0] * 24).remarks() == []
    (remark,) = labelled([1000.0, 3000.0] * 24).remarks()
    assert remark.startswith("labels have mean 2e+03 and standard deviation 1e+03: if you can, rescale them")
    with pytest.raises(HeddleError, match="the label of record 1 is nan, not a finite number"):
        labelled([0.0, float("nan")] * 24)
    made = labelled([-100.0] * 48)  # the number that elsewhere means no target
    assert made.batch(ExampleIndices(np.arange(2))).weights.tolist() == [1.0, 1.0]
    for terms in ({"label_smoothing": 0.1}, {"z_loss": 1e-4}):
        with pytest.raises(HeddleError, match="have no effect on the task 'regression'"):
            made.objective(build(spec.model), **terms)
    with pytest.raises(HeddleError, match="needs a classifier with classes = 1"):
        made.objective(build(spec.model.override({"head.classes": 2})))
