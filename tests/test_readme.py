"""The README is short, in plain sentences; every command has a page and a call."""

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

from heddle.cli.main import GROUPS, make_app
from tests.fences import FENCE, PAGES, ROOT, commands, fences

README = (ROOT / "README.md").read_text(encoding="utf-8")
WRITTEN = [*PAGES, *sorted((ROOT / "heddle" / "lessons" / "pages").glob("*.md"))]
LONGEST = 25


def sentences(text: str) -> list[str]:
    """The prose of a page: no front matter, code, tables, headings, comments, addresses, or marks of the site's grids."""
    text = re.sub(r"\A---\n.*?^---\n", "", text, flags=re.M | re.S)
    text = re.sub(r"<!--.*?-->", "", FENCE.sub("", text), flags=re.S)
    text = re.sub(r"^(?:#|\||\(|!|:::|\[\w+\]:).*$", "", text, flags=re.M)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    blocks = re.split(r"\n\s*\n|^\s*(?:[-*]|\d+\.) ", text, flags=re.M)
    return [
        sentence
        for block in blocks
        for sentence in re.split(r"(?<=[.!?:;])\s+(?=[A-Z`*\[0-9])", " ".join(block.split()))
        if sentence
    ]


def test_sentences_are_found() -> None:
    page = "---\nlesson: 1\n---\n# A long heading\n\nOne. Two:\n\n- three\n- four. Five\n\n| six |\n\n```text\nseven\n```\n"
    page += ":::{grid} 2\n:::\n[0]: page.md\n"
    assert sentences(page) == ["One.", "Two:", "three", "four.", "Five"]


def test_the_readme_is_at_most_200_lines() -> None:
    assert README.count("\n") <= 200
    assert README.count("](docs/images/") == 1
    assert [command.line.split("#")[0].strip() for command in commands(fences(README)[0].body)] == [
        "make demo",
        "make test",
    ]


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_sentences_are_short(page: Path) -> None:
    long = [each for each in sentences(page.read_text(encoding="utf-8")) if len(each.split()) > LONGEST]
    assert not long, "\n".join(long)


def known() -> set[str]:
    """Every command, with those of groups as two words."""
    single = {name for name in make_app() if not name.startswith("-")} - {name for name, _ in GROUPS}
    return single | {f"{group} {name}" for (group, _), inside in GROUPS.items() for name, _, _ in inside}


def test_every_command_is_shown_on_a_page() -> None:
    consoles = [
        fence for page in PAGES for fence in fences(page.read_text(encoding="utf-8")) if fence.language == "console"
    ]
    calls = {" ".join(words) for fence in consoles for words in re.findall(r"\bheddle (\w+)(?: (\w+))?", fence.body)}
    shown = {name for name in known() if any(f"{call} ".startswith(f"{name} ") for call in calls)}
    assert known() - shown == set()


def test_every_command_has_a_call_that_exists() -> None:
    page = (ROOT / "docs/guides/python.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `heddle (.*?)\|(.*)\|$", page, re.MULTILINE)
    assert len(rows) > 10
    for call in {call for _, cell in rows for call in re.findall(r"`(heddle\.[\w.]+)`", cell)}:
        module, _, name = call.rpartition(".")
        assert callable(getattr(import_module(module), name)), call
    named = {words.split()[0].strip("`") for words, _ in rows}
    # This one lists names, and computes nothing.
    assert {name.split()[0] for name in known()} - named <= {"presets"}
    assert named <= {name.split()[0] for name in known()}


def templates() -> list[str]:
    """Every text in heddle's code, with {} for what it inserts; a line that is built from several is one."""
    texts = []
    for path in (ROOT / "heddle").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                texts.append(
                    "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return texts


def test_the_messages_of_the_page_are_in_the_code() -> None:
    """Each message of the tables, part by part between the … that stand for values."""
    page = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
    messages = re.findall(r"^\| `(.+?)` \|", page, re.MULTILINE)
    assert len(messages) >= 50
    texts = "\n".join(templates())
    for message in messages:
        pattern = r"[^\n]*?".join(re.escape(part.strip()) for part in message.strip("…").split("…"))
        assert re.search(pattern, texts), message
    assert not re.search("the loom is too small", texts)
