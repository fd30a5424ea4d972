"""The command line, called in this process: exit code, stdout and stderr of a command, and a tiny run to work with."""

import io
import json
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from heddle.cli.main import run
from tests.lessons.sandboxes import sandbox as sandbox
from tests.running import make_quick

# The smallest run that is one: a few steps of a few thousand weights.
TINY = ["tokenizer=bytes", "dim=16", "depth=1", "heads=2", "context=16", "batch=4", "steps=4", "threads=1"]
TINY += ["evaluate_every=4", "precision=fp32", "products=torch", "compile=off", "device=cpu"]


def yielding(words: Sequence[str]) -> list[str]:
    """The same words without those of TINY that others say otherwise: a setting can be given once."""
    keys = {word.partition("=")[0] for word in words if word not in TINY}
    return [word for word in words if word not in TINY or word.partition("=")[0] not in keys]


@dataclass(frozen=True)
class Result:
    """What a command left: its exit code and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one document that stdout is."""
        return json.loads(self.out)


Heddle = Callable[..., Result]


def make_quick_and_large(patch: pytest.MonkeyPatch) -> None:
    """Every machine is equally fast and large."""
    make_quick(patch)
    for name in ("plan", "need"):
        patch.setattr(import_module(f"heddle.runs.{name}"), "available_memory", lambda device: 2**34)


@pytest.fixture
def heddle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Heddle:
    """Call the command line in the test's own folder: `heddle("train", "corpus.txt", *TINY)`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    make_quick_and_large(monkeypatch)

    def call(*words: str) -> Result:
        capsys.readouterr()
        code = 0
        try:
            run(yielding(words))
        except SystemExit as end:
            code = int(end.code or 0)
        printed = capsys.readouterr()
        return Result(code, printed.out, printed.err)

    return call


def tree(folder: Path) -> dict[Path, bytes | None]:
    """Every file and folder, with what is in it."""
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.fixture
def refused(heddle: Heddle, tmp_path: Path) -> Callable[..., str]:
    """Call what must be refused: exit code 2, one line on stderr, nothing changed on the disk. Returns the line.

    With `--json` the same words must come as the one document on stdout, whatever was told on stderr before.
    """

    def call(*words: str) -> str:
        before = tree(tmp_path)
        plain, as_json = heddle(*words), heddle(*words, "--json")
        assert (plain.code, as_json.code) == (2, 2), (plain, as_json)
        assert plain.err.startswith("heddle: ")
        assert plain.err.count("\n") == 1, plain.err
        line = plain.err.removeprefix("heddle: ").rstrip("\n")
        assert as_json.json == {"error": line}
        assert "Traceback" not in plain.out + as_json.err
        after = tree(tmp_path)
        assert after == before, after.keys() ^ before.keys()
        return line

    return call


@pytest.fixture(scope="session")
def woven() -> str:
    draw = random.Random(0)
    return "\n".join(
        " ".join(draw.choices(["warp", "weft", "heddle", "shed", "loom", "thread"], k=9)) for _ in range(60)
    )


@pytest.fixture
def corpus(tmp_path: Path, woven: str) -> str:
    """A text, `corpus.txt` in the test's folder."""
    (tmp_path / "corpus.txt").write_text(woven)
    return "corpus.txt"


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, woven: str) -> Path:
    """One run for all tests; take a copy to change it."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "corpus.txt").write_text(woven)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        make_quick_and_large(patch)
        run(["train", "corpus.txt", *TINY, "save_every=2", "--name", "a"])
    return folder / "runs" / "a"


@pytest.fixture
def run_a(heddle: Heddle, trained: Path, tmp_path: Path) -> Path:
    """`runs/a` in the test's folder: a finished run of four steps."""
    return shutil.copytree(trained, tmp_path / "runs" / "a")
