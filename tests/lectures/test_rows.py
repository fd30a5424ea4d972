"""Every row of the lectures is settled by a test that runs, or open under a word; the page that shows it is up to date."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lectures.golden import CASES, ROWS
from tests.lectures.page import PAGE, code, page, tried
from tests.lectures.reach import reached
from tests.lectures.rows import (
    LECTURES,
    OPEN,
    ROOT,
    TESTS,
    WORDS,
    claims,
    faults,
    settled,
    strings_by_test,
    uncompared,
    unsaid,
)

IDS = [row["id"] for row in LECTURES["rows"]]


def test_every_row_is_settled_or_open() -> None:
    assert len(IDS) == len(set(IDS)) == 310
    problems = faults(IDS, settled(), OPEN)
    assert not problems, "\n".join(problems)


def test_what_is_wrong_with_an_account_is_found() -> None:
    tests = {"L0-01": ["a::b"], "L0-03": ["a::b"], "L2-01": ["a::b"]}
    words = {"L0-02": "look", "L0-03": "look", "L9-99": "look", "L0-04": "later"}
    problems = faults(["L0-01", "L0-02", "L0-03", "L0-04", "L0-05", "L2-01", "L2-77"], tests, words)
    assert [line.split()[0] for line in problems] == ["L0-03", "L0-05", "L2-01", "L9-99", "L0-04"]


# What is built has no open rows: the model, its masks, norms, positions, experts, its counts and costs, its presets.
OPEN_KINDS = {"visual", "workflow", "variant", "system", "convention"}


def test_no_formula_number_or_cost_is_open() -> None:
    kinds = {row["id"]: row["kind"] for row in LECTURES["rows"]}
    assert {kinds[row] for row in OPEN} <= OPEN_KINDS
    assert set(OPEN.values()) <= set(WORDS)


@pytest.mark.parametrize("path", sorted(TESTS.rglob("test_*.py")), ids=lambda path: str(path.relative_to(TESTS)))
def test_settled_rows_exist(path: Path) -> None:
    unknown = [row for row, _ in claims(path.read_text(encoding="utf-8")) if row not in ROWS]
    assert not unknown, f"{path.name} names rows that no lecture has: {unknown}"
    ownerless = [row for row, test in claims(path.read_text(encoding="utf-8")) if not test.startswith("test_")]
    assert not ownerless, f"{path.name} settles rows without a test: {ownerless}"


def test_marks_are_read_wherever_they_stand() -> None:
    source = '@pytest.mark.lecture("L0-48", "L0-480")\ndef test_it(): ...\npytestmark = mark.lecture("L9-01")'
    marks = set(claims(source))
    assert marks == {("L0-48", "test_it"), ("L0-480", "test_it"), ("L9-01", "")}
    assert {row for row, _ in marks if row not in ROWS} == {"L0-480", "L9-01"}


def test_a_skipped_test_settles_nothing(tmp_path: Path) -> None:
    shutil.copy(TESTS / "lectures" / "skipping.py", tmp_path / "test_it.py")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = lecture(*ids): rows\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HEDDLE_CHECKED": ""}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "2 failed, 1 passed, 1 skipped, 1 error" in ran.stdout, ran.stdout + ran.stderr
    assert "settles rows of the lectures, so it must run" in ran.stdout


def test_worked_examples_point_at_rows() -> None:
    assert {row for case in CASES.values() for row in case["checklist_rows"]} <= ROWS


def test_every_result_of_every_worked_example_is_compared() -> None:
    assert len(CASES) == 42
    files = [path for path in TESTS.rglob("test_*.py") if path.name != Path(__file__).name]
    missing = uncompared(CASES, [path.read_text(encoding="utf-8") for path in files])
    assert not missing, "no test names these results:\n" + "\n".join(missing)


def test_a_result_that_nothing_compares_is_found() -> None:
    cases = {
        "one": {"outputs": ["sum", "row1", "row2"]},
        "two": {"outputs": ["sum", "mean"]},
        "three": {"outputs": "a"},
    }
    source = """
KEYS = ["row1"]
def helper(): return Case("two")["mean"]
def test_it(): assert Case("one")[f"{way}um"] == Case("two")["sum"] == KEYS
def test_other(): assert "row2"
"""
    assert uncompared(cases, [source]) == ["one: row2", "two: mean", "three: a"]


def test_a_row_is_settled_with_the_worked_examples_it_asks_for() -> None:
    checks = {row["id"]: row["check"] for row in LECTURES["rows"]}
    missing = unsaid(checks, settled(), CASES)
    assert not missing, "no test that settles these rows names their worked example:\n" + "\n".join(missing)


def test_an_example_that_no_test_of_its_row_names_is_found(tmp_path: Path) -> None:
    source = """
NAMES = ["moe"]
@parametrize("name", NAMES)
def test_one(name): Case(name)
def test_two(): Case("mlp")
def test_three(): assert config.kind == "mlp"
"""
    (tmp_path / "test_it.py").write_text(source)
    assert strings_by_test(source) == {"test_one": {"name", "moe"}, "test_two": {"mlp"}}
    tests = {"L0-01": ["test_one", "test_three"], "L0-02": ["test_two"]}
    tests = {row: [f"{tmp_path}/test_it.py::{name}" for name in names] for row, names in tests.items()}
    checks = {"L0-01": "golden `moe` and `mlp`", "L0-02": "`mlp`, not `pages`", "L0-03": "`mlp`, open"}
    assert unsaid(checks, tests, CASES) == ["L0-01: mlp"]


def test_what_a_test_comes_to_is_found_through_its_helpers() -> None:
    here = TESTS / "lectures"

    def files(path: Path, test: str) -> set[str]:
        return {str(file.relative_to(ROOT / "heddle")) for file in reached(path, test)}

    assert files(here / "test_golden.py", "test_activations") == {"nn/activations.py"}
    assert {"nn/attention.py", "nn/mask.py", "nn/scope.py"} <= files(here / "test_golden.py", "test_attention")
    assert "generate/text.py" in files(
        here / "test_rows_model.py", "test_any_function_of_the_past_trains_is_kept_and_writes"
    )
    assert "cli/main.py" in files(TESTS / "cli" / "test_commands.py", "test_it_writes")
    assert "model/stack.py" in files(TESTS / "laws" / "test_laws.py", "test_order_matters")
    assert not files(here / "test_rows.py", "test_worked_examples_point_at_rows") - {"model/transformer.py"}


def test_every_settled_row_stands_beside_code() -> None:
    tests = settled()
    result = tried(tests)
    assert [row for row in tests if row in IDS and not result[row] and row not in code()] == []


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "update it: python -m tests.lectures.page"
