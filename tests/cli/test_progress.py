"""What is shown while a run trains: whether it keeps to its plan."""

import io
from importlib import import_module
from pathlib import Path

import pytest
from rich.console import Console

from heddle.cli.progress import Progress, experts
from heddle.config.saved import Chosen
from heddle.train import Report
from heddle.train.length import SHARE
from heddle.train.live import ProgressLine

from .conftest import TINY, Heddle

CHOSEN = {
    "device": "cpu", "precision": "fp32", "compile": False, "threads": 1, "steps": 200, "batch": 4, "learning_rate": 1e-3,
    "warmup": 0, "evaluate_every": 10, "save_every": 10, "peak": 1e10, "tokens_per_second": 100.0,
}  # fmt: skip


def reported(
    seconds: float, first: float = 0.0, done: int = 0, steps: int = 200, compiling: int = 0
) -> list[tuple[int, str]]:
    """The step and the line of all that is said of a run whose steps of 64 tokens were measured to take 0.64 s."""
    stream = io.StringIO()
    lines: list[tuple[int, str]] = []
    with Progress(Console(file=stream, width=200), Chosen.of({**CHOSEN, "steps": steps}), done) as progress:
        for step in range(done + 1, steps + 1):
            took = seconds + first * (step == done + 1) + 60 * (step == compiling)
            speed = {"tokens_per_second": 64 / took, "share_of_peak": 0.5, "seconds": took}
            progress(Report(step, steps, {"loss": 1.0}, speed))
            lines += [(step, line) for line in stream.getvalue().splitlines()]
            stream.truncate(stream.seek(0))
    return lines


def test_a_tenth_of_the_run_says_by_how_much_it_will_miss() -> None:
    planned = 200 * 0.64 / SHARE
    ((step, line),) = reported(1.28)
    assert step == 20
    assert line == (
        f"steps are 2.0 times slower than measured before the run: about {2 * planned / 60:.1f} min "
        f"instead of {planned / 60:.1f} min; the number of steps stays 200"
    )


@pytest.mark.parametrize(("seconds", "first"), [(0.64, 0.0), (0.75, 0.0), (0.1, 0.0), (0.64, 60.0)])
def test_a_run_that_keeps_to_its_plan_says_nothing(seconds: float, first: float) -> None:
    """Nor one that is ahead of it, or whose first step compiles."""
    assert reported(seconds, first) == []


def test_a_run_that_goes_on_counts_what_is_left() -> None:
    ((step, line),) = reported(1.28, done=100)
    assert step == 110
    assert f"about {2 * 100 * 0.64 / SHARE / 60:.1f} min instead of {100 * 0.64 / SHARE:.0f} s" in line


def test_a_step_that_compiles_is_not_slower_than_planned() -> None:
    assert reported(0.64, steps=200, compiling=5) == []


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_few_steps_are_not_worth_a_line(steps: int) -> None:
    assert reported(1.28, steps=steps) == []


def test_it_is_on_the_command_line(
    heddle: Heddle, corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not in the metrics, which are a function of the config."""
    monkeypatch.setattr(import_module("heddle.runs.plan"), "measure", lambda *args, **settings: 1e9)
    assert "times slower" not in heddle("train", corpus, *TINY, "steps=12", "--name", "b").out
    monkeypatch.setattr("heddle.cli.progress.LEAST", 0.0)
    result = heddle("train", corpus, *TINY, "steps=12", "--name", "c")
    assert result.out.count("times slower than measured before the run") == 1
    assert "the number of steps stays 12" in result.out
    metrics = [(tmp_path / "runs" / name / "metrics.jsonl").read_bytes() for name in "bc"]
    assert metrics[0] == metrics[1]


@pytest.mark.parametrize(("waited", "words"), [(0.05, ""), (0.32, "50% waiting for data")])
def test_a_starved_model_is_told(waited: float, words: str) -> None:
    stream = io.StringIO()
    speed = {"tokens_per_second": 100.0, "share_of_peak": 0.5, "seconds": 0.64, "data_seconds": waited}
    with Progress(Console(file=stream, width=200), Chosen.of(CHOSEN), 0) as progress:
        for step in range(1, 100):
            progress.interval.next -= 100 * (step == 99)
            progress(Report(step, 200, {"loss": 1.0}, speed))
    (line,) = [line for line in stream.getvalue().splitlines() if line.startswith("step 99/200")]
    assert line.endswith(words or "left")


@pytest.mark.parametrize(("processes", "held"), [(1, "1.5 GiB"), (2, "1.5 GiB in rank 0")])
def test_the_memory_of_a_step_is_told(processes: int, held: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run, and of a training in Python, which has one process; where it is not known, nothing."""
    stream = io.StringIO()
    speed = {
        "tokens_per_second": 100.0,
        "share_of_peak": 0.5,
        "seconds": 0.64,
        "data_seconds": 0.0,
        "memory": 1.5 * 2**30,
    }
    with Progress(Console(file=stream, width=200), Chosen.of(CHOSEN), 0, processes) as progress:
        for step, known in ((1, speed), (2, {**speed, "memory": 0.0})):
            progress.interval.next -= 100
            progress(Report(step, 200, {"loss": 1.0}, known))
    first, second = stream.getvalue().splitlines()
    assert first == f"step 1/200  loss 1.000  100 tokens/s  50% of measured peak  {held}"
    assert "of measured peak  2.1 min left" in second
    monkeypatch.setattr("heddle.train.live.SILENT", -1.0)
    with ProgressLine() as line:
        line.console = Console(file=stream, width=200)
        line.interval.next -= 100
        line(Report(1, 2, {"loss": 1.0}, speed))
    assert stream.getvalue().splitlines()[-1] == "step 1/2  loss 1.000  1.5 GiB"


def test_the_use_of_experts_is_told_in_a_few_words() -> None:
    assert experts({"loss": 1.0, "expert_entropy": 0.9712, "dead_experts": 3}) == "experts: entropy 0.97, 3 dead"
    assert experts({"loss": 1.0}) == ""
    stream = io.StringIO()
    with Progress(Console(file=stream, width=200), Chosen.of(CHOSEN), 0) as progress:
        speed = {"tokens_per_second": 100.0, "share_of_peak": 0.5, "seconds": 0.64}
        progress(Report(1, 200, {"loss": 1.0}, speed))
        progress.interval.next -= 100
        progress(Report(2, 200, {"loss": 1.0, "expert_entropy": 0.5, "dead_experts": 0}, speed))
        scored = stream.getvalue()
        progress(Report(2, 200, {"validation_loss": 1.0, "validation_error": 0.5}, {}))
    assert "validation loss 1.0000 ± 0.5000, experts: entropy 0.50, 0 dead, after" in stream.getvalue()
    assert scored.rstrip().endswith("left  experts: entropy 0.50, 0 dead")
