"""Finding the files of a source, in the same order on every machine, and reading them as text, compressed or not."""

import bz2
import codecs
import glob
import gzip
import io
import json
import lzma
import os
import re
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from heddle.data.sources.arrow import ARROW, dataset_files, is_dataset
from heddle.data.sources.formats import PEEK_BYTES as PEEK_BYTES
from heddle.data.sources.formats import UTF16, not_text, utf16
from heddle.data.sources.notes import MalformedError, Notes
from heddle.errors import HeddleError

TEXTS = (".txt", ".md")
"""The extensions of text files that are read from a folder."""
JSON = (".jsonl", ".ndjson", ".json")
TABLES = (*JSON, ".csv", ".tsv", *ARROW)
"""The extensions of files with named columns."""
STDIN = ("-", "/dev/stdin")
UNDECODED = re.compile("[\udc80-\udcff]")  # undecodable bytes, as Python's surrogateescape represents them


def _zstd(file: Path) -> Any:
    try:
        zstandard: Any = import_module("zstandard")
    except ModuleNotFoundError:
        raise HeddleError(f"{file}: reading .zst needs the package zstandard: pip install zstandard") from None
    return zstandard.open(file, "rb")


# By extension of a compressed file: how to open it, and the name of its format.
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
    """The extension that decides how a file is read: `.jsonl` for `a.jsonl.gz`."""
    return name_of(file).suffix.lower()


def find_files(source: str | Path, known: Collection[str], notes: Notes | None = None) -> tuple[list[Path], bool]:
    """The files of one source, sorted by path, and whether it names a single file directly.

    Args:
        source: a file, a folder (searched recursively, hidden names left out), a glob, or a dataset of Hugging Face: `hf:NAME`,
            or a folder that `save_to_disk` wrote.
        known: extensions, in lower case, to read from folders. A file named directly or by a glob may have any. A `.json` file of a
            folder is read if it has records, but not if it is a single object, as settings are.
        notes: where skipped files are counted.

    Raises:
        HeddleError: there is no such file.
    """
    path, notes = Path(source).expanduser(), notes or Notes()
    if is_dataset(source):
        return dataset_files(source), False
    # An existing path is taken literally, so that a file called "notes [old].txt" can be named.
    if path.is_dir():
        return _folder(path, known, notes), False
    if path.exists() or leads_nowhere(path):
        return [path], True
    if not glob.has_magic(str(path)):
        raise HeddleError(f"{source}: no such file or folder")
    matches = [Path(match) for match in glob.glob(str(path), recursive=True)]
    files = {match for match in matches if match.is_file() or leads_nowhere(match)}
    # "**" matches a folder and its content; with any other pattern, a matched folder stands for its files.
    if not files or "**" not in path.parts:
        files |= {file for match in matches if match.is_dir() for file in _known(match, known, notes)}
    if not files:
        raise HeddleError(f"{source}: the pattern matches no file")
    return sorted(files, key=lambda file: file.parts), False


def _folder(folder: Path, known: Collection[str], notes: Notes) -> list[Path]:
    files = _known(folder, known, notes)
    if not files:
        others = f", but there are {notes.kinds()}" if notes.extensions else ""
        raise HeddleError(
            f"{folder}: no text in this folder; looked for {', '.join(known)}, each also compressed{others}. "
            f"Name other files by a pattern, such as '{folder}/**/*{notes.pattern()}'"
        )
    return files


def _known(folder: Path, known: Collection[str], notes: Notes) -> list[Path]:
    """The files of a folder that are read; skipped ones are counted."""
    files: list[Path] = []
    others: list[Path] = []
    for file in walk(folder, frozenset({"__pycache__"})):
        is_read = kind_of(file) in known and (kind_of(file) != ".json" or has_records(file))
        (files if is_read else others).append(file)
    notes.files += len(files) + len(others)
    notes.other_files(folder, others)
    return files


def has_records(file: Path) -> bool:
    """Whether a file begins as an array of JSON objects, or as lines of them."""
    try:
        with open_file(file) as stream:
            beginning = stream.read(PEEK_BYTES).removeprefix(codecs.BOM_UTF8)
    except HeddleError:
        return True  # reading it will raise the error
    return looks_like_json(beginning.decode(errors="replace"))


def looks_like_json(beginning: str) -> bool:
    """Whether a text begins as an array of JSON objects, or as several lines of them."""
    if re.match(r"\s*\[\s*\{\s*\"", beginning):
        return True
    first, _, rest = beginning.lstrip().partition("\n")
    try:
        is_object = isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        # A line longer than the beginning cannot be parsed.
        return not rest and len(first) > PEEK_BYTES // 2 and re.match(r"\{\s*\"", first) is not None
    return is_object and rest.lstrip().startswith("{")


def walk(root: Path, leave_out: frozenset[str]) -> list[Path]:
    """Regular files and broken links below `root`, sorted by path; without hidden names and linked folders."""
    files = []
    for folder, folders, names in os.walk(root, onerror=_unreadable):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in leave_out]
        files += [Path(folder, name) for name in names if not name.startswith(".")]
    return sorted((file for file in files if file.is_file() or leads_nowhere(file)), key=lambda file: file.parts)


def leads_nowhere(file: Path) -> bool:
    """Whether a file is a broken link, which must not be skipped silently."""
    return file.is_symlink() and not file.exists()


def _unreadable(error: OSError) -> None:
    raise HeddleError(f"{error.filename}: cannot be read: {error.strerror}") from error


@contextmanager
def open_file(file: Path) -> Iterator[io.BufferedReader]:
    """Open a file for reading its bytes, decompressed.

    Raises:
        HeddleError: it cannot be read.
        MalformedError: it has a known format that is not text, or its compressed data are damaged, which may show in the block.
    """
    if leads_nowhere(file):
        raise MalformedError("broken link", file, "a link to a missing file", "remove the link, or restore the file")
    if not file.is_file():
        raise HeddleError(f"{file}: not a regular file")
    opener, name = COMPRESSED.get(file.suffix.lower(), (lambda path: path.open("rb"), ""))
    try:
        with opener(file) as raw, io.BufferedReader(raw, PEEK_BYTES) as stream:
            if (description := not_text(stream.peek(PEEK_BYTES)[:PEEK_BYTES], file)) is not None:
                raise MalformedError("no text", file, f"this is {description[0]}", description[1])
            yield stream
    except EOFError as error:
        raise MalformedError(
            "cut short", file, f"the {name} data is cut short", "copy or download the file again"
        ) from error
    except (gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise MalformedError("damaged", file, f"not a valid {name} file ({error})") from error
    except OSError as error:
        if error.errno is None and name:  # bz2 raises a bare OSError
            raise MalformedError("damaged", file, f"not a valid {name} file ({error})") from error
        raise HeddleError(f"{file}: cannot be read: {error.strerror or error}") from error
    except Exception as error:
        if type(error).__module__.startswith("zstandard"):
            raise MalformedError("damaged", file, f"not a valid {name} file ({error})") from error
        raise


def decode(data: bytes, file: Path, offset: int, encoding: str = "utf-8") -> str:
    """Decode bytes of a file.

    Args:
        file: for the message.
        offset: where `data` starts in the decompressed file, for the message.

    Raises:
        MalformedError: the bytes are not in this encoding, or have a zero byte.
    """
    if offset == 0:
        check_mark(data, file, encoding)
    if not wide(encoding) and (at := data.find(b"\0")) >= 0:
        raise MalformedError("no text", file, f"a binary file, not text (a zero byte at byte {offset + at})")
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        position = offset + error.start
        raise MalformedError(
            named(encoding), file, f"{named(encoding)} at byte {position} (0x{data[error.start]:02x})",
            "convert it with iconv, or name its encoding, such as encoding=cp1252",
        ) from error  # fmt: skip


def named(encoding: str) -> str:
    """The fault of bytes that are not in an encoding."""
    return f"not {'UTF-8' if codecs.lookup(encoding).name == 'utf-8' else encoding}"


def wide(encoding: str) -> bool:
    """Whether an encoding has zero bytes in ordinary text."""
    return codecs.lookup(encoding).name.startswith(("utf-16", "utf-32"))


def check_mark(beginning: bytes, file: Path, encoding: str) -> None:
    """Refuse a file whose first bytes show that it has another encoding.

    Raises:
        MalformedError: they do.
    """
    if not wide(encoding) and utf16(beginning[:PEEK_BYTES]):
        raise MalformedError(UTF16[0], file, "this looks like UTF-16", UTF16[1])
    utf8 = codecs.lookup(encoding).name in ("utf-8", "utf-8-sig")
    if beginning.startswith(codecs.BOM_UTF8) and not utf8:
        raise MalformedError(
            "other encoding",
            file,
            f"it begins with the mark of UTF-8, but encoding = {encoding!r}",
            "leave encoding out",
        )


def read_text(file: Path, encoding: str = "utf-8") -> str:
    """The text of a file, byte for byte, without a byte order mark.

    Raises:
        HeddleError: it cannot be read.
        MalformedError: it is not text in this encoding.
    """
    with open_file(file) as stream:
        return decode(stream.read(), file, 0, encoding).removeprefix("\ufeff")


def read_lines(file: Path, encoding: str = "utf-8") -> Iterator[str]:
    """The lines of a text file with their ends, without a byte order mark. Only a line feed ends a line.

    Raises:
        HeddleError: the file cannot be read.
        MalformedError: a line is not in this encoding.
    """
    if wide(encoding):
        for line in raw_lines(file, encoding):
            yield check_line(line, str(file), encoding)
        return
    offset = 0
    with open_file(file) as stream:
        check_mark(stream.peek(PEEK_BYTES)[:PEEK_BYTES], file, encoding)
        for data in stream:
            text = decode(data, file, offset, encoding)
            yield text.removeprefix("\ufeff") if offset == 0 else text
            offset += len(data)


def raw_lines(file: Path, encoding: str = "utf-8") -> Iterator[str]:
    """The lines as in `read_lines`, but with undecodable bytes as lone surrogates, which `check_line` refuses.

    Raises:
        HeddleError: the file cannot be read.
        MalformedError: its first bytes show another encoding.
    """
    with open_file(file) as stream:
        check_mark(stream.peek(PEEK_BYTES)[:PEEK_BYTES], file, encoding)
        first = True
        with io.TextIOWrapper(stream, encoding, "surrogateescape", "\n") as text:
            for line in text:
                yield line.removeprefix("\ufeff") if first else line
                first = False


def check_line(text: str, where: str, encoding: str = "utf-8") -> str:
    """Check that a line, or a part of one, was decoded without errors, and return it.

    Raises:
        MalformedError: it has undecodable bytes or a zero byte.
    """
    if (undecoded := UNDECODED.search(text)) is not None:
        raise MalformedError(
            named(encoding), where, f"{named(encoding)} (0x{ord(undecoded.group()) - 0xDC00:02x})",
            "convert it with iconv, or name its encoding, such as encoding=cp1252",
        )  # fmt: skip
    if "\0" in text:
        raise MalformedError("zero byte", where, "a zero byte", "remove it, or copy the file again")
    return text


@contextmanager
def standard_input(sources: Sequence[str | Path], extension: str) -> Iterator[list[str | Path]]:
    """Replace `-` among the sources by a temporary copy of standard input, which can be read only once.

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
