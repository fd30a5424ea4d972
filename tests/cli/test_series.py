"""`heddle train` with several values or several seeds."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from heddle.train import Report

from .conftest import TINY, Heddle


def test_seeds_and_values(heddle: Heddle, corpus: str, tmp_path: Path) -> None:
    words = ("train", corpus, *TINY, "steps=2", "evaluate_every=2", "learning_rate=[1e-3,1e-2]", "--seeds", "2")
    listed = heddle(*words, "--name", "s", "--dry-run")
    names = [f"runs/s-learning_rate={rate},seed{seed}" for rate in ("0.001", "0.01") for seed in (0, 1)]
    assert listed.out.splitlines() == [*names, "4 runs, one at a time; nothing was trained (--dry-run)"]
    assert not (tmp_path / "runs").exists()
    done = heddle(*words, "--json")
    assert done.code == 0, done.err
    report = done.json
    assert (report["series"], report["finished"]) == ("runs/001", True)
    assert [row["run"] for row in report["records"]] == [name.replace("/s", "/001") for name in names]
    assert all(row["differs"].keys() == {"seed", "learning_rate"} for row in report["records"])
    losses = [each["loss"] for each in report["runs"]]
    assert losses == [row["validation_loss"] for row in report["records"]]
    assert [each["mean"] for each in report["spread"]] == pytest.approx([sum(losses[:2]) / 2, sum(losses[2:]) / 2])
    output = heddle(*words, "--name", "001").out
    assert output.count("has finished before") == 4
    assert "learning_rate = 0.01: validation loss" in output
    assert "95 % interval of the mean" in output
    header = next(line for line in output.splitlines() if line.startswith("run  "))
    assert "seed  learning_rate" in header
    assert heddle("train", corpus, *TINY, "steps=1", "--dry-run").out.startswith("reading")
    assert "run runs/002:" in heddle("train", corpus, *TINY, "steps=1", "--dry-run").out  # 001 is taken by the series


def test_a_stopped_series_says_how_to_continue(
    heddle: Heddle, corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("train", corpus, *TINY, "--seeds", "2", "--name", "s")

    def stop(self: object, report: Report) -> None:
        if report.step == 2:
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr("heddle.cli.series.Progress.__call__", stop)
        stopped = heddle(*words, "--json")
    assert stopped.code == 143
    assert stopped.json == {"series": "runs/s", "finished": False}
    assert "stopped at step 2 of 4, saved; to continue the series, repeat the command with --name runs/s" in stopped.err
    assert [path.name for path in sorted((tmp_path / "runs").iterdir())] == ["s-seed0"]
    result = heddle(*words, "--json").json
    assert [each["how"] for each in result["runs"]] == ["continued", "trained"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--seeds", "0"), "variants: seeds = 0: must be at least 1"),
        (("--seeds", "2", "seed=[1,2]"), "settings: seed = [1, 2] and --seeds 2 both choose the seeds; leave one out"),
        (("learning_rate=[]",), "settings: learning_rate = []: give at least one value"),
        (("batch=[4,0]",), "settings: train.batch = 0: input should be greater than 0"),
        (("--resume", "a", "--seeds", "2"),
         "--resume accepts only --device and settings such as steps=4000, not sources or other options"),
    ],
)  # fmt: skip
def test_what_is_refused(refused: Callable[..., str], words: tuple[str, ...], line: str) -> None:
    assert refused("train", *words) == line
