"""Which files a source names, in an order that is the same on every machine, and what is in them: compressed or not, UTF-8."""

import bz2
import glob
import gzip
import lzma
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from heddle.data.arrow import ARROW, dataset_files, is_dataset
from heddle.errors import HeddleError

TEXTS = (".txt", ".md")
"""The extensions of texts that are read from a folder."""
TABLES = (".jsonl", ".csv", ".tsv", *ARROW)
"""The extensions of files with named columns."""
STDIN = ("-", "/dev/stdin")


def _zstd(file: Path) -> Any:
    try:
        zstandard: Any = import_module("zstandard")
    except ModuleNotFoundError:
        raise HeddleError(f"{file}: reading .zst needs the package zstandard: pip install zstandard") from None
    return zstandard.open(file, "rb")


# Formats of compression: how to open a file, and its name in words.
COMPRESSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    ".gz": (gzip.open, "gzip"),
    ".bz2": (bz2.open, "bzip2"),
    ".xz": (lzma.open, "xz"),
    ".zst": (_zstd, "zstd"),
}


def name_of(file: Path) -> Path:
    """The file's path without the extension of its compression: `a.jsonl` for `a.jsonl.gz`."""
    return file.with_suffix("") if file.suffix.lower() in COMPRESSED else file


def kind_of(file: Path) -> str:
    """The extension that says how to read a file: `.jsonl` for `a.jsonl.gz`."""
    return name_of(file).suffix.lower()


def find_files(source: str | Path, known: Collection[str]) -> tuple[list[Path], bool]:
    """The files of one source, sorted by path, and whether it names a single file directly.

    Args:
        source: a file, a folder (searched recursively, hidden names left out), a glob, or a dataset of Hugging Face: `hf:NAME`,
            or a folder that `save_to_disk` wrote.
        known: extensions, in lower case, to read from folders. A file named directly or by a glob may have any.

    Raises:
        HeddleError: there is no such file.
    """
    path = Path(source).expanduser()
    if is_dataset(source):
        return dataset_files(source), False
    # An existing path is taken literally, so that a file called "notes [old].txt" can be named.
    if path.is_dir():
        return _folder(path, known), False
    if path.exists():
        return [path], True
    if not glob.has_magic(str(path)):
        raise HeddleError(f"{source}: no such file or folder")
    matches = [Path(match) for match in glob.glob(str(path), recursive=True)]
    files = {match for match in matches if match.is_file()}
    # "**" matches a folder and its content; for any other pattern, a matched folder means its files.
    if not files or "**" not in path.parts:
        files |= {file for match in matches if match.is_dir() for file in _known(match, known)}
    if not files:
        raise HeddleError(f"{source}: the pattern matches no file")
    return sorted(files, key=lambda file: file.parts), False


def _folder(folder: Path, known: Collection[str]) -> list[Path]:
    if not (files := _known(folder, known)):
        raise HeddleError(
            f"{folder}: no text in this folder; looked for {', '.join(known)}, each also compressed. "
            f"Name other files by a pattern, such as '{folder}/**/*.py'"
        )
    return files


def _known(folder: Path, known: Collection[str]) -> list[Path]:
    return [file for file in walk(folder, frozenset({"__pycache__"})) if kind_of(file) in known]


def walk(root: Path, leave_out: frozenset[str]) -> list[Path]:
    """Regular files below `root`, sorted by path; hidden names are skipped and links to folders are not followed."""
    files = []
    for folder, folders, names in os.walk(root, onerror=_unreadable):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in leave_out]
        files += [Path(folder, name) for name in names if not name.startswith(".")]
    return sorted((file for file in files if file.is_file()), key=lambda file: file.parts)


def _unreadable(error: OSError) -> None:
    raise HeddleError(f"{error.filename}: cannot be read: {error.strerror}") from error


@contextmanager
def open_file(file: Path) -> Iterator[IO[bytes]]:
    """A file's bytes, decompressed.

    Raises:
        HeddleError: it cannot be read or its compressed data are damaged, here or in the block.
    """
    if not file.is_file():
        raise HeddleError(f"{file}: not a regular file")
    open_it, name = COMPRESSED.get(file.suffix.lower(), (lambda path: path.open("rb"), ""))
    try:
        with open_it(file) as stream:
            yield stream
    except EOFError as error:
        raise HeddleError(f"{file}: the {name} data is cut short; copy or download the file again") from error
    except (gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise HeddleError(f"{file}: not a valid {name} file ({error})") from error
    except OSError as error:
        if error.errno is None and name:  # bz2 raises a bare OSError
            raise HeddleError(f"{file}: not a valid {name} file ({error})") from error
        raise HeddleError(f"{file}: cannot be read: {error.strerror or error}") from error
    except Exception as error:
        if type(error).__module__.startswith("zstandard"):
            raise HeddleError(f"{file}: not a valid {name} file ({error})") from error
        raise


def decode(data: bytes, file: Path, offset: int) -> str:
    """Text from UTF-8.

    Args:
        file: for the message.
        offset: where `data` starts in the decompressed file, for the message.

    Raises:
        HeddleError: it is not UTF-8, or has a zero byte.
    """
    if offset == 0 and data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise HeddleError(f"{file}: this looks like UTF-16; convert it first: iconv -f UTF-16 -t UTF-8")
    if (at := data.find(b"\0")) >= 0:
        raise HeddleError(f"{file}: a binary file, not text (a zero byte at byte {offset + at})")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        where = offset + error.start
        raise HeddleError(
            f"{file}: not UTF-8 at byte {where} (0x{data[error.start]:02x}); convert it with iconv"
        ) from error


def read_lines(file: Path) -> Iterator[str]:
    """The lines of a text file with their ends, without a byte order mark. Only a line feed ends a line."""
    offset = 0
    with open_file(file) as stream:
        for line in stream:
            text = decode(line, file, offset)
            yield text.removeprefix("\ufeff") if offset == 0 else text
            offset += len(line)


@contextmanager
def standard_input(sources: Sequence[str | Path], extension: str) -> Iterator[list[str | Path]]:
    """The sources with a temporary file in place of `-`, since standard input can be read only once.

    Args:
        sources: files, folders, globs, or `-`.
        extension: how to read standard input, such as `.txt`.

    Raises:
        HeddleError: `-` is given twice.
    """
    count = sum(str(source) in STDIN for source in sources)
    if not count:
        yield list(sources)
        return
    if count > 1:
        raise HeddleError("standard input (-) is given twice, but can be read only once")
    with tempfile.TemporaryDirectory(prefix="heddle-") as folder:
        file = Path(folder, f"stdin{extension}")
        with file.open("wb") as stream:
            shutil.copyfileobj(sys.stdin.buffer, stream)
        yield [file if str(source) in STDIN else source for source in sources]
