"""Atomic writes of files and directories, and a manifest of their checksums.

Everything is written next to its target under a name ``.NAME.RANDOM.partial``, flushed to the disk, then renamed: a reader never
sees an incomplete target, and a process killed at any moment leaves the target unchanged. This requires a POSIX system.
"""

import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from heddle.errors import HeddleError

MANIFEST = "manifest.json"
SLOW_SAVE = "HEDDLE_SLOW_SAVE"
"""An environment variable for tests: the total seconds that `write_directory` sleeps between its steps, so that a test can kill it
in any of them."""

Entry = dict[str, int | str]  # the size and the checksum of a file

_PAUSES = 5
_TRIES = 10  # to get a lock that another process may hold only for a check
_LEFTOVER = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{8}\.(?P<kind>partial|previous)")


class WriteError(HeddleError):
    """A file or directory could not be written; any existing target is unchanged.

    Attributes:
        problem: the message without its advice, for callers with better advice.
    """

    def __init__(self, problem: str, advice: str = "") -> None:
        super().__init__(problem + advice)
        self.problem = problem


class Hold:
    """An exclusive lock on a directory for one writer. Readers need no lock.

    It is the operating system's lock on the open directory, so it ends with `release`, when the object is collected, or when the
    process ends in any way. File systems that cannot lock directories, such as some network file systems, exclude nobody.

    Raises:
        HeddleError: another process, or another `Hold` in this one, has the lock.
    """

    def __init__(self, directory: Path) -> None:
        handle = os.open(directory, os.O_RDONLY)
        self.release = weakref.finalize(self, os.close, handle)
        for _ in range(_TRIES):
            if _try_lock(handle):
                return
            time.sleep(0.02)
        self.release()
        raise HeddleError(f"{directory} is being trained by another process or Trainer; wait for it to end, or stop it")


def is_held(directory: Path) -> bool:
    """Whether a writer has locked this directory or is filling it."""
    try:
        handle = os.open(directory, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not _try_lock(handle)
    finally:
        os.close(handle)


def being_written(target: Path) -> bool:
    """Whether a process is filling the directory that will become ``target``."""
    leftovers = target.parent.iterdir() if target.parent.is_dir() else ()
    names = ((path, _LEFTOVER.fullmatch(path.name)) for path in leftovers)
    return any(name["name"] == target.name and is_held(path) for path, name in names if name)


def _try_lock(handle: int) -> bool:
    """Acquire the lock if it is free. Without support for locks, this always succeeds."""
    with suppress(OSError):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


@contextmanager
def write_directory(target: Path, *, replace: bool = False) -> Iterator[Path]:
    """Write a directory atomically: fill the yielded one, and it becomes ``target`` when the block ends without an error.

    With ``replace``, an existing ``target`` is moved to ``.NAME.RANDOM.previous`` for the moment between two renames, since POSIX
    cannot exchange directories. `remove_leftovers` restores it if the process was killed in that moment.

    Raises:
        HeddleError: ``target`` exists and ``replace`` is false, the disk is full, or the target cannot be written. Then,
            and on any error inside the block, nothing is changed.
    """
    target = Path(target)
    refuse_existing(target, replace)
    partial = _partial(target)
    created_folders = [folder for folder in target.parents if not folder.exists()]
    with reporting_os_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        partial.mkdir()
        lock = _lock(partial)
    try:
        _pause()
        with _reporting_full_disk(target):
            yield partial
        with reporting_os_errors(target):
            _pause()
            _sync_tree(partial)
            _pause()
            # Another process may have created the target meanwhile.
            refuse_existing(target, replace)
            _swap(partial, target)
            _sync(target.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        with suppress(OSError):  # another process may use the folder by now
            for folder in created_folders:
                folder.rmdir()
        raise
    finally:
        os.close(lock)


def write_file(path: Path, data: bytes, *, replace: bool = False) -> None:
    """Write one file atomically.

    Raises:
        HeddleError: ``path`` exists and ``replace`` is false, the disk is full, or the path cannot be written. Nothing
            is changed then.
    """
    with fill_file(path, replace=replace) as partial:
        partial.write_bytes(data)


@contextmanager
def fill_file(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """Write one file atomically: fill the yielded empty one, and it becomes ``path`` when the block ends without an error.

    Raises:
        HeddleError: as in `write_file`, and for any `OSError` inside the block. Nothing is changed then, nor on any other
            error inside it.
    """
    path = Path(path)
    refuse_existing(path, replace)
    partial = _partial(path)
    try:
        with reporting_os_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("xb") as stream:
                fcntl.flock(stream, fcntl.LOCK_EX)
                yield partial
                os.fsync(stream.fileno())
                partial.rename(path)
            _sync(path.parent)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise


def remove_leftovers(parent: Path) -> list[Path]:
    """Remove what killed writers left in ``parent``, and return what was removed or restored, sorted.

    A partial directory whose writer still runs is locked and stays. A target that was moved away and never replaced is restored.
    """
    removed = []
    for leftover in sorted(Path(parent).iterdir()):
        name = _LEFTOVER.fullmatch(leftover.name)
        if name is None or is_held(leftover.with_suffix(".partial")):
            continue
        target = leftover.with_name(name["name"])
        if name["kind"] == "previous" and not os.path.lexists(target):
            leftover.rename(target)
        else:
            _remove(leftover)
        removed.append(leftover)
    return removed


def manifest(directory: Path, known: Mapping[str, Entry] | None = None) -> dict[str, Entry]:
    """``{path: {"size": bytes, "sha256": hex}}`` of every file below ``directory`` except the manifest, sorted by path.

    Entries that are ``known`` are not computed.
    """
    directory, entries = Path(directory), dict(known or {})
    for file in directory.rglob("*"):
        name = file.relative_to(directory).as_posix()
        if file.is_file() and name not in (MANIFEST, *entries):
            entries[name] = entry_of(file)
    return dict(sorted(entries.items()))


def entry_of(file: Path) -> Entry:
    """What a manifest has of a file."""
    return {"size": file.stat().st_size, "sha256": sha256_of(file)}


def write_manifest(directory: Path, extra: Mapping[str, object], known: Mapping[str, Entry] | None = None) -> None:
    """Write ``manifest.json``: ``extra`` at the top level, and the result of `manifest` under ``files``.

    Raises:
        ValueError: ``extra`` has a key ``files``.
    """
    if "files" in extra:
        raise ValueError("the key 'files' is reserved for the manifest")
    record = {**extra, "files": manifest(directory, known)}
    write_file(Path(directory) / MANIFEST, (json.dumps(record, indent=2) + "\n").encode(), replace=True)


def relist(directory: Path, name: str) -> None:
    """Update the entry of a replaced file in ``manifest.json``, if it has one."""
    record = json.loads((directory / MANIFEST).read_bytes())
    if name in record["files"]:
        record["files"][name] = entry_of(directory / name)
        write_file(directory / MANIFEST, (json.dumps(record, indent=2) + "\n").encode(), replace=True)


def verify(directory: Path, hashes: bool = True) -> list[str]:
    """The problems of ``directory`` according to its manifest, one line each.

    Files that the manifest does not list are allowed, since a run adds files to its directory. Without ``hashes``, only sizes are
    compared, and only the manifest is read.
    """
    directory = Path(directory)
    try:
        record = json.loads((directory / MANIFEST).read_bytes())
        expected = {str(name): (int(entry["size"]), str(entry["sha256"])) for name, entry in record["files"].items()}
    except FileNotFoundError:
        return [f"{MANIFEST}: missing"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return [f"{MANIFEST}: not a manifest"]
    return [
        f"{name}: {problem}"
        for name, entry in expected.items()
        if (problem := _problem(directory, name, *entry, hashes))
    ]


def _problem(directory: Path, name: str, size: int, sha256: str, hashes: bool) -> str | None:
    file = directory / name
    if not file.resolve().is_relative_to(directory.resolve()):
        return "points outside the directory"
    if not file.is_file():
        return "missing"
    if (actual := file.stat().st_size) != size:
        return f"size is {actual} bytes, the manifest says {size}"
    return None if not hashes or sha256_of(file) == sha256 else "sha256 differs from the manifest"


def sha256_of(file: Path) -> str:
    """The SHA-256 of a file, in hex."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def refuse_existing(target: Path, replace: bool = False) -> None:
    """Raise if the target exists, unless it may be replaced."""
    if not replace and os.path.lexists(target):
        raise HeddleError(f"{target}: already exists; nothing was changed. Choose another path, or remove it first")


def refuse_unwritable(target: Path) -> None:
    """Raise if the target exists or its folder cannot be written, before any work is done for it."""
    refuse_existing(target)
    folder = next(folder for folder in target.absolute().parents if folder.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise WriteError(f"cannot write {target}: {folder} is not a writable folder", "; choose another path")


def _partial(target: Path) -> Path:
    return target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")


def _swap(partial: Path, target: Path) -> None:
    """Rename ``partial`` to ``target``; an existing target is moved away before and removed after."""
    previous = partial.with_suffix(".previous") if os.path.lexists(target) else None
    if previous:
        target.rename(previous)
    try:
        _pause()
        partial.rename(target)
    except BaseException:
        if previous:
            previous.rename(target)
        raise
    _pause()
    if previous:
        _remove(previous)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _sync_tree(directory: Path) -> None:
    """Flush every file below ``directory``, and each folder after its contents."""
    for folder, _, names in os.walk(directory, topdown=False):
        for name in names:
            _sync(Path(folder, name))
        _sync(Path(folder))


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _lock(directory: Path) -> int:
    """Lock ``directory`` until the handle is closed or the process ends."""
    handle = os.open(directory, os.O_RDONLY)
    # Some network file systems cannot lock a directory. `remove_leftovers` then treats it as stale.
    with suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_EX)
    return handle


@contextmanager
def _reporting_full_disk(target: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # For a full disk, safetensors raises its own error with the system's message.
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        if not full and "No space left on device" not in str(error):
            raise
        free = shutil.disk_usage(target.parent).free / 1e6
        raise WriteError(
            f"disk full while writing {target}: {free:.1f} MB free there; nothing was changed",
            ". Free some space and try again",
        ) from error


@contextmanager
def reporting_os_errors(target: Path) -> Iterator[None]:
    """Like `_reporting_full_disk`, and also turns any other `OSError` into a one-line error."""
    try:
        with _reporting_full_disk(target):
            yield
    except OSError as error:
        raise WriteError(f"cannot write {target}: {error.strerror or error}; nothing was changed") from error


def _pause() -> None:
    """Sleep for one of the `_PAUSES` equal parts of the time in the environment variable."""
    value = os.environ.get(SLOW_SAVE, "")
    try:
        seconds = float(value or 0)
    except ValueError:
        raise HeddleError(f"{SLOW_SAVE} must be a number of seconds, not {value!r}") from None
    if seconds > 0:
        time.sleep(seconds / _PAUSES)
