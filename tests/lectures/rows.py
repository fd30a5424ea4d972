"""The lectures' rows: which test settles each, or under which word it is still open.

A test settles rows by `@pytest.mark.lecture("L0-41", ...)`; files are read, not run. `open.json` says what is not built yet,
under one word each: training, decoding, look (pictures and views), lessons (pages to learn from).
"""

import ast
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

HERE = Path(__file__).parent
TESTS = HERE.parent
ROOT = TESTS.parent

LECTURES = json.loads((HERE / "lectures.json").read_text(encoding="utf-8"))
OPEN: dict[str, str] = {
    row: word for word, rows in json.loads((HERE / "open.json").read_text(encoding="utf-8")).items() for row in rows
}
WORDS = ("training", "decoding", "look", "lessons")
NOTHING = ("L2-01", "L2-77")
"""Course administration: there is nothing to build."""


def claims(source: str) -> Iterator[tuple[str, str]]:
    """Pairs of a row and the test that says it settles it; the test is empty where the mark stands at no function."""
    tree = ast.parse(source)
    owners: dict[int, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            for decorator in node.decorator_list:
                owners |= {id(inner): node.name for inner in ast.walk(decorator)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("mark.lecture"):
            assert not node.keywords, "a row is named by itself"
            assert node.args, "a marker names at least one row"
            # What a mark takes from a table (`*rows`) is not read: a row that is to count is written at a mark.
            for argument in (each for each in node.args if not isinstance(each, ast.Starred)):
                yield ast.literal_eval(argument), owners.get(id(node), "")


def settled(folder: Path = TESTS) -> dict[str, list[str]]:
    """For each row that any test settles, those tests as `tests/nn/test_norm.py::test_it`."""
    found: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("test_*.py")):
        for row, test in claims(path.read_text(encoding="utf-8")):
            name = f"{path.relative_to(folder.parent)}::{test}"
            if name not in found.setdefault(row, []):
                found[row].append(name)
    return found


def faults(rows: list[str], tests: Mapping[str, list[str]], still_open: Mapping[str, str]) -> list[str]:
    """What is wrong with the account, a sentence each: every row is settled or open, never both, and nothing else is."""
    found = []
    for row in rows:
        is_settled, is_open = row in tests, row in still_open
        if row in NOTHING:
            if is_settled or is_open:
                found.append(f"{row} asks for nothing, yet it is accounted for")
        elif is_settled and is_open:
            found.append(
                f"{row} is settled by {tests[row][0]} and open under {still_open[row]!r}: take it off the list"
            )
        elif not is_settled and not is_open:
            found.append(f"{row} is neither settled by a test nor open under a word")
    found += [f"{row} is open, but no lecture has it" for row in still_open if row not in rows]
    found += [
        f"{row} is open under {word!r}, which is none of {WORDS}"
        for row, word in still_open.items()
        if word not in WORDS
    ]
    return found
