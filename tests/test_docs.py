"""Every fenced block and every link of the pages: run, or compared with what exists. A block of an unknown kind is an error.

A page runs from top to bottom in an empty folder. Before a block, the folder gets the texts that the page has named until then.
Runs are made by the page's own commands.
"""

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Heddle
from tests.cli.conftest import heddle as heddle
from tests.fences import PAGES, ROOT, Command, agrees, commands, compared, compile_cell, fences, kind_of, read_toml

LESSONS = sorted((ROOT / "heddle/lessons/pages").glob("*.md"))
LINKED = [
    *PAGES,
    *(ROOT / "docs/lessons" / page.name for page in LESSONS),
    ROOT / "CHANGELOG.md",
    ROOT / "recipes/README.md",
]

# What commands read, by the names that pages use.
CYCLE = [
    "the",
    "warp",
    "is",
    "held",
    "and",
    "the",
    "weft",
    "is",
    "thrown",
    "while",
    "the",
    "heddle",
    "lifts",
    "the",
    "threads",
    "it",
    "owns",
]
LINES = [" ".join(CYCLE[(start + step) % len(CYCLE)] for step in range(9)) for start in range(80)]


def talk(n: int) -> dict[str, Any]:
    """A conversation of one question."""
    return {
        "messages": [{"role": "user", "content": f"What is {n} plus 3?"}, {"role": "assistant", "content": str(n + 3)}]
    }


FILES = {
    "my.txt": LINES,
    "other.txt": LINES[7:30],
    "notes.jsonl": [json.dumps({"text": line, "body": line}) for line in LINES],
    "pairs.tsv": ["source\ttarget", *(f"warp {n}\tweft {n}" for n in range(60))],
    "reviews.csv": [
        "text,label",
        *(f"{'A fine' if n % 2 else 'A dull'} film {n},{'good' if n % 2 else 'bad'}" for n in range(60)),
    ],
    "talks.jsonl": [json.dumps(talk(n)) for n in range(60)],
}
# The smallest runs. These settings replace what a page's commands say, unless the block says `whole`.
SIZES = {"dim": "16", "depth": "1", "heads": "2", "context": "64"}
QUICK = {"batch": "4", "steps": "4", "evaluate_every": "4", "threads": "1", "precision": "fp32", "products": "torch"}
NUMBER = r"[-+]?\d[\d,.]*(?:e[-+]?\d+)?"


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def shrunk(words: list[str]) -> list[str]:
    """A call of `heddle train` with the smallest sizes; a run to start from and a run file have their own."""
    if words[0] != "train" or "--resume" in words:
        return words
    own = {"from", "preset"} & {word.partition("=")[0] for word in words} or any(
        word.endswith(".toml") for word in words
    )
    changed = {**({} if own else SIZES), **QUICK}
    if any("decoder.block.mixer=" in word for word in words):
        changed.pop("heads")  # a mixer of the page's own has its own settings
    rest = [word for word in words if word.partition("=")[0] not in {*changed, "minutes", "epochs"}]
    if not own and not any(word.startswith("tokenizer=") for word in words):
        rest.append("tokenizer=bytes")
    return [*rest, *(f"{key}={value}" for key, value in changed.items())]


@pytest.fixture
def folder(heddle: Heddle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder, from which a page's own modules can be imported."""
    known = set(sys.modules)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield tmp_path
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def put_named_files(folder: Path, prose: str) -> None:
    """Write the files of `FILES` that a page's prose has named."""
    for name, lines in FILES.items():
        if f"`{name}`" in prose and not (folder / name).exists():
            (folder / name).write_text("\n".join(lines) + "\n")


def execute(command: Command, heddle: Heddle, whole: bool) -> None:
    """Run one command, and compare what it prints with what the page shows. Numbers of shrunk runs may differ."""
    words = command.words[1:]
    file = words[words.index(">") + 1] if ">" in words else None
    words = words[: words.index(">")] if file else words
    small = words if whole else shrunk(words)
    done = heddle(*small)
    printed = done.out if done.code == 0 else done.out + done.err
    if file:
        Path(file).write_text(done.out)
    # A finding ends with 1 and is shown; an error ends with 2, and its line is shown.
    allowed = {0, *[1] * bool(command.output), *[2] * ("heddle: " in command.output)}
    assert done.code in allowed, f"{command.line}: {done.code}\n{printed}"
    if command.output.strip():
        loose = NUMBER if not whole else None
        assert agrees(command.output, printed, loose), (
            f"$ {command.line}\n{printed}\n-- but the page has\n{command.output}"
        )


@pytest.mark.thorough
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_blocks_of_a_page_run(page: Path, heddle: Heddle, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = fences(page.read_text(encoding="utf-8"))
    namespace: dict[str, Any] = {"__name__": "__main__"}
    printed = ""
    for fence in blocks:
        place = f"{name_of(page)}:{fence.line}"
        put_named_files(folder, fence.prose)
        if fence.file and kind_of(fence) != "shown":
            Path(fence.file).parent.mkdir(parents=True, exist_ok=True)
            Path(fence.file).write_text(fence.body)
        if fence.language == "console":
            for command in commands(fence.body):
                if fence.is_run and command.is_run:
                    execute(command, heddle, "whole" in fence.words)
                else:
                    compared(command)
        elif fence.language == "python":
            code = compile(fence.body, place, "exec")
            if fence.is_run:
                capsys.readouterr()
                exec(code, namespace)
                printed = capsys.readouterr().out
        elif fence.language == "{code-cell}":
            compile_cell(fence, place)
        elif fence.language == "toml":
            read_toml(fence.body)
        elif fence.language == "json":
            json.loads(fence.body)
        elif "printed" in fence.words:
            assert agrees(fence.body, printed), f"{place}: printed is\n{printed}"
    for fence in blocks:
        kind_of(fence)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_what_a_command_needs_was_made_or_named_before(page: Path) -> None:
    """Also of commands that are not run: a reader types a page from top to bottom."""
    made: set[str] = set()
    missing = []
    for fence in fences(page.read_text(encoding="utf-8")):
        made |= {fence.file or ""}
        made |= set(re.findall(r"\"([\w./-]+)\"", fence.body)) if fence.language == "python" else set()
        calls = (
            [command for command in commands(fence.body) if "heddle" in command.words]
            if fence.language == "console"
            else []
        )
        for command in calls:
            needed, written = command.files()
            missing += [f"{fence.line}: {name}" for name in needed - made if f"`{name}`" not in fence.prose]
            made |= written | needed
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize("page", LESSONS, ids=name_of)
def test_the_cells_of_a_lesson_compile(page: Path) -> None:
    """The site's build executes them."""
    for fence in fences(page.read_text(encoding="utf-8")):
        if fence.language in ("{code-cell}", "python"):
            compile_cell(fence, f"{page.name}:{fence.line}")
        elif fence.language == "console":
            for command in commands(fence.body):
                compared(command)
        elif fence.language == "toml":
            read_toml(fence.body)
        kind_of(fence)


def test_the_blocks_are_counted() -> None:
    """Most are run: what is only compared has a reason, such as a server or a published model."""
    kinds = Counter(kind_of(fence) for page in PAGES for fence in fences(page.read_text(encoding="utf-8")))
    print(", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())))
    assert kinds["executed"] >= 50, kinds


def anchors(text: str) -> set[str]:
    """What a link may name in a page: its headings, as GitHub writes them, and MyST's targets."""
    plain = re.sub(r"^(```+).*?^\1", "", text, flags=re.M | re.S)
    headings = re.findall(r"^#+ (.+)$", plain, re.M)
    slugs = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
    return {*slugs, *re.findall(r"^\(([\w-]+)\)=$", plain, re.M)}


@pytest.mark.parametrize("page", LINKED, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"<!--.*?-->|^(```+).*?^\1|`[^`\n]+`", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        # By words, not by the file system: docs/lessons is a link to a folder elsewhere.
        target = Path(os.path.normpath(page.parent / path)) if path else page
        if target.is_relative_to(ROOT / "docs/reference"):
            continue  # the site's build writes it, and checks these links
        assert target.exists(), f"{name_of(page)} links to {link}"
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), f"{name_of(page)}: no heading for {link}"
