"""The lectures' rows: which test settles each, or under which word it is still open.

A test settles rows by `@pytest.mark.lecture("L0-41", ...)`; files are read, not run. `open.json` says what is not built yet,
under one word each: training, decoding, look (pictures and views), lessons (pages to learn from).
"""

import ast
import json
import re
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
TESTS = HERE.parent
ROOT = TESTS.parent

LECTURES = json.loads((HERE / "lectures.json").read_text(encoding="utf-8"))
OPEN: dict[str, str] = {
    row: word for word, rows in json.loads((HERE / "open.json").read_text(encoding="utf-8")).items() for row in rows
}
WORDS = ("training", "decoding", "look", "lessons")
READERS = {"Case", "CASES", "EXAMPLE", "golden"}
"""By these names tests get at the worked examples; `mlp` without one of them is no example but a kind."""
NOTHING = ("L2-01", "L2-77")
"""Course administration: there is nothing to build."""


@cache
def claims(source: str) -> tuple[tuple[str, str], ...]:
    """Pairs of a row and the test that says it settles it; the test is empty where the mark stands at no function."""
    if "mark.lecture" not in source:
        return ()
    tree = ast.parse(source)
    owners: dict[int, str] = {}
    result: list[tuple[str, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            for decorator in node.decorator_list:
                owners |= {id(inner): node.name for inner in ast.walk(decorator)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _is_mark(node.func):
            assert not node.keywords, "a row is named by itself"
            assert node.args, "a marker names at least one row"
            # What a mark takes from a table (`*rows`) is not read: a row that is to count is written at a mark.
            for argument in (each for each in node.args if not isinstance(each, ast.Starred)):
                result.append((ast.literal_eval(argument), owners.get(id(node), "")))
    return tuple(result)


def _is_mark(function: ast.expr) -> bool:
    return isinstance(function, ast.Attribute) and ast.unparse(function).endswith("mark.lecture")


def settled(folder: Path = TESTS) -> dict[str, list[str]]:
    """For each row that any test settles, those tests as `tests/nn/test_norm.py::test_it`."""
    result: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("test_*.py")):
        for row, test in claims(path.read_text(encoding="utf-8")):
            name = f"{path.relative_to(folder.parent)}::{test}"
            if name not in result.setdefault(row, []):
                result[row].append(name)
    return result


def strings(node: ast.AST) -> set[str]:
    """Every string that stands in a piece of code; where one has holes, `*` stands for what is put there."""
    result = {each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)}
    for each in ast.walk(node):
        if isinstance(each, ast.JoinedStr):
            result.add("".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in each.values))
    return result


@cache
def strings_by_test(source: str) -> dict[str, set[str]]:
    """For each function that reads worked examples, the strings in it, at it, and in the file's tables that it names."""
    if not any(reader in source for reader in READERS):
        return {}
    tree = ast.parse(source)
    tables: dict[str, set[str]] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            tables |= {target.id: strings(node) for target in targets if isinstance(target, ast.Name)}
    result: dict[str, set[str]] = {}
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            names = {each.id for each in ast.walk(function) if isinstance(each, ast.Name)}
            if names & READERS:
                result.setdefault(function.name, set()).update(
                    strings(function), *(tables[name] for name in names & tables.keys())
                )
    return result


def uncompared(cases: Mapping[str, Mapping[str, Collection[str]]], sources: Iterable[str]) -> list[str]:
    """The results of worked examples that no test which names the example names, as `example: result`."""
    compared = [
        strings for source in sources for test, strings in strings_by_test(source).items() if test.startswith("test_")
    ]
    missing = []
    for name, case in cases.items():
        near = set().union(*(strings for strings in compared if name in strings))
        missing += [f"{name}: {key}" for key in case["outputs"] if not any(fnmatchcase(key, each) for each in near)]
    return missing


def unsaid(checks: Mapping[str, str], tests: Mapping[str, list[str]], cases: Collection[str]) -> list[str]:
    """The worked examples that a settled row asks for and that none of its tests names, as `row: example`."""
    files = {test.split("::")[0] for names in tests.values() for test in names}
    read = {path: strings_by_test((ROOT / path).read_text(encoding="utf-8")) for path in files}
    missing = []
    for row, names in tests.items():
        compared: set[str] = set()
        compared = compared.union(*(read[path].get(test, ()) for path, test in (name.split("::") for name in names)))
        requested = [case for case in re.findall(r"`(\w+)`", checks.get(row, "")) if case in cases]
        missing += [f"{row}: {case}" for case in requested if case not in compared]
    return missing


def faults(rows: list[str], tests: Mapping[str, list[str]], still_open: Mapping[str, str]) -> list[str]:
    """What is wrong with the account, a sentence each: every row is settled or open, never both, and nothing else is."""
    problems = []
    for row in rows:
        is_settled, is_open = row in tests, row in still_open
        if row in NOTHING:
            if is_settled or is_open:
                problems.append(f"{row} asks for nothing, yet it is accounted for")
        elif is_settled and is_open:
            problems.append(
                f"{row} is settled by {tests[row][0]} and open under {still_open[row]!r}: take it off the list"
            )
        elif not is_settled and not is_open:
            problems.append(f"{row} is neither settled by a test nor open under a word")
    problems += [f"{row} is open, but no lecture has it" for row in still_open if row not in rows]
    problems += [
        f"{row} is open under {word!r}, which is none of {WORDS}"
        for row, word in still_open.items()
        if word not in WORDS
    ]
    return problems
