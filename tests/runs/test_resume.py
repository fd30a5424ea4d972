"""A run that is stopped and resumed ends like one that was not, bit for bit."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from heddle.errors import HeddleError
from heddle.model.products import PRODUCT_KINDS, has_onednn
from heddle.runs import Interrupted, Trainer
from heddle.train import Report
from heddle.weights import load
from heddle.weights.checkpoints import checkpoints
from tests.running import Begin

pytestmark = pytest.mark.usefixtures("roomy")

SETTINGS: dict[str, Any] = {"steps": 12, "evaluate_every": 6, "save_every": 5, "model": {"dropout": 0.2}}


def stop_after(step: int, trainer: Trainer) -> None:
    """Ask for a stop as a signal would, while this step is done."""

    def reader(report: Report) -> None:
        if report.step == step:
            trainer.stop.set()

    trainer.readers.append(reader)


def train(run: Path, *stops: int) -> None:
    """To the end, stopped after each of these steps and resumed."""
    for step in stops:
        trainer = Trainer(run)
        stop_after(step, trainer)
        with pytest.raises(Interrupted, match=f"stopped at step {step} of .* heddle train --resume"):
            trainer.run()
        assert checkpoints(run)[0][0] == step
    Trainer(run).run()


def written(run: Path) -> dict[str, bytes]:
    """Weights, numbers, and all that the last checkpoint holds."""
    files = [run / "model.safetensors", run / "metrics.jsonl", *checkpoints(run)[0][1].iterdir()]
    return {str(file.relative_to(run)): file.read_bytes() for file in files}


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_stopping_changes_nothing(begin: Begin, tmp_path: Path, precision: str, optimizer: str) -> None:
    run = begin(precision=precision, optimizer=optimizer, accumulate=2, **SETTINGS)
    stopped = shutil.copytree(run, tmp_path / "stopped")
    train(run)
    train(stopped, 1, 5, 6, 11)
    expected = written(run)
    assert "checkpoints/step-12/optimizer.safetensors" in expected
    assert written(stopped) == expected


def test_other_seeds_are_other_runs(begin: Begin) -> None:
    runs = [begin(str(seed), seed=seed, steps=2) for seed in (0, 1)]
    for run in runs:
        train(run)
    assert written(runs[0])["model.safetensors"] != written(runs[1])["model.safetensors"]


def test_dropout_draws_anew_at_every_step(begin: Begin) -> None:
    """And the same again at the same step (L0-58). Nothing else differs: the weights stay, and so does the batch."""
    trainer = Trainer(begin(**SETTINGS))
    session = trainer.session
    session.optimizer.update = lambda factor, clip: None
    examples = session.task.examples(0)
    session.task.examples = lambda step: examples
    losses = []
    for step in (0, 1, 0):
        session.step = step
        losses.append(trainer._one_step().values["loss"])
    assert losses[0] != losses[1]
    assert losses[0] == losses[2]


def test_a_checkpoint_damaged_since_is_passed_over(begin: Begin, tmp_path: Path) -> None:
    run = begin(steps=6, evaluate_every=2)
    other = shutil.copytree(run, tmp_path / "other")
    train(run)
    train(other)
    file = checkpoints(other)[0][1] / "optimizer.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    trainer = Trainer(other)
    assert trainer.session.step == 4
    assert ["step-6 is skipped: optimizer.safetensors" in note for note in trainer.session.opening.notes] == [True]
    trainer.run()
    assert written(other) == written(run)


def test_what_does_not_belong_together_is_refused(begin: Begin, tmp_path: Path) -> None:
    run = begin(steps=2, evaluate_every=1)
    train(run)

    def changed(name: str, change: Any) -> Path:
        copy = shutil.copytree(run, tmp_path / name)
        config = json.loads((copy / "config.json").read_text())
        change(copy, config)
        (copy / "config.json").write_text(json.dumps(config))
        return copy

    other_text = tmp_path / "other.txt"
    other_text.write_text("other words\n" * 200)

    def other_words(copy: Path, config: Any) -> None:
        shutil.rmtree(copy / "data")
        shutil.copytree(begin("words", data={"sources": [str(other_text)]}) / "data", copy / "data")

    def characters(copy: Path, config: Any) -> None:
        (begin("characters", data={"tokenizer": "characters"}) / "tokenizer.json").replace(copy / "tokenizer.json")

    cases = {
        "config.json is not the one that step-2": lambda copy, config: config["model"].update(dim=32),
        "restore it: cp ": lambda copy, config: config["train"].update(seed=5),
        "data/ is not what step-2 was trained on": other_words,
        "made with a tokenizer other than": characters,
        "has 257 ids, config.json 300": lambda copy, config: config["model"].update(vocab_size=300),
        "was imported, not trained here": lambda copy, config: config.update(chosen=None, origin="gpt2"),
        "was saved without its training": lambda copy, config: config.update(chosen=None),
    }
    for number, (message, change) in enumerate(cases.items()):
        with pytest.raises(HeddleError, match=message):
            Trainer(changed(str(number), change))
    assert Trainer(changed("sound", lambda copy, config: None)).session.step == 2


def test_what_a_kill_left_is_swept_away(begin: Begin) -> None:
    """Also where nothing is left to be trained, so that no later save would do it."""
    run = begin(steps=2, evaluate_every=1)
    train(run)
    for place in (run, run / "checkpoints"):
        (place / ".step-1.0123abcd.partial").mkdir()
    (run / "checkpoints" / "step-2").rename(run / "checkpoints" / ".step-2.0123abcd.previous")
    trainer = Trainer(run)
    assert trainer.session.step == 2
    assert not list(run.rglob(".*"))


def test_metrics_are_numbers_of_the_run_alone(begin: Begin) -> None:
    """Nothing of the clock, one line for each step, one for each evaluation."""
    run = begin(steps=6, evaluate_every=4)
    train(run, 3)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    looks = [line for line in lines if "validation_loss" in line]
    assert [line["step"] for line in steps] == [1, 2, 3, 4, 5, 6]
    assert [line["step"] for line in looks] == [4, 6]
    layers = {f"gradient_norm/{layer}" for layer in ("embedding", "decoder.0", "decoder.final_norm")}
    assert all(line.keys() == {"step", "loss", "gradient_norm", "learning_rate", *layers} for line in steps)
    measured = {
        "step",
        "validation_loss",
        "validation_error",
        "perplexity",
        "bits_per_byte",
        "bits_per_character",
        "bytes",
    }
    assert all(line.keys() == measured for line in looks)


@pytest.mark.parametrize("line", ["{", "3", "{}", '{"step": "x"}', "\0\0"])
def test_a_damaged_line_of_metrics_is_named(begin: Begin, line: str) -> None:
    run = begin(steps=2)
    (run / "metrics.jsonl").write_text(f'{{"step": 1, "loss": 2.0}}\n{line}\n')
    with pytest.raises(HeddleError, match=r"metrics\.jsonl:2: damaged"):
        Trainer(run).run()


def test_a_line_cut_short_by_a_kill_is_written_again(begin: Begin, tmp_path: Path) -> None:
    run = begin(steps=4, evaluate_every=2)
    cut = shutil.copytree(run, tmp_path / "cut")
    train(run)
    trainer = Trainer(cut)
    stop_after(2, trainer)
    with pytest.raises(Interrupted):
        trainer.run()
    with (cut / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 3, "loss": 5.0}\n{"step": 4, "lo')
    train(cut)
    assert written(cut) == written(run)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_what_a_users_own_mixer_remembers_is_taken_up(begin: Begin, tmp_path: Path, precision: str) -> None:
    """Its buffers change as it learns: they are saved, published and restored."""
    mixer = {"kind": "custom", "target": "tests.model.modules:Counting"}
    model = {"heads": None, "decoder": {"block": {"mixer": mixer}}}
    run = begin(precision=precision, steps=8, evaluate_every=4, save_every=5, model=model)
    stopped = shutil.copytree(run, tmp_path / "stopped")
    train(run)
    train(stopped, 3, 5)
    assert written(stopped) == written(run)
    inner = load(run, "cpu").model.decoder.blocks[0].mixer.inner
    assert inner.passes == 8
    assert (inner.average != 0).all()


def test_a_run_moved_to_a_machine_without_bf16_units(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """It continues in fp32 and says that it is not bit-equal; its config, and what a run starts with, stay."""
    run = begin(precision="bf16", **SETTINGS)
    monkeypatch.setattr("heddle.runs.session.usable_precision", lambda precision, device: "fp32")
    monkeypatch.setattr("heddle.runs.session.peak_rate", lambda *arguments, **settings: 1e9)
    started = Trainer(run)
    opening = started.session.opening
    assert (opening.precision, opening.moved) == ("bf16", [])  # the user asked for it, or it was measured here
    stop_after(6, started)
    with pytest.raises(Interrupted):
        started.run()
    config = (run / "config.json").read_bytes()
    moved = Trainer(run)
    opening = moved.session.opening
    assert opening.precision == "fp32"
    assert opening.moved == ["bf16 is over twice as slow as fp32 here, so fp32 is used"]
    assert {parameter.dtype for parameter in moved.session.model.parameters()} == {torch.float32}
    assert opening.peak == 1e9
    moved.run()
    assert (run / "config.json").read_bytes() == config
    assert checkpoints(run)[0][0] == 12


def test_a_run_moved_to_a_machine_with_fewer_cores(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    run = begin(threads=1, steps=2)
    expected = []
    monkeypatch.setattr(torch, "set_num_threads", expected.append)
    monkeypatch.setattr("heddle.runs.session.cores", lambda: 1)
    assert Trainer(run).session.opening.moved == []
    data = json.loads((run / "config.json").read_text())
    data["chosen"]["threads"] = 8
    (run / "config.json").write_text(json.dumps(data))
    assert Trainer(run).session.opening.moved == ["8 threads were chosen, but this machine has 1 core"]
    assert expected == [1, 1]


@pytest.mark.skipif(not has_onednn(), reason="this torch has no oneDNN")
def test_a_run_moved_to_a_torch_without_onednn(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch computes what oneDNN did, and that is said."""
    run = begin(steps=3, precision="fp32", products="onednn")
    started = Trainer(run)
    session = started.session
    assert session.run.chosen.onednn == session.model.language_head().by_onednn == PRODUCT_KINDS
    started.run()
    monkeypatch.setattr("heddle.runs.session.has_onednn", lambda: False)
    moved = Trainer(run)
    assert moved.session.opening.moved == [
        "oneDNN computed some of its products, but this build of torch has no oneDNN"
    ]
    assert moved.session.model.language_head().by_onednn == ()
