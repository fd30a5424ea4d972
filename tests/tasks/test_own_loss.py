"""A loss of one's own in `fit` and in runs, and a reader that ends a training."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import heddle
from heddle.config import RunConfig, TrainConfig
from heddle.config.tasks import ClassificationConfig, ContrastiveConfig
from heddle.data.batch import Batch
from heddle.data.in_memory import InMemoryData, corpus_of
from heddle.errors import HeddleError
from heddle.prove.laws import check_law
from heddle.prove.training import TrainingSubject
from heddle.runs import Trainer
from heddle.tasks import DataSpec, make_task
from heddle.tasks.own_loss import scalar, scored
from heddle.train import Report, StopTraining
from heddle.weights import load
from tests.prove import tasks
from tests.tasks import own_losses
from tests.train.test_fit import BYTES, LABELLED, LETTERS, PAIRS, QUIET, TEXT, decoder, suited

HOME = "tests.tasks.own_losses"


@pytest.mark.parametrize("loss", [own_losses.plain, f"{HOME}:plain"], ids=["function", "name"])
def test_the_tasks_loss_by_hand_trains_alike(loss: Any) -> None:
    models = [decoder(), decoder()]
    builtin, own = (
        heddle.fit(model, BYTES, TEXT, 4, accumulate=2, **QUIET, **more)
        for model, more in zip(models, ({}, {"loss": loss}), strict=True)
    )
    assert own.losses == pytest.approx(builtin.losses, rel=1e-5)
    weights, others = (model.state_dict() for model in models)
    assert all(torch.allclose(weights[name], others[name], atol=1e-4) for name in weights)


def test_another_loss_is_minimised_and_the_tasks_own_is_evaluated() -> None:
    model = suited(ClassificationConfig(), ("a", "b"))
    before = copy.deepcopy(model)
    history = heddle.fit(
        model, LETTERS, LABELLED, 3, "classification", LABELLED[:6], loss=own_losses.focal, batch=24, progress=False
    )
    (batch,) = [next(iter(_batches(before)))]
    scores = before.head(before(batch.tokens, batch.layout).hidden, batch.layout, before.embedding.weight)
    expected = own_losses.focal(scores, batch) / batch.weights.sum()
    assert history.losses[0] == pytest.approx(float(expected.detach()), rel=1e-5)
    assert history.evaluation is not None
    assert "accuracy" in history.evaluation.metrics


def _batches(model: Any) -> list[Any]:
    """The rows of the first step, by the task itself."""
    corpus = corpus_of(InMemoryData(LABELLED, ClassificationConfig(), RunConfig().data), None, LETTERS, ("a", "b"))
    task = make_task(ClassificationConfig(), DataSpec(corpus, model.config, 24, 0, None, LETTERS))
    return [task.batch(task.examples(0))]


def test_vectors_have_a_loss_too() -> None:
    """A contrastive task gives the vectors of each text of its pairs."""
    shapes = []

    def distance(vectors: torch.Tensor, batch: Any) -> torch.Tensor:
        shapes.append(vectors.shape)
        return ((vectors[..., 0, :] - vectors[..., 1, :]).square().sum(-1) * batch.weights).sum()

    heddle.fit(suited(ContrastiveConfig()), LETTERS, PAIRS, 2, ContrastiveConfig(group=4), loss=distance, **QUIET)
    assert all(shape[1:3] == (4, 2) for shape in shapes)


def test_a_run_keeps_the_name_of_its_loss(begin: Callable[..., Path]) -> None:
    run = begin(steps=4, loss=f"{HOME}:focal")
    with pytest.raises(HeddleError, match=r"loss = 'tests.nowhere:focal': ModuleNotFoundError: .* must be importable"):
        Trainer(begin("other", steps=4, loss="tests.nowhere:focal"))
    trainer = Trainer(run)
    first = json.loads(json.dumps(trainer.session.advance().values))["loss"]
    assert trainer.session.eager.own is own_losses.focal
    plain = Trainer(begin("plain", steps=4)).session.advance().values["loss"]
    assert first < plain  # the same surprise, each times less than one
    assert json.loads((run / "config.json").read_text())["train"]["loss"] == f"{HOME}:focal"


@pytest.mark.parametrize(
    ("loss", "more", "line"),
    [
        (
            lambda scores, batch: scores,
            {},
            "returned a tensor of shape .* one number, the sum over the batch's targets",
        ),
        (lambda scores, batch: 3.0, {}, "returned a float; it must return one number"),
        (own_losses.plain, {"label_smoothing": 0.1}, "label_smoothing = 0.1 has no effect with a loss"),
        (f"{HOME}:plain", {"z_loss": 0.1}, "z_loss = 0.1 has no effect with loss"),
        (f"{HOME}:NUMBER", {}, "is an int, and must be a function"),
        ("nothing", {}, "loss"),
    ],
    ids=["scores", "number", "smoothing", "z", "no function", "no name"],
)
def test_what_no_loss_can_be_is_refused(loss: Any, more: dict[str, Any], line: str) -> None:
    with pytest.raises(HeddleError, match=line):
        heddle.fit(decoder(), BYTES, TEXT, 2, loss=loss, **QUIET, **more)


@pytest.mark.parametrize(("name", "same"), [("plain", True), ("mean", False)])
def test_a_proof_notices_a_mean(tmp_path: Path, name: str, same: bool) -> None:
    """The gradient must not depend on how a step is split."""
    made = tasks.training("next token, rotary", tasks.texts(tmp_path))
    own = TrainingSubject(made.make, made.model, 1e-6, made.store, train=TrainConfig(loss=f"{HOME}:{name}"))
    assert check_law("cut of a batch", own).holds == same


class AtStep:
    """A reader that ends the training after a step."""

    def __init__(self, step: int) -> None:
        self.step, self.seen = step, []

    def __call__(self, report: Report) -> None:
        self.seen.append(report.step)
        if report.step == self.step:
            raise StopTraining


def test_a_reader_ends_a_training_in_memory() -> None:
    reader, later = AtStep(3), AtStep(99)
    whole, ended = decoder(), decoder()
    heddle.fit(whole, BYTES, TEXT, 3, schedule="constant", warmup=0, **QUIET)
    history = heddle.fit(
        ended, BYTES, TEXT, 9, schedule="constant", warmup=0, validation=TEXT, readers=[reader, later], **QUIET
    )
    assert later.seen[-1] == 3  # every reader hears of the last step
    assert history.weights is not None
    assert history.weights.steps == (3,)
    assert history.evaluation is not None
    assert all(torch.equal(whole.state_dict()[name], each) for name, each in ended.state_dict().items())


def test_a_reader_ends_a_run_which_is_published_and_can_continue(begin: Callable[..., Path]) -> None:
    run = begin(steps=12, evaluate_every=4)
    trainer = Trainer(run, [AtStep(5)])
    trainer.run()
    assert trainer.session.step == 5
    manifest = json.loads((run / "manifest.json").read_text())
    assert (manifest["step"], manifest["weights"]["steps"]) == (5, [5])
    published = load(run, "cpu").model.state_dict()
    assert all(torch.equal(published[name], each) for name, each in trainer.session.model.state_dict().items())
    again = Trainer(run)
    again.run()
    assert again.session.step == 12


@pytest.mark.parametrize("head", [{"cap": 1.5, "scale": 0.5}, {"bias": True, "tied": False}], ids=str)
def test_scores_are_those_of_prediction_without_entries_that_only_fill_up(head: dict[str, Any]) -> None:
    """Also those of a head with a bound and of a padded vocabulary."""
    config = decoder().config.override({"head": head, "pad_vocab_to": 64})
    model = heddle.build(config, seed=1)
    features = model.head.features(torch.randn(2, 3, config.dim), None)
    actual = scored(model, features)
    assert actual.shape == (2, 3, config.vocab_size)
    assert config.table_rows() > config.vocab_size
    scores = model.head.scoring(model.embedding.weight)
    by_hand = features @ scores.table.T + (0 if scores.bias is None else scores.bias)
    expected = by_hand if scores.cap is None else scores.cap * torch.tanh(by_hand / scores.cap)
    torch.testing.assert_close(actual, expected[..., : config.vocab_size])


def test_a_count_is_no_loss() -> None:
    with pytest.raises(HeddleError, match=r"returned a tensor of shape \[\]; it must return one number"):
        scalar(torch.tensor(3), own_losses.plain)
    assert scalar(torch.tensor(3.0, requires_grad=True), own_losses.plain) == 3


def test_a_loss_without_a_gradient_is_refused_in_one_line() -> None:
    def detached(scores: torch.Tensor, batch: Batch) -> torch.Tensor:
        return own_losses.plain(scores, batch).detach()

    with pytest.raises(HeddleError, match="the loss 'detached' returned a number without a gradient"):
        heddle.fit(decoder(), BYTES, TEXT, 2, loss=detached, **QUIET)
