"""Grades homework: what is right, what is wrong, which known mistake it is, and what to do."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heddle.errors import HeddleError, did_you_mean, pluralize
from heddle.lessons.cases import Case, cases
from heddle.lessons.definition import RIGHT
from heddle.lessons.diagnosis import Diagnosis, attention_weights, diagnose, differing
from heddle.lessons.fault import Fault, changed
from heddle.lessons.homework import HOMEWORK, Homework
from heddle.lessons.sandbox import Sandbox, Submission
from heddle.lessons.steps import Step, grading_steps
from heddle.weights.files import write_file


@dataclass(frozen=True)
class Grade:
    """What comes of a submission.

    Attributes:
        file: of the submission.
        part: of the homework.
        problem: why it cannot be graded; empty if it can.
        steps: of grading.
        faults: the known mistakes whose numbers are exactly those of the submission.
        evidence: what the mistakes do, in numbers.
        next: what to do with a right file, line by line.
    """

    file: Path
    part: str
    problem: str = ""
    steps: tuple[Step, ...] = ()
    faults: tuple[Fault, ...] = ()
    evidence: tuple[str, ...] = ()
    next: tuple[str, ...] = ()

    @property
    def grade(self) -> float:
        """The share of steps that are right."""
        return sum(step.is_right for step in self.steps) / len(self.steps) if self.steps else 0.0

    @property
    def exit_code(self) -> int:
        """0: right. 1: wrong. 2: it cannot be graded."""
        return 2 if self.problem else int(self.grade < 1)

    @property
    def line(self) -> str:
        """All of it in a line."""
        if self.problem:
            return str(self)
        wrong = [step.name for step in self.steps if not step.is_right]
        names = " and ".join(repr(each.name) for each in self.faults) or "not a known mistake"
        return f"{self.file}: {self.grade:.2f}" + (f", wrong: {', '.join(wrong)}; {names}" if wrong else ", all right")

    def to_dict(self) -> dict[str, Any]:
        """As JSON, for an autograder."""
        return {
            "file": str(self.file),
            "part": self.part,
            "grade": self.grade,
            "problem": self.problem or None,
            "steps": [{"name": each.name, "right": each.is_right, "lines": list(each.lines)} for each in self.steps],
            "faults": [
                {
                    "name": each.name,
                    "message": each.message,
                    "remedy": each.remedy,
                    "lesson": each.lesson,
                    "rows": each.rows,
                }
                for each in self.faults
            ],
            "evidence": list(self.evidence),
            "next": list(self.next),
        }

    def __str__(self) -> str:
        if self.problem:
            return f"{self.file}: {self.problem}"
        rows = [f"{self.file}: {HOMEWORK[self.part].call}"]
        width = max(len(step.name) for step in self.steps)
        for step in self.steps:
            first, *others = step.lines
            rows.append(f"{step.name:{width}}  {'right' if step.is_right else 'WRONG'}  {first}")
            rows += [" " * (width + 9) + line for line in others]
        rows += ["", *self._conclusion()]
        return "\n".join(rows)

    def _conclusion(self) -> Iterator[str]:
        if self.grade == 1:
            yield "Everything is right."
            yield from self.next
            return
        if self.faults:
            yield "These are exactly the numbers of " + (
                "this mistake:" if len(self.faults) == 1 else "two mistakes at once:"
            )
        for each in self.faults:
            rows = f" ({', '.join(each.rows)})" if each.rows else ""
            yield f"- {each.message}"
            yield f"  {each.remedy} See lesson {each.lesson}{rows}."
        yield from (f"  {line}" for line in self.evidence)
        if not self.faults:
            yield "No known mistake, and no two of them, has these numbers: begin with the first step that is wrong."
        wrong = sum(not step.is_right for step in self.steps)
        yield f"{wrong} of {pluralize(len(self.steps), 'step')} {'is' if wrong == 1 else 'are'} wrong."


def homework(part: str) -> Homework:
    """A part of the homework.

    Raises:
        HeddleError: the part is unknown.
    """
    if part not in HOMEWORK:
        raise HeddleError(f"no homework is called {part!r}: {', '.join(HOMEWORK)}.{did_you_mean(part, HOMEWORK)}")
    return HOMEWORK[part]


def grade(part: str, files: Sequence[Path], seed: int = 0, learns: bool = False) -> Iterator[Grade]:
    """Grade files, one after another, each in a process with limits.

    Args:
        part: `attention`, `block` or `model`.
        files: Python files, each with the class of this part. Their code runs with the user's rights.
        seed: of the inputs and weights.
        learns: whether to train models too: on random tokens, which shows a leak, and on reversing six digits.

    Raises:
        HeddleError: the part is unknown, a file is missing, or `learns` is set for a part other than `model`.
    """
    homework(part)
    if learns and part != "model":
        raise HeddleError(f"only a model is trained, not {part}: grade model FILE --train")
    for file in files:
        if not file.is_file():
            raise HeddleError(f"{file}: no such file")
    tried = cases(part, seed)
    with Sandbox(learns) as sandbox:
        for file in files:
            yield judge(file, part, sandbox.run(file, part, tried), tried)


def judge(file: Path, part: str, submission: Submission, tried: Sequence[Case]) -> Grade:
    """The grade of what a submission computed."""
    if submission.problem:
        return Grade(file, part, problem=submission.problem)
    steps = grading_steps(submission, part, tried)
    if all(step.is_right for step in steps):
        return Grade(file, part, steps=steps, next=tuple(_next(file, part, submission)))
    diagnosis = diagnose(submission, part, tried)
    return Grade(file, part, "", steps, diagnosis.faults, tuple(_evidence(part, diagnosis, tried)))


def _next(file: Path, part: str, submission: Submission) -> Iterator[str]:
    """What to do with a right file."""
    if part == "attention":
        first = "" if submission.takes_layout else "give forward a second argument, layout=None; then, "
        yield f"To train with it, {first}from its folder:"
        yield "  heddle train my.txt tokenizer=characters decoder.entry.positions=learned \\"
        mixer = f'{{kind="custom",target="{file.stem}:{HOMEWORK[part].name}"}}'
        yield f"    'decoder.block.mixer={mixer}'"
    elif part == "block":
        yield "The last part is a language model: heddle grade model --template"
    elif not submission.learned:
        yield f"To see it learn: heddle grade model {file} --train"


def _evidence(part: str, diagnosis: Diagnosis, tried: Sequence[Case]) -> Iterator[str]:
    """What mistakes in attention do to the weights of one token."""
    case, token = next(case for case in tried if case.step == "six tokens"), 2
    wrong, right = (attention_weights(case, part, steps) for steps in (changed(*diagnosis.changes), RIGHT))
    if wrong.shape == right.shape and differing(wrong, right)[token].any():
        rows = [" ".join(f"{weight:.2f}" for weight in each[token].tolist()) for each in (wrong, right)]
        yield f"With this, the weights of token {token} in head 0 are {rows[0]}; right are {rows[1]}."


def files_in(folder: Path) -> list[Path]:
    """The Python files of a folder, by name.

    Raises:
        HeddleError: it is not a folder, or has no Python file.
    """
    if not folder.is_dir():
        raise HeddleError(f"{folder} is not a folder")
    if not (files := sorted(folder.glob("*.py"))):
        raise HeddleError(f"{folder} has no Python file")
    return files


def write_csv(grades: Sequence[Grade], file: Path) -> None:
    """Write a row for each grade. An existing file is replaced.

    Raises:
        HeddleError: the file cannot be written.
    """
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("file", "grade", "right", "steps", "faults", "problem"))
    for each in grades:
        right = sum(step.is_right for step in each.steps)
        names = "; ".join(known.name for known in each.faults)
        table.writerow((each.file.name, f"{each.grade:.2f}", right, len(each.steps), names, each.problem))
    write_file(file, text.getvalue().encode(), replace=True)
