"""The quiz: questions from the lectures, each answer and each wrong choice with its reason (L3-32, L3-34).

The questions are in `quiz.toml`. An expression beside each choice says what it is computed from; only tests evaluate it.
"""

import random
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from heddle.errors import HeddleError

FILE = Path(__file__).with_name("quiz.toml")
LETTERS = "abcdef"


@dataclass(frozen=True)
class Choice:
    """One of a question's choices.

    Attributes:
        text: the choice.
        because: why it is right, or which mistake leads to it.
        by: the expression that tests recompute it from.
        is_right: whether it is the answer.
    """

    text: str
    because: str
    by: str
    is_right: bool


@dataclass(frozen=True)
class Question:
    """A question.

    Attributes:
        number: its place in the quiz, from 1.
        lesson: the lesson that teaches it.
        rows: the rows of the lectures that it is about.
        text: the question.
        choices: the answer first, unless shuffled; empty for an open question.
        model_answer: the answer of an open question.
        by: of an open question, the expression that must hold.
    """

    number: int
    lesson: int
    rows: tuple[str, ...]
    text: str
    choices: tuple[Choice, ...] = ()
    model_answer: str = ""
    by: str = ""

    @property
    def letter(self) -> str:
        """The letter of the right choice; empty for an open question."""
        return next((letter for letter, choice in self.lettered().items() if choice.is_right), "")

    def lettered(self) -> dict[str, Choice]:
        """The choices by letter."""
        return dict(zip(LETTERS, self.choices, strict=False))

    def shuffled(self, seed: int) -> "Question":
        """The question with its choices in an order that depends on the seed and the question alone."""
        choices = list(self.choices)
        random.Random(f"{seed} {self.number}").shuffle(choices)
        return replace(self, choices=tuple(choices))

    def to_dict(self) -> dict[str, Any]:
        """The question as JSON data."""
        data = {"number": self.number, "lesson": self.lesson, "rows": list(self.rows), "question": self.text}
        if not self.choices:
            return {**data, "model_answer": self.model_answer}
        choices = {
            letter: {"text": choice.text, "because": choice.because} for letter, choice in self.lettered().items()
        }
        return {**data, "choices": choices, "answer": self.letter}


@dataclass
class Score:
    """How many questions were answered right, and which lessons the others belong to."""

    right: int = 0
    answered: int = 0
    missed: Counter[int] = field(default_factory=Counter)

    def add(self, question: Question, letter: str) -> bool:
        """Count an answer, and return whether it is right."""
        is_right = letter == question.letter
        self.answered += 1
        self.right += is_right
        if not is_right:
            self.missed[question.lesson] += 1
        return is_right


@cache
def questions() -> tuple[Question, ...]:
    """All questions, in the order of the lessons; open ones come last in each lesson."""
    rows = tomllib.loads(FILE.read_text(encoding="utf-8"))["questions"]
    ordered = sorted(rows, key=lambda row: (row["lesson"], "wrong" not in row))
    return tuple(_question(number, row) for number, row in enumerate(ordered, start=1))


def questions_of(lesson: int | None) -> tuple[Question, ...]:
    """The questions of a lesson, or all.

    Raises:
        HeddleError: no question belongs to that lesson.
    """
    chosen = tuple(question for question in questions() if lesson in (None, question.lesson))
    if not chosen:
        numbers = sorted({question.lesson for question in questions()})
        raise HeddleError(f"lesson {lesson} has no questions: choose a lesson from {numbers[0]} to {numbers[-1]}")
    return chosen


def _question(number: int, row: Mapping[str, Any]) -> Question:
    shared = {"number": number, "lesson": row["lesson"], "rows": tuple(row["rows"]), "text": row["text"]}
    if "wrong" not in row:
        return Question(**shared, model_answer=row["answer"], by=row["by"])
    answer = Choice(row["answer"], row["because"], row["by"], is_right=True)
    wrong = (Choice(**choice, is_right=False) for choice in row["wrong"])
    return Question(**shared, choices=(answer, *wrong))
