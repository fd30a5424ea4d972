"""What the loop reports, and where it stops by itself: NaN or infinite losses, a full disk, nothing to train on."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from heddle.errors import HeddleError
from heddle.runs import Trainer
from heddle.train import Report
from heddle.train.evaluate import Evaluation, evaluate
from heddle.weights import load
from heddle.weights.checkpoints import newest_valid
from heddle.weights.tensors import save_tensors
from tests.running import Begin

pytestmark = pytest.mark.usefixtures("roomy")


def one_line(error: pytest.ExceptionInfo[HeddleError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


def test_every_step_is_told(begin: Begin) -> None:
    reports: list[Report] = []
    trainer = Trainer(begin(steps=10, evaluate_every=1, warmup=4, learning_rate=1e-2), [reports.append])
    result = trainer.run()
    steps = [report for report in reports if "loss" in report.values]
    looks = [report for report in reports if "validation_loss" in report.values]
    assert [report.step for report in steps] == [report.step for report in looks] == list(range(1, 11))
    assert [report.values["learning_rate"] for report in steps[:5]] == pytest.approx([2.5e-3, 5e-3, 7.5e-3, 1e-2, 1e-2])
    assert all(report.steps == 10 for report in reports)
    assert all(report.speed["tokens_per_second"] > 0 for report in steps)
    assert [report.step for report in looks if report.sample is not None] == [1, 2, 5]  # the command writes at the end
    assert steps[0].values["loss"] > steps[-1].values["loss"]
    assert looks[-1].values["validation_loss"] < looks[0].values["validation_loss"]
    assert (
        result.tokens == len(trainer.session.run.store.validation.tokens) - 1
    )  # the text is short enough to be scored whole


def test_what_is_published_is_what_was_trained(begin: Begin) -> None:
    run = begin(steps=3, precision="bf16")
    trainer = Trainer(run)
    trainer.run()
    model, tokenizer = load(run, "cpu")
    for name, value in model.state_dict().items():
        assert value.dtype == torch.float32
        assert torch.equal(value, trainer.session.optimizer.masters[name]), name
    assert tokenizer is not None
    assert tokenizer.fingerprint() == trainer.session.run.tokenizer.fingerprint()


@pytest.mark.parametrize(
    ("settings", "again"),
    [
        ({"evaluate_every": 15}, False),  # a seventh of these tokens is more than is held out
        ({"evaluate_every": 15, "ema": 0.9}, False),
        ({"evaluate_every": 1, "steps": 3}, True),  # only a sample was scored
        ({"evaluate_every": 5, "save_every": 5, "average": 2}, True),  # the published weights were not
        ({"evaluate_every": 5, "patience": 1, "learning_rate": 1e-9, "matrix_learning_rate": 1e-9}, True),
    ],
    ids=["last", "moving average", "sample", "mean", "best"],
)
def test_what_is_published_is_scored_once(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], again: bool
) -> None:
    trainer, calls = Trainer(begin(**{"steps": 15, "batch": 16, **settings})), list[int]()

    def counted(*args: Any, **more: Any) -> Evaluation:
        if trainer.published is not None:
            calls.append(trainer.session.step)
        return evaluate(*args, **more)

    monkeypatch.setattr("heddle.train.training.evaluate", counted)
    result = trainer.run()
    assert len(calls) == again
    assert result == evaluate(trainer.session.model, trainer.session.task)


@pytest.mark.parametrize("context", [1, 2, 8, 64])
@pytest.mark.parametrize("positions", ["none", "learned"])
def test_samples_fit_any_context(begin: Begin, context: int, positions: str) -> None:
    model = {"context": context, "decoder": {"entry": {"positions": positions}}}
    trainer = Trainer(begin(steps=1, model=model))
    trainer.run()
    assert len(trainer.samples([0], tokens=20)[0]) > 8


def test_a_sample_begins_with_text_alone(begin: Begin, tmp_path: Path) -> None:
    """With documents of a few characters the beginning of the validation part holds ends of text, which spell nothing."""
    file = tmp_path / "short.jsonl"
    file.write_text("\n".join(json.dumps({"text": text}) for text in ["ab", "bc", "cab", "abc"] * 30))
    data = {"sources": [str(file)], "tokenizer": "characters", "validation": 0.5}
    trainer = Trainer(begin(steps=1, model={"context": 4}, data=data))
    assert trainer.session.run.tokenizer.end_of_text in trainer.session.run.store.validation.tokens[:8]
    trainer.run()
    assert "<" not in trainer.samples([0])[0][:2]


def poison(trainer: Trainer, step: int, name: str) -> None:
    """After this step, one number of a parameter is NaN."""

    def reader(report: Report) -> None:
        if report.step == step and "loss" in report.values:
            with torch.no_grad():
                trainer.session.optimizer.masters[name].view(-1)[0] = torch.nan
                trainer.session.optimizer.refresh()

    trainer.readers.append(reader)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_weight_gone_wrong_is_named(begin: Begin, precision: str) -> None:
    """With the step, the layer and the batch; the last good checkpoint is still there, and nothing is published."""
    run = begin(steps=9, evaluate_every=9, save_every=2, precision=precision)
    trainer = Trainer(run)
    poison(trainer, 5, "decoder.blocks.0.ffn.up.weight")
    with pytest.raises(HeddleError) as error:
        trainer.run()
    text = one_line(error)
    starts = ", ".join(map(str, trainer.session.task.examples(5).places))
    assert text.startswith("step 6: loss is nan (first seen in the weights of decoder.blocks.0.ffn.up.weight")
    assert f"windows that start at training tokens {starts})" in text
    assert f"the last good checkpoint is {run / 'checkpoints' / 'step-4'}" in text
    assert newest_valid(run)[0] == run / "checkpoints" / "step-4"
    assert not (run / "model.safetensors").exists()
    assert json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["step"] == 5
    Trainer(run).run()  # without the poison it continues


def test_weights_gone_wrong_are_not_saved(begin: Begin) -> None:
    """A step that ends in a checkpoint is looked at first, and found out."""
    run = begin(steps=6, evaluate_every=2)
    trainer = Trainer(run)
    poison(trainer, 4, "decoder.blocks.0.mixer.v.weight")
    with pytest.raises(HeddleError) as error:
        trainer.run()
    where = "weights of decoder.blocks.0.mixer.v.weight"
    assert one_line(error).startswith(f"step 4: validation loss is nan (first seen in the {where})")
    assert newest_valid(run)[0] == run / "checkpoints" / "step-2"


def test_an_output_gone_wrong_is_named(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(begin(steps=2))
    down = trainer.session.model.decoder.blocks[0].ffn.down
    forward = down.forward
    monkeypatch.setattr(down, "forward", lambda x: forward(x) * torch.inf)
    with pytest.raises(
        HeddleError, match=r"step 1: loss is nan .first seen in the output of decoder\.blocks\.0\.ffn\.down;"
    ):
        trainer.run()


def test_a_gradient_gone_wrong_is_named(begin: Begin) -> None:
    """The one that is computed first of those that are wrong."""
    run = begin(steps=2, model={"depth": 3})
    trainer = Trainer(run)
    trainer.session.model.decoder.blocks[1].ffn.up.weight.register_hook(lambda gradient: gradient * torch.nan)
    trainer.session.model.embedding.weight.register_hook(lambda gradient: gradient * torch.nan)
    with pytest.raises(HeddleError) as error:
        trainer.run()
    assert one_line(error).startswith(
        "step 1: norm of the gradient is nan (first seen in the gradient of decoder.blocks.1.ffn.up.weight;"
    )
    assert "no checkpoint exists yet" in str(error.value)


@pytest.mark.parametrize("settings", [{"optimizer": "adamw", "learning_rate": 1e30}, {"matrix_learning_rate": 1e30}])
def test_rates_far_too_high_stop_the_run(begin: Begin, settings: dict[str, Any]) -> None:
    run = begin(steps=20, evaluate_every=1, warmup=0, **settings)
    with pytest.raises(HeddleError, match="lower learning_rate or matrix_learning_rate") as error:
        Trainer(run).run()
    one_line(error)
    for line in (run / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} in metrics.jsonl"))


class Full:
    """A file on a disk that is full."""

    name = "metrics.jsonl"

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")

    def close(self) -> None: ...


def test_a_full_disk_is_one_line(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    run = begin(steps=4, evaluate_every=2)
    trainer = Trainer(run)
    open_ = Path.open

    def full_after(path: Path, mode: str = "r", *args: Any, **more: Any) -> Any:
        return Full() if path.name == "metrics.jsonl" and mode == "a" else open_(path, mode, *args, **more)

    monkeypatch.setattr(Path, "open", full_after)
    with pytest.raises(HeddleError, match=r"cannot write metrics\.jsonl: No space left on device"):
        trainer.run()


def test_a_checkpoint_that_does_not_fit_leaves_the_last_one(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    run = begin(steps=4, evaluate_every=2)
    trainer = Trainer(run)

    def full(path: Path, tensors: Any, metadata: Any = None) -> None:
        if "step-4" in str(path):
            path.write_bytes(b"half")
            raise OSError(28, "No space left on device")
        save_tensors(path, tensors, metadata)

    monkeypatch.setattr("heddle.weights.checkpoints.save_tensors", full)
    with pytest.raises(HeddleError, match=r"disk full while writing .*step-4.*nothing was changed"):
        trainer.run()
    assert newest_valid(run) == (run / "checkpoints" / "step-2", [])
    assert not list(run.rglob(".*"))


@pytest.mark.parametrize("damage", ["missing", "short"])
def test_a_damaged_text_is_refused(begin: Begin, damage: str) -> None:
    run = begin()
    file = run / "data" / "train.tokens"
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-2])
    with pytest.raises(HeddleError, match=r"train\.tokens"):
        Trainer(run)
