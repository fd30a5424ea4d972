"""`heddle runs` compares runs and writes their metrics for other programs."""

from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import TINY, Heddle


def test_runs_are_compared(heddle: Heddle, run_a: Path, corpus: str, tmp_path: Path) -> None:
    """What they share is in no column; a run and a folder of runs can be named."""
    assert heddle("train", corpus, *TINY, "learning_rate=2e-3", "weight_decay=0", "--name", "b").code == 0
    told = heddle("runs").out
    header, first, second = told.splitlines()
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


def test_the_metrics_replace_no_file(refused: Callable[..., str], run_a: Path, corpus: str) -> None:
    said = refused("runs", "a", "--csv", corpus)
    assert said == f"{corpus}: already exists; nothing was changed. Choose another path, or remove it first"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("runs", "--follow"), "--follow continues to write event files, so it needs --tensorboard DIR"),
        (("runs", "--csv", "x.csv"), "no runs with metrics in runs; `heddle train` creates one"),
        (("runs", "c"), "there is no run 'c'. `heddle runs` lists the runs here"),
        (("runs", "--plot", "x.gif"), "no runs with metrics in runs; `heddle train` creates one"),
    ],
)
def test_what_runs_refuses(refused: Callable[..., str], words: tuple[str, ...], line: str) -> None:
    assert refused(*words) == line
