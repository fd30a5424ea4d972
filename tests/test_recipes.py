"""The recipes: their run files are valid, and docs/evidence/results.md and recipes/README.md name each.

What they reach is measured, not tested here.
"""

import re
import runpy
import tomllib
from pathlib import Path

import pytest

from heddle.config import RunConfig
from tests.programs import ROOT

RECIPES = sorted((ROOT / "recipes").glob("*.toml"))
SCRIPTS = sorted(path for path in (ROOT / "recipes").glob("*.py") if path.stem != "common")
PAGE = (ROOT / "recipes/README.md").read_text(encoding="utf-8")
RESULTS = (ROOT / "docs/evidence/results.md").read_text(encoding="utf-8")


def refusal(capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch, path: Path, *words: str) -> str:
    """What a script prints that ends with an error of its own."""
    patch.setattr("sys.argv", [str(path), *words])
    patch.syspath_prepend(path.parent)
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(path), run_name="__main__")
    output = capsys.readouterr()
    assert (end.value.code, output.out) == (2, "")
    return output.err


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
def test_a_script_needs_at_least_one_seed(
    path: Path, seeds: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = refusal(capsys, monkeypatch, path, f"--seeds={seeds}")
    assert line.endswith(f"--seeds: {seeds!r} is not a whole number of at least 1\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["multi30k.py", "--data", "texts"], "texts has no train.en.gz; name the folder: --data FOLDER"),
        (["sst2.py", "--data", "texts"], "texts has no train.txt; name the folder: --data FOLDER"),
        (["norms.py", "texts/a.txt"], "texts has no a.txt; name the text: python recipes/norms.py input.txt"),
        (["shakespeare.py", "a.txt"], " has no a.txt; name the text: python recipes/shakespeare.py input.txt"),
    ],
)
def test_a_script_without_its_data_says_where_it_looked(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    line = refusal(capsys, monkeypatch, ROOT / "recipes" / words[0], *words[1:])
    assert line.count("\n") == 1
    assert line.endswith(f"{message}\n")
