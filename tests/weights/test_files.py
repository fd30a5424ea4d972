"""Atomic writing: a target is whole or absent whatever happens, and a manifest finds every damage."""

import errno
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from heddle.errors import HeddleError
from heddle.weights import files
from heddle.weights.files import manifest, remove_leftovers, verify, write_directory, write_file, write_manifest
from tests import programs


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_directory_appears_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "run"
    with write_directory(target) as partial:
        assert partial.parent == target.parent
        assert partial.name.startswith(".")
        assert partial.name.endswith(".partial")
        (partial / "sub").mkdir()
        (partial / "sub" / "a").write_text("1")
        assert not target.exists()
    assert (target / "sub" / "a").read_text() == "1"
    assert names(target.parent) == ["run"]


@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt(), FileNotFoundError(2, "gone", "x")])
@pytest.mark.parametrize("exists", [True, False])
def test_an_error_inside_changes_nothing(tmp_path: Path, error: BaseException, exists: bool) -> None:
    target = tmp_path / "run"
    if exists:
        target.mkdir()
        (target / "a").write_text("old")

    def save() -> None:
        with write_directory(target, replace=True) as partial:
            (partial / "a").write_text("new")
            raise error

    with pytest.raises(type(error)) as caught:
        save()
    assert caught.value is error
    assert names(tmp_path) == (["run"] if exists else [])
    assert not exists or (target / "a").read_text() == "old"


def test_an_existing_target_is_replaced_only_when_asked(tmp_path: Path) -> None:
    target, file = tmp_path / "run", tmp_path / "file"
    for content in ("old", "new"):
        with write_directory(target, replace=content == "new") as partial:
            (partial / content).touch()
        write_file(file, content.encode(), replace=content == "new")
    assert names(target) == ["new"]
    assert file.read_bytes() == b"new"
    with pytest.raises(HeddleError, match="already exists; nothing was changed"), write_directory(target):
        pytest.fail("the block must not start")
    with pytest.raises(HeddleError, match="already exists; nothing was changed"):
        write_file(file, b"newer")
    assert names(tmp_path) == ["file", "run"]


def test_a_target_that_appeared_meanwhile_is_kept(tmp_path: Path) -> None:
    with pytest.raises(HeddleError, match="already exists"), write_directory(tmp_path / "run"):
        (tmp_path / "run").mkdir()
    assert names(tmp_path) == ["run"]


def test_a_link_is_replaced_and_what_it_points_at_is_kept(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a").touch()
    (tmp_path / "run").symlink_to("real")
    with write_directory(tmp_path / "run", replace=True) as partial:
        (partial / "b").touch()
    assert names(tmp_path) == ["real", "run"]
    assert names(tmp_path / "real") == ["a"]
    assert names(tmp_path / "run") == ["b"]


class RustError(Exception):
    """As safetensors has one: not an OSError."""


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), RustError("I/O error: No space left on device")]
)
def test_a_full_disk_is_one_line(tmp_path: Path, error: Exception) -> None:
    message = r"disk full while writing .*run: .* nothing was changed"
    with pytest.raises(HeddleError, match=message), write_directory(tmp_path / "run"):
        raise error
    assert names(tmp_path) == []


def test_a_full_disk_while_flushing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(HeddleError, match="disk full"), write_directory(tmp_path / "run") as partial:
        (partial / "a").touch()
    with pytest.raises(HeddleError, match="disk full"):
        write_file(tmp_path / "file", b"data")
    assert names(tmp_path) == []


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HeddleError, match=r"cannot write .*run"), write_directory(tmp_path / "file" / "run"):
        pytest.fail("the block must not start")
    with pytest.raises(HeddleError, match="cannot write"):
        write_file(tmp_path / "file" / "a", b"")


def test_everything_is_flushed_before_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    sync, rename = files._sync, Path.rename

    def note_rename(self: Path, target: Path) -> Path:
        events.append("rename")
        return rename(self, target)

    def note_sync(path: Path) -> None:
        events.append(path.name if path.suffix != ".partial" else "partial")
        sync(path)

    monkeypatch.setattr(files, "_sync", note_sync)
    monkeypatch.setattr(Path, "rename", note_rename)
    with write_directory(tmp_path / "run") as partial:
        (partial / "sub").mkdir()
        (partial / "sub" / "a").touch()
        (partial / "b").touch()
    assert events == ["a", "sub", "b", "partial", "rename", tmp_path.name]


def test_the_manifest_finds_every_damage(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "sub" / "b").write_bytes(b"")
    entries = manifest(tmp_path)
    assert list(entries) == ["a", "sub/b"]
    assert entries["a"] == {
        "size": 3,
        "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    }
    write_manifest(tmp_path, {"step": 3})
    assert json.loads((tmp_path / "manifest.json").read_text()) == {"step": 3, "files": entries}
    assert manifest(tmp_path) == entries
    assert verify(tmp_path) == []
    (tmp_path / "more").touch()
    assert verify(tmp_path) == []
    (tmp_path / "a").write_bytes(b"abd")
    assert verify(tmp_path) == ["a: sha256 differs from the manifest"]
    (tmp_path / "a").write_bytes(b"ab")
    assert verify(tmp_path) == ["a: size is 2 bytes, the manifest says 3"]
    (tmp_path / "sub" / "b").unlink()
    assert verify(tmp_path)[1:] == ["sub/b: missing"]
    with pytest.raises(ValueError, match="files"):
        write_manifest(tmp_path, {"files": {}})


def test_a_wrong_manifest_is_a_problem(tmp_path: Path) -> None:
    assert verify(tmp_path) == ["manifest.json: missing"]
    for text in ("{", "[]", "{}", '{"files": 3}', '{"files": {"a": 3}}'):
        (tmp_path / "manifest.json").write_text(text)
        assert verify(tmp_path) == ["manifest.json: not a manifest"]
    (tmp_path / "manifest.json").write_text('{"files": {"../a": {"size": 0, "sha256": ""}}}')
    assert verify(tmp_path) == ["../a: points outside the directory"]


def test_sweep_clears_only_what_nobody_holds(tmp_path: Path) -> None:
    (tmp_path / ".run.0123abcd.partial").mkdir()
    (tmp_path / ".run.0123abcd.partial" / "a").touch()
    (tmp_path / ".file.0123abcd.partial").touch()
    (tmp_path / ".step.1.0123abcd.previous").mkdir()
    (tmp_path / ".kept.0123abcd.previous").mkdir()
    (tmp_path / "kept").mkdir()
    for other in (".other.partial", "run.0123abcd.partial", ".run.0123abcd.partial.txt", "run"):
        (tmp_path / other).touch()
    with write_directory(tmp_path / "live") as partial:
        done = remove_leftovers(tmp_path)
        assert partial.is_dir()
    assert [path.name for path in done] == [
        ".file.0123abcd.partial",
        ".kept.0123abcd.previous",
        ".run.0123abcd.partial",
        ".step.1.0123abcd.previous",
    ]
    expected = [".other.partial", ".run.0123abcd.partial.txt", "kept", "live", "run", "run.0123abcd.partial", "step.1"]
    assert names(tmp_path) == expected
    assert remove_leftovers(tmp_path) == []


def test_a_slow_save_must_be_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEDDLE_SLOW_SAVE", "slow")
    with pytest.raises(HeddleError, match="HEDDLE_SLOW_SAVE must be a number"), write_directory(tmp_path / "run"):
        pytest.fail("the block must not start")
    assert names(tmp_path) == []


def test_a_slow_save_sleeps_that_long_in_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setenv("HEDDLE_SLOW_SAVE", "2.5")
    monkeypatch.setattr(time, "sleep", slept.append)
    for _ in range(2):
        with write_directory(tmp_path / "run", replace=True):
            pass
        assert sum(slept) == pytest.approx(2.5)
        slept.clear()


@pytest.fixture(scope="module")
def saver() -> Iterator[subprocess.Popen[str]]:
    """A process that saves the directories whose names it reads."""
    call, environment = programs.call("weights.saving"), programs.environment(HEDDLE_SLOW_SAVE="0.2")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(call, cwd=programs.ROOT, env=environment, **pipes) as process:
        yield process


@pytest.mark.parametrize("delay", [0.02, 0.07, 0.12, 0.17, 0.22, 0.27])
def test_a_kill_at_any_moment_leaves_the_old_or_the_new(
    tmp_path: Path, saver: subprocess.Popen[str], delay: float
) -> None:
    target = tmp_path / "run"
    with write_directory(target) as partial:
        (partial / "a").write_text("first")
        write_manifest(partial, {"save": 0})
    assert saver.stdin is not None
    assert saver.stdout is not None
    print(target, file=saver.stdin, flush=True)
    child = int(saver.stdout.readline())
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    assert saver.stdout.readline() == "ended\n"
    log = tmp_path / "run.log"
    finished = list(map(int, log.read_text().splitlines())) if log.exists() else []
    log.unlink(missing_ok=True)
    remove_leftovers(tmp_path)
    assert names(tmp_path) == ["run"]
    assert verify(target) == []
    save = json.loads((target / "manifest.json").read_text())["save"]
    # The last one that was reported, or the one after it.
    assert save - (finished or [0])[-1] in (0, 1)
