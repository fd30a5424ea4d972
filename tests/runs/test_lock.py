"""A run has one trainer at a time, whatever process it is in; whoever reads it does not notice."""

import gc
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from heddle.errors import HeddleError
from heddle.prove import prove_run
from heddle.runs import Interrupted, Trainer, prepare
from heddle.train import Report
from heddle.weights import load
from heddle.weights.files import Hold, is_held, write_directory
from tests import programs
from tests.running import Begin

pytestmark = pytest.mark.usefixtures("roomy")


def test_a_second_trainer_is_refused(begin: Begin) -> None:
    run = begin(steps=2, evaluate_every=1)
    first = Trainer(run)
    before = sorted(path.name for path in run.iterdir())
    with pytest.raises(HeddleError, match=r"run is being trained by another process or Trainer; wait for it") as error:
        Trainer(run)
    assert "\n" not in str(error.value)
    first.run()
    assert sorted(path.name for path in run.iterdir()) == sorted([*before, *WRITTEN])  # no file of the lock


WRITTEN = [
    "checkpoints",
    "manifest.json",
    "metrics.jsonl",
    "model.safetensors",
    "samples.jsonl",
    "speed.json",
    "speed.jsonl",
]


def test_it_ends_with_the_trainer(begin: Begin) -> None:
    """However that ends: by its last step, collected, stopped, by an error, or because it never began."""
    run = begin(steps=2, evaluate_every=1)
    trainer = Trainer(run)
    assert is_held(run)
    del trainer
    gc.collect()
    assert not is_held(run)

    def stop(report: Report) -> None:
        if "loss" in report.values:  # a second one ends the process
            signal.raise_signal(signal.SIGTERM)

    def fail(report: Report) -> None:
        raise RuntimeError("a reader's own")

    for reader, error in (stop, Interrupted), (fail, RuntimeError):
        trainer = Trainer(run, [reader])
        with pytest.raises(error):
            trainer.run()
        assert not is_held(run)
    finished = Trainer(run)
    finished.run()
    assert not is_held(run)
    with pytest.raises(HeddleError, match="has already run; make a new one"):
        finished.run()
    damaged = begin("damaged", steps=2)
    (damaged / "config.json").write_text((damaged / "config.json").read_text().replace('"cpu"', '"mps"'))
    with pytest.raises(HeddleError) as caught:
        Trainer(damaged)
    assert "mps" in str(caught.value)  # its traceback is alive, and the trainer in it
    assert not is_held(damaged)


def test_a_killed_process_leaves_none_behind(begin: Begin) -> None:
    run = begin(steps=1)
    with subprocess.Popen(programs.call("runs.holding", run), cwd=programs.ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(HeddleError, match="being trained"):
            Trainer(run)
        process.kill()
    Trainer(run).run()


def test_readers_do_not_notice(begin: Begin, tmp_path: Path) -> None:
    run = begin(steps=4, evaluate_every=2)
    seen = []

    def read(report: Report) -> None:
        if report.step == 3:
            seen.append(load(run, "cpu").model.config)
            assert prove_run(run, "run").holds
            shutil.copytree(run, tmp_path / "copy")

    Trainer(run, [read]).run()
    assert len(seen) == 1
    assert Trainer(tmp_path / "copy").session.step == 2


def test_a_moment_of_asking_keeps_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`is_held` takes the lock while it looks."""
    asking: list[Hold] = [Hold(tmp_path)]
    monkeypatch.setattr("heddle.weights.files.time.sleep", lambda seconds: [hold.release() for hold in asking])
    Hold(tmp_path)


def test_a_name_that_is_being_prepared_is_taken(config: Callable[..., object], tmp_path: Path, quick: None) -> None:
    messages: list[str] = []
    with (
        pytest.raises(HeddleError, match=r"run is being prepared by another process; choose another --name"),
        write_directory(tmp_path / "run"),
    ):
        prepare(config(), tmp_path / "run", messages.append)  # type: ignore[arg-type]
    assert messages == []
    (tmp_path / ".run.0123abcd.partial").mkdir()  # as a killed process leaves it
    prepare(config(), tmp_path / "run")  # type: ignore[arg-type]
