"""Lesson pages: their parts and cells, and a run of them that writes their numbers.

    python -m tests.lessons.pages [N ...]      # all lessons, or some of them

Each page runs in a process of its own, its cells from top to bottom in one namespace. `numbers.md` then has every number that a
page guards. Pages that were not run keep their part of it.
"""

import argparse
import ast
import contextlib
import io
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from heddle.errors import HeddleError
from heddle.lessons import expect as guard

PAGES = Path(__file__).parents[2] / "heddle" / "lessons" / "pages"
NUMBERS = PAGES / "numbers.md"
PARTS = ("The idea", "By hand", "Break it", "Do it", "Where in the code", "Go on")  # how headings begin, in this order
LAST_LINES = ("You understood it if you can", "Most people stumble over", "More")
CELL = re.compile(r"^```\{code-cell\} ipython3\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FRONT = re.compile(r"\A---\n(.*?)^---\n", re.MULTILINE | re.DOTALL)
MOST_NUMBERS = 8  # of one guarded value in the table


@dataclass(frozen=True)
class Cell:
    """A code cell: where it is in its page, its tags and its code."""

    page: str
    line: int
    tags: tuple[str, ...]
    source: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source)

    def run(self, namespace: dict[str, Any], seed: int = 0) -> None:
        """Execute the cell, `seed` added to each of its seeds; a traceback names the page and the line."""
        tree = ast.increment_lineno(ast.parse(self.source), self.line - 1)
        exec(compile(_Reseeded(seed).visit(tree) if seed else tree, self.page, "exec"), namespace)


class _Reseeded(ast.NodeTransformer):
    """Add a number to the seeds of a cell: of generators, of new models and of trained ones."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        called = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if called == "manual_seed":
            node.args = [self._later(node.args[0])]
        if called in ("build", "learn"):
            seeds = {word.arg: word.value for word in node.keywords}
            others = [word for word in node.keywords if word.arg != "seed"]
            node.keywords = [*others, ast.keyword("seed", self._later(seeds.get("seed", ast.Constant(0))))]
        return ast.fix_missing_locations(node)

    def _later(self, seed: ast.expr) -> ast.expr:
        return ast.BinOp(seed, ast.Add(), ast.Constant(self.seed))


@dataclass(frozen=True)
class Page:
    """A lesson's page."""

    path: Path

    @cached_property
    def text(self) -> str:
        return self.path.read_text()

    @cached_property
    def front(self) -> dict[str, Any]:
        match = FRONT.match(self.text)
        assert match, f"{self.path.name} has no front matter"
        text = match.group(1)
        fields: dict[str, Any] = {
            name: int(value) for name, value in re.findall(r"^(lesson|minutes): (\d+)$", text, re.MULTILINE)
        }
        rows = re.search(r"^rows: \[(.*?)\]", text, re.MULTILINE | re.DOTALL)
        return fields | {"rows": re.findall(r"[LDC]\d?-\d+", rows.group(1) if rows else "")}

    @cached_property
    def title(self) -> str:
        return next(line.removeprefix("# ") for line in self.text.splitlines() if line.startswith("# "))

    @cached_property
    def headings(self) -> list[str]:
        """Those of the second level, outside code."""
        return re.findall(r"^## (.+)$", CELL.sub("", self.text), re.MULTILINE)

    @cached_property
    def cells(self) -> list[Cell]:
        return list(self._cells())

    def _cells(self) -> Iterator[Cell]:
        for match in CELL.finditer(self.text):
            source, line = match.group(1), self.text.count("\n", 0, match.start()) + 2
            tags: tuple[str, ...] = ()
            if source.startswith(":tags:"):
                first, _, source = source.partition("\n")
                tags, line = tuple(re.findall(r"[\w-]+", first.removeprefix(":tags:"))), line + 1
            yield Cell(self.path.name, line, tags, source)

    def guarded(self) -> list[str]:
        """The names of its guarded numbers."""
        calls = (node for cell in self.cells for node in ast.walk(cell.tree) if isinstance(node, ast.Call))
        return [ast.literal_eval(call.args[0]) for call in calls if getattr(call.func, "id", "") == "expect"]


def pages() -> list[Page]:
    """All lessons, in order."""
    return [Page(path) for path in sorted(PAGES.glob("[0-9][0-9]-*.md"))]


def execute(page: Page, seed: int = 0) -> dict[str, Any]:
    """Run a page's cells and return what it guards, with the seconds of processor time.

    With another seed than the page's a number may differ by more than the page allows: `outside` has those.
    """
    rows: list[list[str]] = []
    values: dict[str, list[float] | str] = {}
    outside: list[str] = []
    check = guard.expect

    def recording(name: str, value: Any, expected: Any, within: float = 0.0) -> None:
        try:
            check(name, value, expected, within)
        except HeddleError as error:
            if not seed:
                raise
            outside.append(str(error))
        rows.append([name, words(expected), f"{within:g}" if within else "exact", words(value)])
        values[name] = value if isinstance(value, str) else torch.as_tensor(value).double().flatten().tolist()

    guard.expect = recording  # type: ignore[assignment]
    started = time.process_time()
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for cell in page.cells:
        cell.run(namespace, seed)
    return {"rows": rows, "values": values, "outside": outside, "seconds": time.process_time() - started}


def run(page: Page, seed: int = 0) -> dict[str, Any]:
    """The same in a process of its own."""
    command = [sys.executable, "-m", "tests.lessons.pages", "--run", str(page.path), "--seed", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{page.path.name} fails:\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def words(value: Any) -> str:
    """Numbers as the table has them."""
    if isinstance(value, str | bool):
        return str(value)
    numbers = [value] if isinstance(value, int | float) else torch.as_tensor(value).flatten().tolist()
    text = " ".join(f"{each:,}" if isinstance(each, int) else f"{each:.5g}" for each in numbers[:MOST_NUMBERS])
    return text + (" …" if len(numbers) > MOST_NUMBERS else "")


def section(page: Page, result: dict[str, Any]) -> str:
    """A page's part of numbers.md."""
    rows = "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in result["rows"])
    head = "| number | the text says | within | this machine |\n|---|---|---|---|"
    seconds = f"{len(result['rows'])} numbers; {result['seconds']:.0f} seconds of one core."
    return f"## {page.front['lesson']}. [{page.title}]({page.path.name})\n\n{seconds}\n\n{head}\n{rows}\n"


TITLE = """# The numbers of the lessons

Each number that a lesson states is computed again whenever its page is built, and compared with the text. Tolerances of trained
models are at least three times the spread over seeds. `python -m tests.lessons.pages` writes this page.
"""


def sections(text: str) -> dict[int, str]:
    """The parts of numbers.md, by lesson."""
    parts = re.split(r"^(?=## \d+\. )", text, flags=re.MULTILINE)[1:]
    return {int(part[3 : part.index(".")]): part.strip() + "\n" for part in parts}


def guarded_numbers(text: str) -> list[str]:
    """The names in a part of numbers.md."""
    return [row.split(" | ")[0].removeprefix("| ") for row in text.splitlines() if row.startswith("| ")][1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lessons", nargs="*", type=int)
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        with contextlib.redirect_stdout(io.StringIO()):
            result = execute(Page(options.run), options.seed)
        print(json.dumps(result))
        return
    parts = sections(NUMBERS.read_text()) if NUMBERS.exists() else {}
    for page in pages():
        number = page.front["lesson"]
        if options.lessons and number not in options.lessons:
            continue
        result = run(page)
        print(f"{page.path.name}: {result['seconds']:.1f} seconds of processor time, {len(result['rows'])} numbers")
        parts[number] = section(page, result)
    NUMBERS.write_text("\n".join([TITLE, *(parts[number] for number in sorted(parts))]))


if __name__ == "__main__":
    main()
