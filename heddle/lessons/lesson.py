"""The lessons: pages of this package, listed and copied as notebooks that work alone."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from heddle.errors import HeddleError

PAGES = Path(__file__).with_name("pages")
ROW = re.compile(r"([LDC][0-3]?)-(\d\d)(?: … [LDC][0-3]?-(\d\d))?")
FENCE = re.compile(r"^(`{3,}|~{3,})", re.MULTILINE)
# A link to a file, or code between backticks, which may look like one.
LINK = re.compile(r"!?\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]*[./#][^()\s]*)\)|`+[^`\n]+`+")
ROLE = re.compile(r"\{[\w:-]+\}`([^`]*?)(?:\s*<[^`<>]*>)?`")
TARGET = re.compile(r"^\([\w.-]+\)=\n", re.MULTILINE)
ADDRESS = re.compile(r"[a-z]+:")
SITE = PurePosixPath("docs/lessons")  # where the site has the pages


@dataclass(frozen=True)
class Lesson:
    """A lesson, as its page describes it.

    Attributes:
        number: from 0.
        title: the page's heading, without the number.
        minutes: to read it and do the exercise.
        rows: the rows of the lectures that it teaches; a range is written out.
        path: the page.
    """

    number: int
    title: str
    minutes: int
    rows: tuple[str, ...]
    path: Path

    def to_dict(self) -> dict[str, Any]:
        """The lesson as JSON data, without its path."""
        return {"number": self.number, "title": self.title, "minutes": self.minutes, "rows": list(self.rows)}


def lessons(folder: Path = PAGES) -> tuple[Lesson, ...]:
    """All lessons, by number.

    Raises:
        HeddleError: a page has no `lesson` or `minutes` in its front matter, or no heading.
    """
    return tuple(sorted(map(_lesson, folder.glob("[0-9][0-9]-*.md")), key=lambda each: each.number))


def lesson(number: int, folder: Path = PAGES) -> Lesson:
    """One lesson.

    Raises:
        HeddleError: it does not exist.
    """
    every = lessons(folder)
    for each in every:
        if each.number == number:
            return each
    raise HeddleError(
        f"lesson {number} does not exist: choose one from {every[0].number} to {every[-1].number}"
        if every
        else "this installation has no lessons"
    )


def _lesson(path: Path) -> Lesson:
    settings, body = split(path.read_text(encoding="utf-8"))
    heading = re.search(r"^# (.+)$", body, re.MULTILINE)
    if heading is None or not all(settings.get(name, "").isdigit() for name in ("lesson", "minutes")):
        raise HeddleError(f"{path}: a page needs a heading, and `lesson` and `minutes` in its front matter")
    title = re.sub(r"^(?:Lesson )?\d+[.:]? +", "", heading[1].strip())
    number, minutes = int(settings["lesson"]), int(settings["minutes"])
    return Lesson(number, title, minutes, tuple(rows_in(settings.get("rows", ""))), path)


def split(text: str) -> tuple[Mapping[str, str], str]:
    """The front matter's own keys, each value as one line of text, and what follows."""
    match = re.match(r"---\n(.*?\n)---\n", text, re.DOTALL)
    if match is None:
        return {}, text
    settings: dict[str, str] = {}
    name = ""
    for line in match[1].splitlines():
        if key := re.match(r"(\w+):(.*)", line):
            name, settings[key[1]] = key[1], key[2].strip()
        elif name:
            settings[name] += f" {line.strip()}"
    return settings, text[match.end() :]


def rows_in(text: str) -> Iterator[str]:
    """Every row that a text names, also those inside a range of a first and a last one."""
    for deck, first, last in ROW.findall(text):
        for number in range(int(first), int(last or first) + 1):
            yield f"{deck}-{number:02d}"


def standalone(page: str) -> str:
    """A page without links into the site: their text stays, with the file that has more."""
    front, body = page[: len(page) - len(split(page)[1])], split(page)[1]
    return front + "".join(part if is_code else _unlinked(part) for is_code, part in _parts(body))


def _parts(body: str) -> Iterator[tuple[bool, str]]:
    """The page in parts: fenced code, which must stay as it is, and text."""
    lines: list[str] = []
    opened = ""  # the fence that a part began with
    for line in body.splitlines(keepends=True):
        fence = FENCE.match(line)
        if fence and not opened:
            yield False, "".join(lines)
            lines, opened = [line], fence[1]
        else:
            lines.append(line)
            if fence and fence[1].startswith(opened) and line.strip() == fence[1]:
                yield is_code(lines[0]), "".join(lines)
                lines, opened = [], ""
    yield bool(opened), "".join(lines)


def is_code(fenced: str) -> bool:
    """Whether a fence holds code, and not a directive with text, such as a note."""
    return not re.match(r"[`~]{3,}\{(?!code)", fenced)


def _unlinked(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        words, goal = match[1], match[2]
        return match[0] if goal is None or ADDRESS.match(goal) else f"{words}{_place(words, goal)}"

    text = re.sub(r"\{math\}`([^`]*)`", r"$\1$", TARGET.sub("", text))
    text = ROLE.sub(lambda match: match[1] or match[0], text)
    return LINK.sub(plain, text)


def _place(words: str, goal: str) -> str:
    """Where a linked file is, in brackets, unless the words name it."""
    path = goal.split("#")[0]
    if not path:
        return ""
    parts: list[str] = []
    for part in (SITE / path).parts:
        if part == "..":
            parts = parts[:-1]
        elif part != ".":
            parts.append(part)
    file = "/".join(parts)
    if number := re.fullmatch(r"docs/lessons/(\d\d)-.*", file):
        return "" if f"lesson {int(number[1])}" in words.lower() else f" (lesson {int(number[1])})"
    return "" if file in words else f" ({file})"
