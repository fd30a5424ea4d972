"""Writes docs/quiz.md: the quiz with its answers folded.

python -m tests.lessons.quiz_page
"""

import textwrap
from collections.abc import Iterator
from itertools import groupby

from heddle.lessons.lesson import PAGES
from heddle.lessons.quiz import Question, questions
from tests.lectures.rows import ROOT

PAGE = ROOT / "docs" / "quiz.md"
TITLES = (
    "The next token", "Text becomes tokens", "Vectors and places", "Attention is a weighted average", "Many heads", "The mask",
    "The block", "Dropout", "Scores, loss, drawing", "How many parameters", "What it costs", "Encoder, decoder, both", "Experts",
    "Looking inside", "Reading",
)  # fmt: skip
INTRODUCTION = """\
# Quiz

Questions about the lectures, in the order of the lessons. Open an answer after you have one of your own.
In the terminal, `heddle quiz` asks them one by one and says why a choice is wrong. `heddle quiz 5` asks those of one lesson.

Tests compute every number here again, wrong ones included: most are the results of known mistakes.
`python -m tests.lessons.quiz_page` writes this page.
"""


def wrapped(start: str, text: str, indent: str = "") -> str:
    """Prose of at most 128 columns, with what Markdown would read escaped."""
    text = text.replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_").replace("$", "\\$")
    return textwrap.fill(
        f"{start}{text}", 128, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def linked(lesson: int) -> str:
    """The lesson's name, as a link if its page is there."""
    page = next(PAGES.glob(f"{lesson:02d}-*.md"), None)
    return f"lesson {lesson}" if page is None else f"[lesson {lesson}](lessons/{page.name})"


def answer(question: Question) -> Iterator[str]:
    """The folded part of a question."""
    yield "<details><summary>Answer</summary>"
    yield ""
    if not question.choices:
        yield wrapped("", question.model_answer)
    for letter, choice in question.lettered().items():
        verdict = "right" if choice.is_right else "wrong"
        yield wrapped(f"- **{letter}** is {verdict}. ", choice.because, "  ")
    yield ""
    yield "</details>"
    yield ""


def page() -> str:
    """The whole page; choices have the letters of `heddle quiz`."""
    lines = [INTRODUCTION]
    for number, group in groupby(questions(), key=lambda question: question.lesson):
        lines += [f"## {TITLES[number]}", "", f"See {linked(number)}.", ""]
        for question in (each.shuffled(0) for each in group):
            lines += [wrapped(f"**{question.number}.** ", f"{question.text} ({', '.join(question.rows)})"), ""]
            lines += [wrapped(f"- **{letter}**: ", choice.text, "  ") for letter, choice in question.lettered().items()]
            lines += [""] if question.choices else []
            lines += answer(question)
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)} is written")
