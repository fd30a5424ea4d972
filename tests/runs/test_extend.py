"""A finished run continues for longer; what decides what it learns cannot change."""

import json
import shutil
from math import ceil
from pathlib import Path
from typing import Any

import pytest

from heddle.config.run import RunConfig
from heddle.config.saved import SavedConfig
from heddle.errors import HeddleError
from heddle.native.cores import cores
from heddle.runs import Interrupted, Trainer, extend, prepare
from heddle.runs.session import read_run
from heddle.train.length import step_size, steps_within
from heddle.train.schedule import factor
from heddle.weights import load
from heddle.weights.run import damage, read_config
from tests.running import SIZES, TRAIN, Begin
from tests.runs.test_resume import stop_after, written

pytestmark = pytest.mark.usefixtures("roomy")


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_finished_run_continues_and_can_be_stopped_again(begin: Begin, tmp_path: Path) -> None:
    """Bit for bit, from the step that was reached, by the schedule of the longer run."""
    run = begin(steps=4, evaluate_every=2)
    Trainer(run).run()
    before = lines(run)
    assert extend(run, {"train.steps": 9}) == ["steps: 4 -> 9"]
    assert damage(run) == []  # the published weights are valid with the new config
    load(run)
    other = shutil.copytree(run, tmp_path / "other")
    Trainer(run).run()
    after = lines(run)
    assert after[: len(before)] == before
    assert after[-1]["step"] == 9
    config = SavedConfig.read(run / "config.json")
    assert config.chosen is not None
    assert config.train is not None
    rates = {line["step"]: line["learning_rate"] for line in after if "learning_rate" in line}
    highest, warmup = config.chosen.learning_rate, config.chosen.warmup
    assert rates[5] == pytest.approx(highest * factor(4, 9, warmup, config.train))
    trainer = Trainer(other)
    stop_after(6, trainer)
    with pytest.raises(Interrupted):
        trainer.run()
    Trainer(other).run()
    assert written(other) == written(run)


def test_minutes_are_added_at_the_measured_rate(begin: Begin) -> None:
    run = begin(steps=4)
    Trainer(run).run()
    extend(run, {"train.minutes": 2, "train.evaluate_every": 50, "train.keep": 3})
    config = SavedConfig.read(run / "config.json")
    assert config.chosen is not None
    assert config.train is not None
    more = steps_within(120.0, 1e5, read_run(run).task(), 50)
    assert config.chosen.steps == 4 + more
    assert 0.85 * 120 * 1e5 / 64 < more < 0.98 * 120 * 1e5 / 64
    assert (config.chosen.evaluate_every, config.train.keep) == (50, 3)
    assert Trainer(run).session.step == 4


def test_minutes_of_records_count_what_a_step_reads(quick: None, tmp_path: Path) -> None:
    """Short texts fill a small part of the context, so more steps fit."""
    file = tmp_path / "reviews.tsv"
    file.write_text("text\tlabel\n" + "".join(f"fox {number}\t{'ab'[number % 2]}\n" for number in range(60)))
    data = {"sources": [str(file)], "tokenizer": "bytes"}
    run = tmp_path / "run"
    prepare(RunConfig.of({"data": data, "model": SIZES, "task": "classification", "train": {**TRAIN, "steps": 4}}), run)
    Trainer(run).run()
    extend(run, {"train.minutes": 2})
    config = SavedConfig.read(run / "config.json")
    assert config.chosen is not None
    task, chosen = read_run(run).task(), config.chosen
    read = step_size(task).tokens
    assert read != chosen.batch * config.model.context
    assert chosen.steps == 4 + steps_within(120.0, chosen.tokens_per_second, task, chosen.evaluate_every)
    assert chosen.steps == pytest.approx(120 * chosen.tokens_per_second / read, rel=0.15)


def test_micro_batches_change_rounding_alone(begin: Begin, tmp_path: Path) -> None:
    run = begin(steps=6, save_every=3)
    Trainer(run).run()
    other = shutil.copytree(run, tmp_path / "other")
    shutil.rmtree(other / "checkpoints/step-6")
    (other / "metrics.jsonl").unlink()
    assert extend(other, {"train.accumulate": 2}) == ["accumulate: 1 -> 2"]
    Trainer(other).run()
    before, after = (next(line for line in lines(each) if line["step"] == 6) for each in (run, other))
    assert after["loss"] == pytest.approx(before["loss"], rel=0, abs=2e-5)
    assert after["gradient_norm"] == pytest.approx(before["gradient_norm"], rel=0, abs=2e-5)


def test_micro_batches_stay_where_they_decide_which_records_come_together(quick: None, tmp_path: Path) -> None:
    file, run = tmp_path / "reviews.tsv", tmp_path / "run"
    file.write_text("text\tlabel\n" + "".join(f"fox {number}\t{'ab'[number % 2]}\n" for number in range(60)))
    train = {**TRAIN, "batch": None, "batch_tokens": 512, "steps": 4}
    data = {"sources": [str(file)], "tokenizer": "bytes"}
    prepare(RunConfig.of({"data": data, "model": SIZES, "task": "classification", "train": train}), run)
    with pytest.raises(
        HeddleError, match="accumulate cannot change: steps of batch_tokens have a multiple of 8 x accumul"
    ):
        extend(run, {"train.accumulate": 2})
    assert extend(run, {"train.accumulate": 1, "train.steps": 5}) == ["steps: 4 -> 5"]


def test_epochs_count_from_the_start(begin: Begin) -> None:
    run = begin(steps=None, epochs=0.5)
    chosen = SavedConfig.read(run / "config.json").chosen
    assert chosen is not None
    an_epoch = read_run(run).task().steps_per_epoch()
    assert chosen.steps == ceil(an_epoch / 2)
    changed = extend(run, {"train.epochs": 2})
    assert read_run(run).chosen.steps == ceil(2 * an_epoch)
    assert "epochs: 0.5 -> 2.0" in changed
    extend(run, {"train.steps": 1000})
    assert (read_run(run).train.epochs, read_run(run).chosen.steps) == (None, 1000)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            {"train.learning_rate": 0.1, "model.depth": 2},
            r"train.learning_rate, model.depth cannot change .* steps, epochs, min",
        ),
        ({"train.steps": 4}, "steps = 4: .* has already done 4; give more"),
        ({"train.steps": 0}, "steps"),
        ({"train.minutes": "soon"}, "minutes"),
        ({"train.threads": 10**6}, "threads"),
    ],
    ids=str,
)
def test_what_cannot_change_is_refused(begin: Begin, settings: dict[str, Any], line: str) -> None:
    run = begin(steps=4)
    Trainer(run).run()
    before = (run / "config.json").read_bytes()
    with pytest.raises(HeddleError, match=line):
        extend(run, settings)
    assert (run / "config.json").read_bytes() == before


def test_a_run_in_training_is_not_changed(begin: Begin) -> None:
    run = begin(steps=4)
    trainer = Trainer(run)
    with pytest.raises(HeddleError, match="is being trained"):
        extend(run, {"train.steps": 9})
    trainer.session.run.hold.release()  # type: ignore[union-attr]
    changes = extend(run, {"train.threads": cores()})
    assert [line.split(": ")[:1] for line in changes] == [["threads"]] * (cores() > 1)


def test_the_layout_of_processes_changes(begin: Begin) -> None:
    run = begin()
    assert extend(run, {"parallel.tensor": 2}) == ["tensor: 1 -> 2"]
    assert read_config(run).parallel.tensor == 2
    with pytest.raises(HeddleError, match=r"'parallel.tensors' in settings. Did you mean 'parallel.tensor'\?"):
        extend(run, {"parallel.tensors": 2})


@pytest.mark.parametrize(
    ("settings", "ranks", "line"),
    [
        ({"parallel.tensor": 3}, 2, "tensor = 3 does not divide 2 processes: use a multiple of 3"),
        ({"parallel.tensor": 4}, 4, "tensor = 4 cannot divide decoder.blocks.0.mixer: its 2 heads are not a multiple of 4"),
        ({"parallel.expert": 2}, 2, "expert = 2: this model has no experts: leave it out"),
        ({"train.keep": 3}, 3, "batch = 4 cannot be divided among 3 processes: choose a multiple of 3"),
    ],
)  # fmt: skip
def test_a_layout_that_processes_cannot_be_changes_nothing(
    settings: dict[str, Any], ranks: int, line: str, begin: Begin
) -> None:
    run = begin()
    before = (run / "config.json").read_bytes()
    with pytest.raises(HeddleError, match=line):
        extend(run, settings, ranks)
    assert (run / "config.json").read_bytes() == before
