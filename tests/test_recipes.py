"""The recipes: their run files are valid, and docs/evidence/results.md and recipes/README.md name each.

What they reach is measured, not tested here.
"""

import re
import sys
import tomllib
from pathlib import Path

import pytest

from heddle.config import RunConfig
from tests.programs import ROOT, finished

RECIPES = sorted((ROOT / "recipes").glob("*.toml"))
SCRIPTS = sorted(path for path in (ROOT / "recipes").glob("*.py") if path.stem != "common")
PAGE = (ROOT / "recipes/README.md").read_text(encoding="utf-8")
RESULTS = (ROOT / "docs/evidence/results.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_is_a_run_file_with_a_result(path: Path) -> None:
    RunConfig.of(tomllib.loads(path.read_text(encoding="utf-8")))
    assert f"recipes/{path.name}" in RESULTS


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_names_its_command_and_has_a_result(path: Path) -> None:
    command = f"python recipes/{path.name}"
    assert command in path.read_text(encoding="utf-8")
    assert command in RESULTS
    assert f"| `{command}" in PAGE


def test_the_page_names_scripts_and_run_files_that_are_there() -> None:
    named = set(re.findall(r"recipes/([\w-]+\.(?:py|toml))", PAGE))
    assert named - {path.name for path in [*SCRIPTS, *RECIPES]} == set()
    written = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "recipes").glob("*.py"))
    options = set(re.findall(r"(?<=[ `])--[a-z]+", PAGE)) - {"--help", "--name"}
    assert {option for option in options if f'"{option}"' not in written} == set()


@pytest.mark.parametrize(
    ("path", "seeds"),
    [*((path, "0") for path in SCRIPTS), (SCRIPTS[0], "-1"), (SCRIPTS[0], "two")],
    ids=lambda value: value.stem if isinstance(value, Path) else value,
)
def test_a_script_needs_at_least_one_seed(path: Path, seeds: str, tmp_path: Path) -> None:
    done = finished([sys.executable, str(path), f"--seeds={seeds}"], cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.endswith(f"--seeds: {seeds!r} is not a whole number of at least 1\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["multi30k.py", "--data", "texts"], "texts has no train.en.gz; name the folder: --data FOLDER"),
        (["sst2.py", "--data", "texts"], "texts has no train.txt; name the folder: --data FOLDER"),
        (["norms.py", "texts/a.txt"], "texts has no a.txt; name the text: python recipes/norms.py input.txt"),
        (["shakespeare.py", "a.txt"], " has no a.txt; name the text: python recipes/shakespeare.py input.txt"),
    ],
)
def test_a_script_without_its_data_says_where_it_looked(words: list[str], message: str, tmp_path: Path) -> None:
    done = finished([sys.executable, str(ROOT / "recipes" / words[0]), *words[1:]], cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.endswith(f"{message}\n")
