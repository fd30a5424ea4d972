"""Which weights a run publishes: a moving average, the mean of checkpoints, or the best; and when it stops early."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from heddle.account import training_bytes
from heddle.config import RunConfig, TrainConfig, sized
from heddle.errors import HeddleError
from heddle.model import build
from heddle.runs import Trainer, extend, prepare
from heddle.train import MovingAverage, Report
from heddle.train.evaluate import evaluate
from heddle.train.step import train_step
from heddle.weights import load, read_state
from heddle.weights.checkpoints import checkpoints
from heddle.weights.tensors import read_tensors
from tests import refusing
from tests.running import Begin
from tests.runs.test_resume import train, written

Tensors = dict[str, np.ndarray]


def numbers(tensors: dict[str, Tensor]) -> Tensors:
    return {name: each.detach().double().numpy().copy() for name, each in tensors.items()}


def following(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> list[Tensors]:
    """The masters before training and after each step, in fp64."""
    masters = trainer.session.optimizer.masters
    recorded = [numbers(masters)]

    def stepped(*args: Any, **named: Any) -> tuple[float, float]:
        result = train_step(*args, **named)
        recorded.append(numbers(masters))
        return result

    monkeypatch.setattr("heddle.train.training.train_step", stepped)
    return recorded


def manifest(run: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((run / "manifest.json").read_text())
    return data


def steps_of(run: Path) -> list[int]:
    return [step for step, _ in checkpoints(run)]


def close(actual: dict[str, Tensor], expected: Tensors, within: float = 1e-6) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name].double().numpy(), value, rtol=0, atol=within, err_msg=name)


# The moving average


def test_a_moving_average_is_torchs() -> None:
    """Against torch's AveragedModel, where the decay is constant from the first step: 0.15 is less than 2 / 11."""
    model = torch.nn.Linear(3, 2)
    ours = MovingAverage(dict(model.named_parameters()), 0.15)
    witness = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.15))
    witness.update_parameters(model)  # the first call copies
    for step in range(1, 6):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        ours.update(step)
        witness.update_parameters(model)
    for name, value in witness.module.named_parameters():
        torch.testing.assert_close(ours.average[name], value.detach(), rtol=0, atol=1e-6)


def test_a_run_evaluates_and_publishes_its_average(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand in fp64, from the weights after each step; training itself does not notice."""
    settings: dict[str, Any] = {"steps": 6, "evaluate_every": 3, "model": {"dropout": 0.2}}
    run, plain = begin("average", ema=0.4, **settings), begin("plain", **settings)
    trainer = Trainer(run)
    path = following(trainer, monkeypatch)
    trainer.run()
    expected = path[0]
    for step, weights in enumerate(path[1:], 1):
        keep = min(0.4, (1 + step) / (10 + step))
        expected = {name: keep * expected[name] + (1 - keep) * value for name, value in weights.items()}
    close(read_tensors(run / "model.safetensors"), expected)
    close(read_tensors(run / "checkpoints/step-6/model.safetensors"), expected)
    assert manifest(run)["weights"] == {"kind": "last", "steps": [6], "ema": 0.4, "loss": None}
    assert trainer.published is not None
    assert str(trainer.published) == "the moving average (ema = 0.4) of the weights of step 6"
    score = evaluate(load(run, "cpu").model, trainer.session.task)
    assert score.loss == pytest.approx(manifest(run)["evaluation"]["loss"], abs=1e-6)
    monkeypatch.undo()
    Trainer(plain).run()
    lines = [[json.loads(line) for line in (each / "metrics.jsonl").read_text().splitlines()] for each in (run, plain)]
    losses, scores = (
        [[row[key] for row in rows if key in row] for rows in lines] for key in ("loss", "validation_loss")
    )
    assert losses[0] == losses[1]
    assert all(a != b for a, b in zip(*scores, strict=True))
    masters = {key: each for key, each in read_state(run / "checkpoints/step-6").optimizer.items() if "master/" in key}
    last = read_tensors(plain / "model.safetensors")
    assert all(torch.equal(each, last[key.removeprefix("master/")]) for key, each in masters.items())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_stopped_average_ends_alike(begin: Begin, tmp_path: Path, precision: str) -> None:
    rows = [{"parameters": "embedding.weight", "frozen": True}]
    run = begin(steps=7, evaluate_every=3, ema=0.5, precision=precision, groups=rows, optimizer="adamw")
    stopped = shutil.copytree(run, tmp_path / "stopped")
    train(run)
    train(stopped, 2, 5)
    assert written(stopped) == written(run)


def test_an_average_needs_memory() -> None:
    config = sized(1, vocab_size=41, context=8, dim=16)
    whole = sum(each.numel() * 4 for each in build(config).parameters())
    without, with_ = (training_bytes(config, 2, "bf16", TrainConfig(ema=ema)) for ema in (None, 0.9))
    assert with_ - without == whole


# The mean of checkpoints


def test_the_mean_of_the_last_checkpoints(begin: Begin, tmp_path: Path) -> None:
    """By numpy in fp64; of those that are planned, however often the run was stopped in between."""
    run = begin(steps=9, save_every=2, evaluate_every=9, average=3, keep=1)
    stopped = shutil.copytree(run, tmp_path / "stopped")
    train(run)
    train(stopped, 7)
    assert written(stopped) == written(run)
    assert steps_of(run) == [9, 8, 6]
    files = [numbers(read_tensors(path / "model.safetensors")) for _, path in checkpoints(run)]
    close(read_tensors(run / "model.safetensors"), {n: np.mean([each[n] for each in files], axis=0) for n in files[0]})
    assert manifest(run)["weights"]["steps"] == [6, 8, 9]
    assert manifest(run)["step"] == 9
    model = load(run, "cpu").model
    task = Trainer(run).session.task
    assert evaluate(model, task).loss == pytest.approx(manifest(run)["evaluation"]["loss"], abs=1e-6)


def test_a_mean_needs_its_checkpoints(begin: Begin) -> None:
    run = begin(steps=6, save_every=2, evaluate_every=6, average=3)
    Trainer(run).run()
    assert steps_of(run) == [6, 4, 2]
    with pytest.raises(HeddleError, match=r"average = 3 needs the checkpoint of step 3, which is not in "):
        extend(run, {"steps": 7, "save_every": 3})
    assert extend(run, {"steps": 8}) == ["steps: 6 -> 8"]
    Trainer(run).run()
    assert manifest(run)["weights"]["steps"] == [4, 6, 8]
    assert extend(run, {"steps": 10}) == ["steps: 8 -> 10"]
    shutil.rmtree(run / "checkpoints/step-6")
    with pytest.raises(HeddleError, match=r"step-6/manifest\.json: .*cannot be used"):
        Trainer(run).run()


# The best, and stopping early


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[int, float]], None]:
    """Evaluations that find given losses, by step, and score nothing."""

    def script(losses: dict[int, float]) -> None:
        def score(trainer: Trainer) -> Report:
            step = trainer.session.step
            return Report(step, trainer.session.run.chosen.steps, {"validation_loss": losses[step]}, {})

        monkeypatch.setattr(Trainer, "_score", score)

    return script


LOSSES = {2: 5.0, 4: 4.0, 6: 4.5, 8: 4.0, 10: 3.0, 12: 3.0, 14: 3.2, 16: 3.1, 18: 2.0, 20: 1.0}


@pytest.mark.parametrize("ema", [None, 0.5])
def test_training_stops_early_and_the_best_is_published(
    begin: Begin, tmp_path: Path, scripted: Callable[[dict[int, float]], None], ema: float | None
) -> None:
    """Of equal losses the first is the best. Stops by hand change nothing, and a resumed run does not train on by itself."""
    scripted(LOSSES)
    run = begin(steps=20, evaluate_every=2, save_every=3, patience=3, keep=1, ema=ema)
    stopped = shutil.copytree(run, tmp_path / "stopped")
    trainer = Trainer(run)
    trainer.run()
    assert (trainer.session.step, trainer.session.stopped_early) == (16, True)
    assert steps_of(run) == [16, 10]
    best = read_tensors(run / "checkpoints/step-10/model.safetensors")
    assert all(torch.equal(best[name], each) for name, each in load(run, "cpu").model.state_dict().items())
    assert all(torch.equal(best[name], each) for name, each in trainer.session.model.state_dict().items())
    assert manifest(run)["weights"] == {"kind": "best", "steps": [10], "ema": ema, "loss": 3.0}
    assert manifest(run)["step"] == 16
    train(stopped, 9, 13)
    assert written(stopped) == written(run)
    before = written(run)
    again = Trainer(run)
    again.run()
    assert again.session.step == 16
    assert written(run) == before


@pytest.mark.parametrize(
    ("settings", "end"), [({"steps": 18}, 18), ({"patience": 4}, 20), ({"patience": "none"}, 20)], ids=str
)
def test_a_run_that_stopped_early_can_continue(
    begin: Begin, scripted: Callable[[dict[int, float]], None], settings: dict[str, Any], end: int
) -> None:
    """For other steps it counts anew; with more patience it waits on; without, it publishes the last weights."""
    scripted(LOSSES)
    run = begin(steps=20, evaluate_every=2, patience=3)
    Trainer(run).run()
    extend(run, settings)
    trainer = Trainer(run)
    assert not trainer.session.stopped_early
    trainer.run()
    assert trainer.session.step == end
    kind = "last" if settings.get("patience") == "none" else "best"
    assert (manifest(run)["weights"]["kind"], manifest(run)["weights"]["steps"]) == (kind, [end])


def test_evaluations_count_anew_for_other_steps(begin: Begin, scripted: Callable[[dict[int, float]], None]) -> None:
    scripted({2: 1.0, **dict.fromkeys(range(4, 32, 2), 2.0)})
    run = begin(steps=20, evaluate_every=2, patience=3)
    Trainer(run).run()
    extend(run, {"steps": 30})
    trainer = Trainer(run)
    trainer.run()
    assert trainer.session.step == 8 + 6
    assert steps_of(run)[-1] == 2  # the best stays


def test_a_damaged_best_is_not_replaced_by_another(begin: Begin, scripted: Callable[[dict[int, float]], None]) -> None:
    scripted(LOSSES)
    run = begin(steps=20, evaluate_every=2, patience=3)
    Trainer(run).run()
    file = run / "checkpoints/step-10/model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(HeddleError, match=r"step-10/model\.safetensors: .*cannot be used"):
        Trainer(run).run()


# What is refused


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"average": 2, "ema": 0.9}, "average = 2 and ema = 0.9 both decide which weights are published"),
        ({"average": 2, "patience": 3}, "average = 2 and patience = 3 both decide"),
        ({"average": 4, "save_every": 3}, "average = 4: 8 steps with a checkpoint every 3 make 3; lower average"),
        ({"patience": 2}, "patience = 2: the run has 2 evaluations, so it could never stop early"),
        ({"patience": 1, "evaluate_every": 8}, "patience = 1: the run has 1 evaluation, so"),
        ({"ema": 1.0}, r"train\.ema = 1\.0"),
        ({"average": 1}, r"train\.average = 1"),
        ({"patience": 0}, r"train\.patience = 0"),
    ],
    ids=str,
)
def test_what_cannot_take_effect_is_refused(
    config: Callable[..., RunConfig], quick: None, tmp_path: Path, settings: dict[str, Any], line: str
) -> None:
    assert re.search(line, refusing.refusal(lambda: prepare(config(**settings), tmp_path / "run")))
