"""Writes docs/lectures.md: each row of the lectures with the code that names it and the tests that settle it.

python -m tests.lectures.page
"""

import re
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from tests.lectures.reach import reached
from tests.lectures.rows import LECTURES, NOTHING, OPEN, ROOT, WORDS, settled

PAGE = ROOT / "docs" / "lectures.md"
DECKS = {
    "0": "Deck 000: transformer blocks and other details",
    "1": "Deck 001: transformers (EN.705.743, lecture 5)",
    "2": "Deck 002: transformer, part II (DDA5001)",
    "3": "Deck 003: large language models (VALDOM NLP 2)",
}
LATER = {
    "training": "objectives, data and schedules beyond the next token",
    "decoding": "ways to generate beyond greedy and sampled",
    "look": "pictures and views of what a model does",
    "lessons": "pages to learn from",
}
# A deck prints a wrong author for a paper; the page names the right one (D-15).
CORRECTED = {
    "L0-85": "GPT-2 paper (Radford et al. 2019; the deck prints another name) wrongly stated 117 million.",
    "L0-97": "Vaswani et al. 2017; Srivastava et al. 2014; Radford et al. 2019 (the deck prints another name).",
    "D-15": "The GPT-2 paper (Radford et al. 2019) is cited under the name of another paper's author.",
}
ROW = re.compile(r"\bL[0-3]-\d\d\b")
MOST = 3  # tests and files named for a row; further ones are only counted


def code() -> dict[str, list[str]]:
    """For each row, the files of heddle that name it; a range `L2-67 … L2-76` names all rows in it."""
    result: dict[str, list[str]] = {}
    for path in sorted((ROOT / "heddle").rglob("*")):
        # Mistakes name the rows that they break, and questions those that they ask about.
        if path.suffix not in (".py", ".toml") or path.name.endswith(("_faults.py", "quiz.toml")):
            continue
        text = path.read_text(encoding="utf-8")
        named = set(ROW.findall(text))
        for deck, first, last in re.findall(r"(L[0-3])-(\d\d) … L[0-3]-(\d\d)", text):
            named |= {f"{deck}-{number:02d}" for number in range(int(first), int(last) + 1)}
        for row in named:
            result.setdefault(row, []).append(str(path.relative_to(ROOT)))
    return result


def tried(tests: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """For each settled row, the files of heddle whose names its tests use.

    Files that most of its tests use come first, among these the ones that few rows use; configs come last.
    """
    files: dict[str, Counter[str]] = {}
    for row, names in tests.items():
        places = [reached(ROOT / path, test) for path, test in (name.split("::") for name in names)]
        files[row] = Counter(str(file.relative_to(ROOT)) for each in places for file in each)
    often = Counter(file for each in files.values() for file in each)

    def order(row: str, file: str) -> tuple[bool, int, int, str]:
        return file.startswith("heddle/config/"), -files[row][file], often[file], file

    return {row: sorted(each, key=partial(order, row)) for row, each in files.items()}


def link(path: str, text: str) -> str:
    """A link, relative to the page's directory."""
    return f"[`{text}`](../{path})"


def few(links: list[str]) -> str:
    """The first links, and the number of further ones."""
    more = f" and {len(links) - MOST} more" if len(links) > MOST else ""
    return ", ".join(links[:MOST]) + more


def cell(text: str) -> str:
    """Text escaped for a table cell."""
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def by(tests: list[str]) -> str:
    """The tests that settle a row, as links."""
    return few([link(path, test) for path, test in (name.split("::") for name in tests)])


def codes(tests: Mapping[str, list[str]]) -> list[str]:
    """The tables of decisions (`D-08`) and costs (`C-06`)."""
    lines = ["## Decisions, where the lectures disagree or leave something open", ""]
    lines += ["| decision | rows | what the lectures say | settled by |", "|---|---|---|---|"]
    for each in LECTURES["decisions"]:
        name = each["id"]
        says = cell(CORRECTED.get(name, each["disagreement"]))
        lines.append(f"| {name} | {cell(each['rows'])} | {says} | {by(tests.get(name, []))} |")
    lines += ["", "## Costs", "", "| cost | of what | formula | settled by |", "|---|---|---|---|"]
    for name, what, formula, _ in LECTURES["complexity"]:
        lines.append(f"| {name} | {cell(what)} | {cell(formula)} | {by(tests.get(name, []))} |")
    return [*lines, ""]


def page() -> str:
    """The whole page."""
    tests, files = settled(), code()
    used = tried(tests)
    rows = LECTURES["rows"]
    done = sum(row["id"] in tests for row in rows)
    lines = [
        "# The lectures, row by row",
        "",
        "Four lectures, read slide by slide, gave 310 rows. `L0-41` is row 41 of deck 0; code and tests name rows by these "
        "codes. Each row is *settled* by a test that runs, or *open* under one word. The last two tables list the decisions "
        "made where the lectures disagree or leave something open (`D-08`), and the costs that they state (`C-06`).",
        "",
        "`python -m tests.lectures.page` writes this page. A test fails if a row is neither settled nor open, or both. It also "
        "fails if the page is out of date. The column *code* has the files that name the row; if none does, those that its "
        "tests use, the most relevant first.",
        "",
        f"{done} rows are settled, {len(OPEN)} are open, {len(NOTHING)} ask for nothing.",
        "",
        "| open under | rows | what it will be |",
        "|---|---|---|",
        *(f"| {word} | {list(OPEN.values()).count(word)} | {LATER[word]} |" for word in WORDS if word in OPEN.values()),
        "",
    ]
    for deck, title in DECKS.items():
        lines += [f"## {title}", "", "| row | what it says | code | settled by |", "|---|---|---|---|"]
        for row in rows:
            if row["deck"] != deck:
                continue
            name = row["id"]
            named = files.get(name) or used.get(name, [])[:MOST]
            where = few([link(path, Path(path).name) for path in named])
            if name in NOTHING:
                settlers = "nothing to build"
            elif name in OPEN:
                settlers = f"*open: {OPEN[name]}*"
            else:
                settlers = by(tests.get(name, []))
            lines.append(f"| {name} | {cell(CORRECTED.get(name, row['says']))} | {where} | {settlers} |")
        lines.append("")
    return "\n".join(lines + codes(tests))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)} is written")
