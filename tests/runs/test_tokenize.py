"""Pieces of tokens: whoever makes them, whenever they were stopped, the store is the one that a single process makes."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import heddle.data.record_store
import heddle.data.store
import heddle.data.token_writer
import heddle.runs.pieces
import heddle.text.processes
from heddle.config import RunConfig
from heddle.data import open_store
from heddle.errors import HeddleError
from heddle.runs import Tokenized, tokenize
from heddle.runs.pieces import Pieces
from heddle.text import train_tokenizer
from tests.processes import InThread
from tests.programs import ROOT, finished
from tests.refusing import refusal
from tests.thorough import thorough

WORDS = ["the", "loom", "weaves", "a", "weft;", "is", "gone\n"]
Make = Callable[..., Tokenized]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches and pieces of a few characters, and threads in place of processes."""
    monkeypatch.setattr(heddle.data.store, "_BATCH", 60)
    monkeypatch.setattr(heddle.data.token_writer, "_PIECE", 70)
    monkeypatch.setattr(heddle.data.token_writer, "_SEAM", 20)
    monkeypatch.setattr(heddle.data.record_store, "BATCH", 3)
    monkeypatch.setattr(heddle.runs.pieces, "PIECE", 200)
    monkeypatch.setattr(heddle.text.processes, "subprocess", InThread)


def sentence(number: int) -> str:
    return " ".join([str(number), *(WORDS[(number * k) % 7] for k in range(1, number % 9 + 4))])


def write_sources(place: Path, kind: str) -> tuple[dict[str, Any], str]:
    """Sources of a kind in a directory: settings of the data, and the task."""
    file = place / "source.jsonl"
    rows: list[dict[str, Any]] = []
    for number in range(60):
        text, label = sentence(number), "xy"[number % 2]
        match kind:
            case "texts":
                rows.append({"text": text})
            case "classification":
                rows.append({"text": text, "label": label})
            case "regression":
                rows.append({"text": text, "label": number / 7})
            case "chat":
                roles = ("user", "assistant")
                rows.append({"messages": [{"role": role, "content": f"{role} {text}"} for role in roles]})
            case "translation":
                rows.append({"source": text, "target": f"{label} {text}"})
    if kind == "text":
        file = place / "source.txt"
        file.write_text("\n".join(map(sentence, range(60))))
        return {"sources": [str(file)]}, "next_token"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"sources": [str(file)]}, "next_token" if kind == "texts" else kind


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Tokenise sources of a kind: `make("a", part=(0, 2))` into the store `a`."""

    def made(store: str, kind: str = "texts", **more: Any) -> Tokenized:
        join = [str(tmp_path / each) for each in more.pop("join", ())]
        data, task = write_sources(tmp_path, kind)
        settings = {**data, "tokenizer": "bytes", "store": str(tmp_path / store), **more.pop("data", {})}
        train = more.pop("train", {})
        return tokenize(RunConfig.of({"data": settings, "task": task, "train": train}), join=join, **more)

    return made


def contents(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir()}


def pieces_in(root: Path) -> dict[str, tuple[bytes, int]]:
    """The files of pieces below a root, and when each was written."""
    files = (file for file in root.rglob("0*") if file.is_file())
    return {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in files}


def alone(make: Make, monkeypatch: pytest.MonkeyPatch, store: str, kind: str, **more: Any) -> None:
    """A store that a single process makes, without pieces."""
    with monkeypatch.context() as patch:
        patch.setattr(Pieces, "in_order", lambda self, *args: heddle.text.processes.in_order(*args))
        make(store, kind, **more)


@pytest.mark.parametrize("kind", ["text", "texts", "classification", "regression", "chat", "translation"])
@pytest.mark.parametrize("parts", [2, *thorough(1, 3)])
def test_joined_pieces_are_what_one_process_makes(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, parts: int
) -> None:
    """Each part on a root of its own, with another number of processes."""
    alone(make, monkeypatch, "alone", kind, data={"workers": 0})
    names: list[set[str]] = []
    for number in range(parts):
        workers = 0 if kind == "chat" else number
        made = make(f"root{number}", kind, part=(number, parts), data={"workers": workers})
        assert made.store is None
        names.append(set(pieces_in(tmp_path / f"root{number}.pieces")))
    assert made.pieces is not None
    assert made.pieces > 8
    assert sorted(name for each in names for name in each) == sorted(
        f"{number:06}.{end}" for number in range(made.pieces) for end in ("json", "npz")
    ), "each piece is made once"
    joined = make("joined", kind, join=[f"root{number}" for number in range(parts)])
    assert contents(tmp_path / "joined") == contents(tmp_path / "alone")
    assert joined.store is not None
    assert joined.store.fingerprint() == open_store(tmp_path / "alone").fingerprint()


@pytest.mark.parametrize("kind", ["texts", "classification"])
def test_what_was_stopped_goes_on(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """At every step of writing a piece; only what is missing is made."""
    alone(make, monkeypatch, "alone", kind)
    before: dict[str, tuple[bytes, int]] = {}
    stops = 0
    while not (tmp_path / "store").exists():
        with monkeypatch.context() as patch:
            for name in ("fill_file", "write_file"):
                patch.setattr(heddle.runs.pieces, name, stopping(getattr(heddle.runs.pieces, name), 2 + stops % 2))
            try:
                make("store", kind)
            except KeyboardInterrupt:
                stops += 1
        after = pieces_in(tmp_path / "store.pieces")
        whole = {name for name in before if name.replace("npz", "json") in before}
        assert all(after[name] == before[name] for name in whole if after), "what is complete is not made again"
        before = after
    assert stops > 4
    assert contents(tmp_path / "store") == contents(tmp_path / "alone")
    assert not (tmp_path / "store.pieces").exists()


def stopping(write: Callable[..., Any], calls: int) -> Callable[..., Any]:
    """A function that is stopped before one of its calls."""
    left = [calls]

    def stopped(*args: Any, **more: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return write(*args, **more)

    return stopped


def test_pieces_that_others_copied(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of a root, copied into another, are that root's pieces too."""
    alone(make, monkeypatch, "alone", "texts")
    for number in (0, 1):
        make(f"root{number}", part=(number, 2))
    shutil.copytree(tmp_path / "root1.pieces", tmp_path / "root0.pieces", dirs_exist_ok=True)
    assert not make("root0", part=(0, 2)).missing
    with monkeypatch.context() as patch:
        patch.setattr(Pieces, "_write", None)  # nothing is left to make
        make("root0")
    assert contents(tmp_path / "root0") == contents(tmp_path / "alone")


def test_what_is_missing_or_damaged_is_named(make: Make, tmp_path: Path) -> None:
    count = make("root0", part=(0, 2)).pieces
    assert make("root0", part=(0, 2)).missing == tuple(range(1, count or 0, 2))
    make("root1", part=(1, 2))
    (folder,) = (tmp_path / "root1.pieces").iterdir()
    (folder / "000003.json").unlink()
    damaged = folder / "000005.npz"
    damaged.write_bytes(damaged.read_bytes()[::-1])
    message = refusal(lambda: make("joined", join=["root0", "root1.pieces"]))
    assert message.startswith(f"2 of {count} pieces are not whole in ")
    assert message.endswith(f": 3 (missing), 5 ({damaged} is damaged); copy them there, or make them without --join")
    assert not (tmp_path / "joined").exists()
    assert make("root1", part=(1, 2)).missing == tuple(range(0, count or 0, 2)), "both were made again"
    make("joined", join=["root0", "root1"])


def test_pieces_of_something_else_are_not_taken(make: Make, tmp_path: Path) -> None:
    make("root", part=(0, 1))
    other = lambda **data: refusal(lambda: make("joined", join=["root"], data=data))  # noqa: E731
    assert other(validation=0.3) == f"{tmp_path / 'root.pieces'} has no pieces of these sources, settings and tokenizer"
    assert "has no pieces of these sources" in other(tokenizer="characters")
    (folder,) = (tmp_path / "root.pieces").iterdir()
    train_tokenizer("words", "some words", 40).save(folder / "tokenizer.json")
    assert f"0 ({folder / '000000.json'} is of another tokenizer), 1 (" in other()
    (tmp_path / "source.jsonl").write_text("")
    assert refusal(lambda: make("joined", join=["none"])) == f"{tmp_path / 'none.pieces'}: no such directory of pieces"
    with pytest.raises(HeddleError, match="leave one of them out"):
        make("joined", part=(0, 2), join=["root"])


def test_a_text_that_changes_while_it_is_read(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece knows the text that it was made from."""
    make("root", part=(0, 1))
    (folder,) = (tmp_path / "root.pieces").iterdir()
    entry = json.loads((folder / "000002.json").read_bytes())
    (folder / "000002.json").write_text(json.dumps({**entry, "texts": "0" * 64}))
    message = refusal(lambda: make("root"))
    assert message == f"{folder / '000002.npz'}: made from another text; remove it, and run the command again"


def test_a_complete_store_is_used(make: Make, tmp_path: Path) -> None:
    store = make("store").store
    assert store is not None
    (tmp_path / "store.pieces").mkdir()  # a process was killed after it had written the store
    again = make("store", part=(1, 2))
    assert again.store is not None
    assert again.store.fingerprint() == store.fingerprint()
    assert not (tmp_path / "store.pieces").exists()
    assert "made from something else (validation = 0.1 there and 0.3 here)" in refusal(
        lambda: make("store", data={"validation": 0.3})
    )


@pytest.mark.parametrize(
    "train", [{"device": "cuda:7", "precision": "fp32", "tf32": True}, {"device": "mps", "precision": "bf16"}]
)
def test_the_device_of_the_training_may_be_elsewhere(make: Make, tmp_path: Path, train: dict[str, Any]) -> None:
    make("here")
    make("there", train=train)
    assert contents(tmp_path / "here") == contents(tmp_path / "there")


def test_a_job_larger_than_a_piece(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pieces that it covers too are empty, and not missing."""
    monkeypatch.setattr(heddle.data.store, "_BATCH", 900)
    alone(make, monkeypatch, "alone", "texts")
    assert not make("root", part=(0, 1)).missing
    make("joined", join=["root"])
    assert contents(tmp_path / "joined") == contents(tmp_path / "alone")


def test_fingerprints_of_stores(make: Make, tmp_path: Path) -> None:
    """Wherever they lie; and the ids count, but no file is read."""
    first = make("a").store
    shutil.copytree(tmp_path / "a", tmp_path / "elsewhere" / "b")
    assert first is not None
    assert open_store(tmp_path / "elsewhere" / "b").fingerprint() == first.fingerprint()
    other = make("c", data={"validation": 0.3}).store
    assert other is not None
    assert other.fingerprint() != first.fingerprint()
    meta = tmp_path / "a" / "meta.json"
    changed = json.loads(meta.read_bytes())
    changed["files"]["train.tokens"] = "0" * 64
    meta.write_text(json.dumps(changed))
    assert open_store(tmp_path / "a").fingerprint() != first.fingerprint()


@pytest.mark.thorough
def test_processes_that_are_killed(tmp_path: Path) -> None:
    """In earnest, with SIGKILL; `python -m benchmarks.tokenise` does it for a gigabyte."""
    words = ["--bytes", "6e5", "--piece", "40000", "--kills", "1", "--folder", str(tmp_path), "--json"]
    ended = finished([sys.executable, "-m", "benchmarks.tokenise", *words], cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout)
    assert result["kills"] == 2
    assert result["pieces"] == [8, 8]
    assert result["differing_files"] == []
