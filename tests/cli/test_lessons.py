"""`heddle grade`: what it prints, its exit codes, and a class that trains after it was graded."""

import csv
from pathlib import Path

import pytest

from heddle.lessons.homework import HOMEWORK
from tests.lessons.students import ATTENTION, EDITS, edited

from .conftest import TINY, Heddle

WRONG = edited(ATTENTION, EDITS["mask after the softmax"])


@pytest.mark.parametrize("part", HOMEWORK)
def test_a_template_is_printed(part: str, heddle: Heddle) -> None:
    assert heddle("grade", part, "--template").out == HOMEWORK[part].template


@pytest.mark.lecture("L1-90")
def test_a_class_is_graded_and_then_trains(heddle: Heddle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path.cwd()))
    Path("right_attention.py").write_text(ATTENTION)
    result = heddle("grade", "attention", "right_attention.py")
    assert result.code == 0
    (mixer,) = (word.strip().strip("'") for word in result.out.splitlines() if "decoder.block.mixer" in word)
    Path("text.txt").write_text("the warp is held, the weft is thrown. " * 60)
    settings = [word for word in TINY if not word.startswith("heads=")]
    trained = heddle("train", "text.txt", *settings, "decoder.entry.positions=learned", mixer, "--name", "mine")
    assert trained.code == 0, trained.err
    assert "finished" in trained.out


def test_a_mistake_is_named(heddle: Heddle) -> None:
    Path("wrong.py").write_text(WRONG)
    result = heddle("grade", "attention", "wrong.py")
    assert result.code == 1
    assert "six tokens  WRONG  row 0, token 0, channel 9 is" in result.out
    assert "The mask comes after the softmax" in result.out
    assert "3 of 5 steps are wrong." in result.out
    report = heddle("grade", "attention", "wrong.py", "--json")
    assert (report.code, report.json["grade"]) == (1, 0.4)
    assert [each["name"] for each in report.json["faults"]] == ["mask after the softmax"]


def test_a_folder_is_graded_into_a_table(heddle: Heddle) -> None:
    folder = Path("submissions")
    folder.mkdir()
    for name, source in {"ann": ATTENTION, "bob": WRONG, "eve": "import no_such_module"}.items():
        (folder / f"{name}.py").write_text(source)
    result = heddle("grade", "attention", "--all", "submissions", "--csv", "grades.csv")
    assert result.code == 2
    assert result.out.splitlines()[0] == "submissions/ann.py: 1.00, all right"
    assert "submissions/bob.py: 0.40, wrong: six tokens, more cases, training; 'mask after the softmax'" in result.out
    rows = list(csv.DictReader(Path("grades.csv").read_text().splitlines()))
    assert [(row["file"], row["grade"]) for row in rows] == [("ann.py", "1.00"), ("bob.py", "0.40"), ("eve.py", "0.00")]
    report = heddle("grade", "attention", "--all", "submissions", "--json").json
    assert [each["grade"] for each in report] == [1.0, 0.4, 0.0]


def test_what_cannot_be_graded_is_refused(heddle: Heddle) -> None:
    Path("empty").mkdir()
    for words, message in {
        ("attention",): "name a file, or a folder with --all",
        ("attention", "a.py"): "a.py: no such file",
        ("attentoin", "--template"): "Did you mean 'attention'?",
        ("attention", "--all", "empty"): "empty has no Python file",
        ("attention", "--all", "nowhere"): "nowhere is not a folder",
        ("attention", "a.py", "--csv", "b.csv"): "--csv is a table of many files",
        ("attention", "--all", "empty", "--csv", "nowhere/b.csv"): "--csv nowhere/b.csv: its folder does not exist",
        ("attention", "a.py", "--template"): "leave out the other options",
        ("block", "a.py", "--train"): "only a model is trained, not block",
    }.items():
        result = heddle("grade", *words)
        assert result.code == 2, words
        assert message in result.err
        assert result.err.count("\n") == 1
