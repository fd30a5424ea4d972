"""`heddle data show`."""

from collections.abc import Callable
from pathlib import Path

import pytest

from heddle.train import show_step

from .conftest import Heddle


def test_show_prints_a_table_and_a_picture(heddle: Heddle, run_a: Path) -> None:
    shown = heddle("data", "show", "a", "--step", "2", "--length", "4").out
    assert shown.startswith("step 2 of 4: windows that start at training tokens ")
    assert "64 targets in 64 places" in shown
    assert shown.splitlines()[-4:] == ["█···", "██··", "███·", "████"]
    document = heddle("data", "show", "a", "--rows", "2", "--json").json
    assert [row["tokens"] for row in document["rows"]] == [row.tokens for row in show_step(run_a, rows=2).rows]


@pytest.mark.parametrize(
    ("asked", "line"), [(["none"], "there is no run 'none'"), (["a", "--step", "9"], "step = 9: runs/a has 4 steps")]
)
def test_what_cannot_be_shown_is_refused(refused: Callable[..., str], run_a: Path, asked: list[str], line: str) -> None:
    assert line in refused("data", "show", *asked)
