"""Writes docs/quiz.md, the quiz with its answers folded, and the links from docs/map.md to the lessons.

python -m tests.lessons.quiz_page
"""

import re
import textwrap
from collections.abc import Iterator
from itertools import groupby

from heddle.lessons.lesson import PAGES
from heddle.lessons.quiz import Question, questions
from tests.lectures.rows import ROOT

PAGE, MAP = ROOT / "docs" / "quiz.md", ROOT / "docs" / "map.md"
LINK = re.compile(r"^\[\d+\]: lessons/.*\n", re.MULTILINE)
TITLES = (
    "The next token", "Text becomes tokens", "Vectors and places", "Attention is a weighted average", "Many heads", "The mask",
    "The block", "Dropout", "Scores, loss, drawing", "How many parameters", "What it costs", "Encoder, decoder, both", "Experts",
    "Looking inside", "Reading",
)  # fmt: skip
INTRODUCTION = """\
# Quiz

Questions about the lectures, in the order of the lessons. Open an answer after you have one of your own.
In the terminal, `heddle quiz` asks them one by one and says why a choice is wrong. This asks those of lesson 5:

```console
$ heddle quiz 5
```

Tests compute every number here again, wrong ones included: most are the results of known mistakes.
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


def relinked(text: str) -> str:
    """The map with a link for each lesson whose page is there: a line `[5]: lessons/05-mask.md` makes one of `[5]`."""
    links = (f"[{int(page.name[:2])}]: lessons/{page.name}\n" for page in sorted(PAGES.glob("[0-9][0-9]-*.md")))
    return LINK.sub("", text).rstrip("\n") + "\n\n" + "".join(links)


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
    MAP.write_text(relinked(MAP.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)} and the links of {MAP.relative_to(ROOT)} are written")
