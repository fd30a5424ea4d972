"""`heddle runs` compares runs and writes their metrics for other programs."""

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from heddle.cli.runs import print_runs

from .conftest import TINY, Heddle


def test_runs_are_compared(heddle: Heddle, run_a: Path, corpus: str, tmp_path: Path) -> None:
    """What they share is in no column; a run and a folder of runs can be named."""
    assert heddle("train", corpus, *TINY, "learning_rate=2e-3", "weight_decay=0", "--name", "b").code == 0
    output = heddle("runs").out
    header, first, second = output.splitlines()
    assert "learning_rate" in header
    assert "weight_decay" in header
    assert "depth" not in header
    assert "0.002" not in first
    assert "0.002" in second
    records = heddle("runs", "a", "runs", "--json").json
    assert [record["run"] for record in records] == ["runs/a", "runs/b"]
    assert all(record["tokens_per_second"] > 0 for record in records)
    assert set(records[1]["differs"]) == {"learning_rate", "weight_decay", "save_every"}
    assert heddle("runs", "b", "--json").json[0]["differs"] == {}
    assert "learning_rate" not in heddle("runs", "b").out
    assert heddle("runs", "--csv", "all.csv").out == "all.csv: 8 rows\n"
    assert heddle("runs", "b", "--csv", "b.csv", "--json").json == {"runs": ["runs/b"]}
    assert len((tmp_path / "b.csv").read_text().splitlines()) == 5


RECORD = {
    "run": "runs/a-long-name-of-a-run",
    "state": "finished",
    "step": 100,
    "steps": 100,
    "validation_loss": 1.25,
    "validation_error": 0.0125,
    "scored": 0.5,
    "best_loss": 1.25,
    "best_error": 0.0125,
    "best_step": 100,
    "metrics": {f"metric_{number}_of_a_task": number + 0.5 for number in range(20)},
    "differs": {f"setting_{number}": "some value" for number in range(8)},
    "tokens_per_second": 1000.0,
    "seconds": 12.0,
}


@pytest.mark.parametrize("width", [20, 60, 100, 200, 1000])
def test_no_name_and_no_number_is_cut(width: int) -> None:
    """A terminal shows the columns that fit, and says how many do not; a file gets all."""
    columns = 9 + 20 + 8
    for terminal in (True, False):
        printed = io.StringIO()
        print_runs(
            [RECORD] * 2, Console(file=printed, width=width, force_terminal=terminal, color_system=None, soft_wrap=True)
        )
        header, first, second, *note = (line.rstrip() for line in printed.getvalue().splitlines())
        assert "…" not in printed.getvalue()
        assert first == second
        assert "runs/a-long-name-of-a-run " in first
        assert "1.2500 ± 0.0125" in first
        shown = header.count("metric") + header.count("setting_") + sum(
            f" {name} " in f" {header} "
            for name in ("run", "state", "step", "validation loss", "scored", "best", "at step", "tokens/s", "time")
        )  # fmt: skip
        if terminal and width < 1000:
            assert max(map(len, (header, first))) <= max(width, 25 + 2 + 15)
            assert note == [
                f"{columns - shown} columns do not fit: --json shows everything, and --csv FILE writes all metrics"
            ]
        else:
            assert (shown, note) == (columns, [])


def test_the_metrics_replace_no_file(refused: Callable[..., str], run_a: Path, corpus: str) -> None:
    message = refused("runs", "a", "--csv", corpus)
    assert message == f"{corpus}: already exists; nothing was changed. Choose another path, or remove it first"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("runs", "--follow"), "--follow needs --tensorboard DIR"),
        (("runs", "--csv", "x.csv"), "no runs with metrics in runs; `heddle train` creates one"),
        (("runs", "c"), "no run 'c'. See `heddle runs`"),
        (("runs", "--plot", "x.gif"), "no runs with metrics in runs; `heddle train` creates one"),
    ],
)
def test_what_runs_refuses(refused: Callable[..., str], words: tuple[str, ...], line: str) -> None:
    assert refused(*words) == line
