"""The reference has every public name, command, option, key, preset and file of a run, and a sentence about each."""

import importlib
import inspect
from pathlib import Path
from typing import Literal

import pytest
from pydantic import Field

import heddle
from heddle import config
from heddle.cli.keys import SECTIONS
from heddle.cli.main import make_app
from heddle.config.base import Config
from scripts.reference import api, commands, fields, pages, run_directory
from scripts.reference.text import escaped, prose, with_code


@pytest.fixture(scope="module")
def reference() -> dict[str, str]:
    return pages.pages()


def test_one_page_has_a_line_for_every_name(reference: dict[str, str]) -> None:
    lines = reference["names.rst"].split("\n   * - ")
    for package in api.packages():
        for each in api.public(package):
            assert sum(line.startswith(f":py:obj:`{each.name} <{each.path}>`") for line in lines) == 1, each.path
    for name, _ in commands.names():
        assert sum(line.startswith(f":doc:`heddle {name} <") for line in lines) == 1, name
    for section, configs in SECTIONS.items():
        for row in (row for each in configs for row in fields.rows(each)):
            assert sum(line.startswith(f":ref:`{row.name} <keys-of-{section}>`") for line in lines) == 1, row.name
    for name in config.preset_names():
        assert sum(line.startswith(f":ref:`{name} <preset-{name}>`") for line in lines) == 1, name
    assert [line for line in lines if line.endswith("     -")] == []


def test_the_first_page_of_the_reference_has_a_door_for_each_part(reference: dict[str, str]) -> None:
    for door in pages.DOORS:
        assert f":link: {door}\n" in reference["index.rst"]
        assert f"{door}.rst" in reference


@pytest.mark.parametrize("package", ["heddle", *api.packages()])
def test_every_public_name_has_a_docstring_and_a_place(reference: dict[str, str], package: str) -> None:
    page = reference["api/index.rst" if package == "heddle" else f"api/{package}.rst"]
    module = importlib.import_module(package)
    assert module.__doc__
    for name in module.__all__:
        value = getattr(module, name)
        place = (
            f"{api.homes()[f'{value.__module__}.{value.__qualname__}']}>`"
            if package == "heddle"
            else f":: {package}.{name}"
        )
        assert place in page, name
        assert not api.is_documented(value) or len(inspect.getdoc(value) or "") > 10, name


def test_every_public_package_has_a_page(reference: dict[str, str]) -> None:
    names = [path.parent.name for path in Path(heddle.__file__).parent.glob("*/__init__.py")]
    public = {name for name in names if importlib.import_module(f"heddle.{name}").__all__}
    assert {f"api/heddle.{name}.rst" for name in public} <= reference.keys()


def test_public_methods_have_docstrings() -> None:
    missing = [
        f"{each.path}.{name}"
        for package in api.packages()
        for each in api.public(package)
        if inspect.isclass(each.value)
        for name, value in vars(each.value).items()
        if not name.startswith("_") and inspect.isfunction(value) and value.__module__.startswith("heddle")
        if not inspect.getdoc(getattr(each.value, name))
    ]
    assert missing == []


def test_every_command_and_option_is_listed(reference: dict[str, str]) -> None:
    app = make_app()
    for name, _ in commands.names():
        words = name.split()
        page = reference[f"commands/{words[0]}.rst"]
        assert f"heddle {name}\n" in page
        command = app[words[0]] if len(words) == 1 else app[words[0]][words[1]]
        shown = [argument for argument in command.assemble_argument_collection() if argument.show]
        assert shown
        for argument in shown:
            assert f"``{argument.names[0]}``" in page, (name, argument.names)


def test_options_have_types_defaults_and_help(reference: dict[str, str]) -> None:
    page = " ".join(reference["commands/generate.rst"].split())
    assert "* - ``--temperature`` - number - - Sampling temperature: higher is more random" in page
    assert "* - ``RUN`` - text - ``required`` - A run directory" in page
    assert "* - ``--weights`` - ``trained``, ``int8``, ``int4`` - ``trained`` - int8 or int4" in page
    assert "--no-json" not in page
    assert "--empty-prompt" not in page


def test_every_key_of_a_run_file_is_explained(reference: dict[str, str]) -> None:
    page = reference["run-files.rst"]
    silent = []
    for configs in SECTIONS.values():
        for each in configs:
            for row in fields.rows(each):
                assert f"``{row.name}``" in page
                if not row.comment and row.name != "kind":
                    silent.append(f"{each.__name__}.{row.name}")
    assert silent == []


def test_every_field_of_a_config_is_in_its_table(reference: dict[str, str]) -> None:
    for name in config.__all__:
        value = getattr(config, name)
        if inspect.isclass(value) and issubclass(value, Config):
            entry = (
                reference["api/heddle.config.rst"]
                .partition(f"autoclass:: heddle.config.{name}(")[2]
                .partition("\n.. auto")[0]
            )
            for field in value.model_fields:
                assert f"   * - ``{field}``" in entry, (name, field)


class Loom(Config):
    """A loom."""

    # How the warp is held,
    # and by what.
    warp: Literal["loose", "tight"] = "tight"
    threads: int = Field(default=8, ge=1, le=64)  # in the warp
    weft: tuple[str, ...] = ()
    """What is thrown."""
    name: str | None = None
    inner: config.RotaryConfig = Field(default_factory=config.RotaryConfig)


def test_a_field_has_its_type_default_and_comment() -> None:
    rows = {row.name: row[1:] for row in fields.rows(Loom)}
    assert rows["warp"] == ("``loose``, ``tight``", "tight", "How the warp is held, and by what.")
    assert rows["threads"] == ("integer ≥ 1, ≤ 64", "8", "in the warp")
    assert rows["weft"] == ("list of text", "[]", "What is thrown.")
    assert rows["name"] == ("text or none", "none", "")
    assert rows["inner"][0] == ":py:class:`~heddle.config.positions.RotaryConfig`"


def test_presets_have_their_counts(reference: dict[str, str]) -> None:
    page = reference["presets.rst"]
    assert (
        " ".join(page.split()).count("* - :ref:`gpt2-small <preset-gpt2-small>` - 124,439,808 - decoder - 12 - 768")
        == 1
    )
    for name in config.preset_names():
        assert f".. _preset-{name}:" in page


def test_every_file_of_a_run_is_listed(tmp_path: Path) -> None:
    tokenizer = heddle.train_tokenizer("bytes", [])
    model = heddle.build(heddle.sized(depth=1, vocab_size=tokenizer.vocab_size, context=8, dim=16))
    heddle.save(model, tmp_path / "run", tokenizer)
    written = {str(path.relative_to(tmp_path / "run")) for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert written
    assert written <= run_directory.FILES.keys()


def test_markup_in_docstrings_stands_for_itself() -> None:
    assert escaped("a*b |x| n_ `f(x) * 2` `name`") == r"a\*b \|x\| n\_ ``f(x) * 2`` `name`"
    assert prose("`a`\n  and *b*") == r"``a`` and \*b\*"
    assert with_code("one\n\n    x = 1\n\ntwo") == "one\n\n.. code-block:: python\n\n       x = 1\n\ntwo"


def test_unchanged_pages_are_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "pages", lambda: {"a.rst": "one", "b/c.rst": "two"})
    pages.write(tmp_path)
    before = (tmp_path / "a.rst").stat().st_mtime_ns
    monkeypatch.setattr(pages, "pages", lambda: {"a.rst": "one"})
    assert pages.write(tmp_path) == [tmp_path / "a.rst"]
    assert (tmp_path / "a.rst").stat().st_mtime_ns == before
    assert not (tmp_path / "b/c.rst").exists()
