"""Ctrl-C and SIGTERM: the step is finished, the run saved, and how to continue is said; a resumed run ends the same."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from heddle.runs import Interrupted, Trainer
from heddle.train import Report
from heddle.weights.checkpoints import checkpoints
from tests.running import Begin

pytestmark = pytest.mark.usefixtures("roomy")

ROOT = Path(__file__).parents[2]
SIGNALS = [signal.SIGINT, signal.SIGTERM]


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start `heddle train` in the test's folder; it takes half a second over every save."""
    started: list[subprocess.Popen[str]] = []

    def start(*words: str) -> subprocess.Popen[str]:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "HEDDLE_SLOW_SAVE": "0.5"}
        call = [sys.executable, "-m", "heddle", "train", *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(call, cwd=tmp_path, env=env, **pipes))
        return started[-1]

    yield start
    for process in started:
        with process:  # closes its pipes and waits
            process.kill()


def until(process: subprocess.Popen[str], path: Path, pattern: str) -> None:
    """Wait until a file appears."""
    while not list(path.glob(pattern)):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)


def test_a_signal_saves_and_says_how_to_go_on(
    begin: Begin, tmp_path: Path, command: Callable[..., subprocess.Popen[str]]
) -> None:
    """A process that gets SIGTERM; the exit code names it, as a shell does it. Ctrl-C does the same, as below."""
    whole = begin("whole", steps=30, save_every=5, evaluate_every=15, model={"dropout": 0.1})
    run = shutil.copytree(whole, tmp_path / "run")
    process = command("--resume", run.name)
    Trainer(whole).run()
    until(process, run, "checkpoints/step-*")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM, err
    assert err == ""
    step = checkpoints(run)[0][0]
    assert 5 <= step < 30
    assert f"stopped at step {step} of 30, saved; continue with: heddle train --resume {run.name}" in out
    assert not (run / "model.safetensors").exists()
    Trainer(run).run()
    for file in ("model.safetensors", "metrics.jsonl", "checkpoints/step-30/optimizer.safetensors"):
        assert (run / file).read_bytes() == (whole / file).read_bytes(), file


@pytest.mark.parametrize("number", SIGNALS)
def test_the_handlers_are_put_back(begin: Begin, number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in SIGNALS]

    def once(report: Report) -> None:
        signal.raise_signal(number)

    run = begin(steps=4)
    with pytest.raises(Interrupted, match="stopped at step 1 of 4") as stop:
        Trainer(run, [once]).run()
    assert stop.value.step == 1
    assert [signal.getsignal(each) for each in SIGNALS] == before


def test_a_second_interrupt_stops_at_once(begin: Begin) -> None:
    def twice(report: Report) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    run = begin(steps=4)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin with it ignored
    with pytest.raises(KeyboardInterrupt):
        Trainer(run, [twice]).run()
    assert checkpoints(run) == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_signal_in_the_last_step_changes_nothing(begin: Begin) -> None:
    def late(report: Report) -> None:
        if report.step == report.steps and "loss" in report.values:
            signal.raise_signal(signal.SIGINT)

    run = begin(steps=2)
    Trainer(run, [late]).run()
    assert (run / "model.safetensors").exists()
