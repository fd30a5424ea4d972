"""Copies of a run are killed and resumed: a sound trainer loses nothing, and what an unsound one loses is found."""

from pathlib import Path

import pytest

from heddle.errors import HeddleError
from heddle.prove import kills

from .tasks import directory

FORGETS = "from heddle.train.optimizer import Optimizer; Optimizer.load_state = lambda self, state: None; "


@pytest.mark.parametrize(("before", "word"), [("", "EXACT"), (FORGETS, "DIFFERENT")], ids=["sound", "it forgets"])
def test_a_killed_run_ends_like_one_left_alone(
    before: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One kill, inside a save after some steps; without its optimizer's state it would end elsewhere."""
    run, said = directory("next token, rotary", tmp_path / "run"), list[str]()
    files = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    monkeypatch.setattr(kills, "OWN", before + kills.OWN)
    verdict = kills.resumed(run, 1, seed=1, tell=said.append)
    assert verdict.word == word, verdict
    assert said[:2] == ["resume: a copy that is left alone", "resume: kill 1 of 1"]
    assert "1 kill (1 in save)" in verdict.detail
    assert files == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}, "the run stays as it is"


def test_a_process_that_failed_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(HeddleError, match="a run ended with code 3"):
        kills.check(3 << 8)
    kills.check(0)


def test_without_kills_nothing_is_claimed(tmp_path: Path) -> None:
    assert kills.resumed(tmp_path, 0).word == "NOT CHECKED"
