"""Every row that a test says it settles is a row of the lectures."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lectures.golden import CASES, ROWS

TESTS = Path(__file__).parents[1]


def claimed(source: str) -> Iterator[str]:
    """The rows named in `pytest.mark.lecture(...)`, wherever the marker stands."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("mark.lecture"):
            assert not node.keywords, "a row is named by itself"
            assert node.args, "a marker names at least one row"
            for argument in node.args:
                yield ast.literal_eval(argument)


@pytest.mark.parametrize("path", sorted(TESTS.rglob("test_*.py")), ids=lambda path: str(path.relative_to(TESTS)))
def test_settled_rows_exist(path: Path) -> None:
    unknown = [row for row in claimed(path.read_text()) if row not in ROWS]
    assert not unknown, f"{path.name} names rows that no lecture has: {unknown}"


def test_a_row_that_does_not_exist_is_found() -> None:
    source = '@pytest.mark.lecture("L0-48", "L0-480")\ndef test_it(): ...\npytestmark = mark.lecture("L9-01")'
    assert [row for row in claimed(source) if row not in ROWS] == ["L0-480", "L9-01"]


def test_worked_examples_point_at_rows() -> None:
    assert {row for case in CASES.values() for row in case["checklist_rows"]} <= ROWS
