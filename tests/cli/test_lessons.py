"""`heddle grade`, `heddle lesson` and `heddle quiz`: what they print, copy and refuse; a graded class trains."""

import csv
import io
import json
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from heddle.cli.main import Terminated
from heddle.lessons import lesson
from heddle.lessons.homework import HOMEWORK
from heddle.lessons.quiz import questions_of
from heddle.lessons.sandbox import Sandbox
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


@pytest.fixture
def one_process(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """All files of these tests are graded by one, which has torch in memory."""
    monkeypatch.setattr("heddle.lessons.grading.Sandbox", lambda learns: nullcontext(sandbox))


@pytest.mark.thorough
@pytest.mark.usefixtures("one_process")
def test_a_mistake_is_named(heddle: Heddle) -> None:
    Path("wrong.py").write_text(WRONG)
    result = heddle("grade", "attention", "wrong.py")
    assert result.code == 1
    assert "six tokens  WRONG  row 0, token 0, channel 9 is" in result.out
    assert "The mask comes after the softmax" in result.out
    assert "3 of 5 steps are wrong." in result.out
    other = heddle("grade", "attention", "wrong.py", "--seed", "1")
    assert (other.code, "The mask comes after the softmax" in other.out) == (1, True)
    assert other.out != result.out  # of other inputs and weights
    report = heddle("grade", "attention", "wrong.py", "--json")
    assert (report.code, report.json["grade"]) == (1, 0.4)
    assert [each["name"] for each in report.json["faults"]] == ["mask after the softmax"]


@pytest.mark.thorough
@pytest.mark.usefixtures("one_process")
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


PAGE = """\
---
kernelspec:
  name: python3
lesson: 3
minutes: 12
rows: [L0-32 … L0-34, L3-15]
---

# Attention is an average

More is in [the guide](../look.md).

```{code-cell} ipython3
print(1)
```
"""


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one lesson."""
    folder = tmp_path / "pages"
    folder.mkdir()
    (folder / "03-attention.md").write_text(PAGE)
    for function in (lesson.lessons, lesson.lesson):
        monkeypatch.setattr(function, "__defaults__", (folder,))
    return folder


def test_lessons_are_listed(heddle: Heddle, pages: Path) -> None:
    title, row = heddle("lesson").out.splitlines()
    assert title.split() == ["lesson", "title", "minutes"]
    assert row.split() == ["3", "Attention", "is", "an", "average", "12"]
    assert heddle("lesson", "--json").json == [
        {"number": 3, "title": "Attention is an average", "minutes": 12, "rows": ["L0-32", "L0-33", "L0-34", "L3-15"]}
    ]


def test_a_lesson_is_copied(heddle: Heddle, pages: Path) -> None:
    assert heddle("lesson", "3").out == "03-attention.md: lesson 3, Attention is an average, 12 minutes\n"
    assert Path("03-attention.md").read_text() == PAGE.replace("[the guide](../look.md)", "the guide (docs/look.md)")
    report = heddle("lesson", "3", "--notebook", "--json").json
    assert (report["file"], report["number"]) == ("03-attention.ipynb", 3)
    cells = json.loads(Path("03-attention.ipynb").read_text())["cells"]
    assert [(cell["cell_type"], cell["source"][-1]) for cell in cells] == [
        ("markdown", "More is in the guide (docs/look.md)."), ("code", "print(1)"),
    ]  # fmt: skip


def test_lessons_that_do_not_exist_and_files_that_do(heddle: Heddle, pages: Path) -> None:
    Path("03-attention.md").write_text("mine")
    for words, message in {
        ("lesson", "3"): "03-attention.md: already exists",
        ("lesson", "7"): "lesson 7 does not exist: choose one from 3 to 3",
        ("lesson", "--notebook"): "--notebook copies a lesson: give its number",
        ("quiz", "15"): "lesson 15 has no questions: choose a lesson from 0 to 14",
    }.items():
        result = heddle(*words)
        assert result.code == 2, words
        assert message in result.err
        assert result.err.count("\n") == 1
    assert Path("03-attention.md").read_text() == "mine"


def answers(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def test_a_quiz_from_a_pipe(heddle: Heddle, pages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Right, wrong, no letter, an open question; each wrong answer gets its own reason."""
    first, second, opened = (question.shuffled(0) for question in questions_of(3))
    wrong = next(letter for letter in second.lettered() if letter != second.letter)
    answers(monkeypatch, first.letter.upper(), "z", wrong, "an average of the values")
    result = heddle("quiz", "3")
    assert (result.code, result.err) == (0, "")
    for text in (
        f"Question 2 of 3: lesson 3 ({', '.join(second.rows)})",
        f"Right. {first.choices[0].because if first.letter == 'a' else first.lettered()[first.letter].because}",
        "answer with a, b, c or d",
        f"Wrong. {second.lettered()[wrong].because}",
        f"Right is {second.letter}. {second.lettered()[second.letter].because}",
        f"A good answer: {opened.model_answer}",
        "1 of 2 questions right",
        "read again: lesson 3, Attention is an average (1 wrong)",
    ):
        assert text in result.out, text
    assert not any(choice.because in result.out for choice in first.choices if not choice.is_right)


def test_a_quiz_that_ends_early(heddle: Heddle, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch)
    assert heddle("quiz").out.endswith("\nno question answered\n")
    answers(monkeypatch, questions_of(0)[0].shuffled(0).letter)
    assert heddle("quiz").out.endswith("\n1 of 1 question right\n")


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt, 0), (Terminated, 128 + signal.SIGTERM)])
def test_ctrl_c_ends_the_quiz_with_the_score(
    heddle: Heddle, monkeypatch: pytest.MonkeyPatch, stop: type[BaseException], code: int
) -> None:
    def lines() -> Iterator[str]:
        yield questions_of(0)[0].shuffled(0).letter
        raise stop

    typed = lines()
    monkeypatch.setattr("builtins.input", lambda prompt: next(typed))
    result = heddle("quiz", "0")
    assert result.code == code
    assert result.out.endswith("\n1 of 1 question right\n") == (code == 0)


def test_the_questions_as_a_document(heddle: Heddle) -> None:
    report = heddle("quiz", "5", "--json").json
    assert [each["question"] for each in report] == [question.text for question in questions_of(5)]
    for each, question in zip(report, questions_of(5), strict=True):
        assert each["choices"][each["answer"]]["text"] == question.choices[0].text
    assert heddle("quiz", "5", "--json", "--seed", "1").json != report
    opened = heddle("quiz", "3", "--json").json[-1]
    assert "choices" not in opened
    assert opened["model_answer"]
