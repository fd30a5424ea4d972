"""The recipes: their run files are valid, and docs/results.md names each. What they reach is measured there, not tested here."""

import tomllib
from pathlib import Path

import pytest

from heddle.config import RunConfig
from tests.programs import ROOT

RECIPES = sorted((ROOT / "recipes").glob("*.toml"))
RESULTS = (ROOT / "docs/results.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_is_a_run_file_with_a_result(path: Path) -> None:
    RunConfig.of(tomllib.loads(path.read_text(encoding="utf-8")))
    assert f"recipes/{path.name}" in RESULTS


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.py")), ids=lambda path: path.stem)
def test_a_script_names_its_command_and_has_a_result(path: Path) -> None:
    if path.stem != "common":
        command = f"python recipes/{path.name}"
        assert command in path.read_text(encoding="utf-8")
        assert command in RESULTS
