"""Text in: files, folders and globs become documents, in an order that is the same on every machine."""

import glob
import gzip
import hashlib
import json
import os
import sysconfig
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from heddle.checks import SOME, checked
from heddle.errors import HeddleError

KNOWN = frozenset({".txt", ".md", ".jsonl"})
"""The extensions that are read from a folder, each also with ``.gz``. A file named directly or by a glob may have any."""

# Tests, vendored packages and editors are half of the library, and some are deliberately not UTF-8.
NOT_LIBRARY = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo", "__pycache__"}
)


@dataclass(frozen=True, slots=True)
class Document:
    """One text and its origin: a path, or ``path:line`` for a line of a ``.jsonl`` file."""

    text: str
    origin: str


@dataclass(frozen=True, slots=True)
class Description:
    """What a list of sources holds.

    Attributes:
        documents: how many.
        bytes: UTF-8 bytes of their text.
        sha256: SHA-256 of the documents' digests, in order.
        squares: sum of each document's squared bytes: bytes² / squares documents of equal size would vary as much.
        hashed: bytes of the documents that their hash holds out, at the share given to the `Tally`.
    """

    documents: int
    bytes: int
    sha256: str
    squares: int
    hashed: int


def held_out(digest: bytes, validation: float) -> bool:
    """Whether a document's SHA-256, and so its content alone, puts it into the validation part."""
    return int.from_bytes(digest[:8], "big") < int(validation * 2**64)


class Tally:
    """Accumulates a `Description` of a stream of documents; ``validation`` is the share to hold out."""

    def __init__(self, validation: float = 0.0) -> None:
        self.bytes = 0
        self._documents = self._squares = self._hashed = 0
        self._validation = validation
        self._digest = hashlib.sha256()

    def add(self, data: bytes) -> bytes:
        """Count one document's UTF-8 bytes and return its SHA-256 digest."""
        own = hashlib.sha256(data).digest()
        self._documents += 1
        self.bytes += len(data)
        self._squares += len(data) ** 2
        self._hashed += len(data) if held_out(own, self._validation) else 0
        self._digest.update(own)
        return own

    def description(self) -> Description:
        return Description(self._documents, self.bytes, self._digest.hexdigest(), self._squares, self._hashed)


@checked(sources=SOME)
def read_documents(sources: Sequence[str | Path]) -> Iterator[Document]:
    """Read every document of ``sources``: in the order given, and inside a folder or glob sorted by path.

    A source is a file, a folder (searched recursively for the `KNOWN` extensions, hidden names left out) or a glob.
    A ``.jsonl`` file has one document per line in the field ``text``; any other file is one document, byte for byte
    (CRLF is kept). Any file may be gzipped (``.gz``). Empty texts are skipped, but a file named directly must not be empty.

    Raises:
        HeddleError: a source is missing, empty, binary, not UTF-8, a damaged gzip, or a line is not ``{"text": ...}``.
    """
    for source in sources:
        files, named = _files(source)
        found = False
        for file in files:
            for document in _read_file(file):
                found = True
                yield document
        if not found:
            raise HeddleError(f"{source}: {'the file is empty' if named else 'every file there is empty'}")


@checked(sources=SOME)
def describe(sources: Sequence[str | Path], tally: Tally | None = None) -> Description:
    """Count the documents and bytes of ``sources`` and fingerprint them in one pass; pass a ``tally`` to watch progress."""
    tally = tally or Tally()
    for document in read_documents(sources):
        tally.add(document.text.encode())
    return tally.description()


def python_library() -> list[Path]:
    """The Python standard library's sources on this machine: ``.py`` files, sorted by their path inside it.

    Excluded are installed packages, test suites, IDLE, lib2to3, turtledemo, files that the build generated for this machine,
    and empty files. The same Python release gives the same list.
    """
    root = Path(sysconfig.get_path("stdlib"))
    files = [
        file
        for file in _walk(root, NOT_LIBRARY)
        if file.suffix == ".py" and not file.name.startswith("_sysconfigdata") and file.stat().st_size > 0
    ]
    if not files:
        raise HeddleError(
            f"{root}: no Python sources; this Python was installed without its library's sources: name a text"
        )
    return files


def _files(source: str | Path) -> tuple[list[Path], bool]:
    """The files of one source, sorted, and whether the source names a single file directly."""
    path = Path(source).expanduser()
    # An existing path is taken literally, so that a file called "notes [old].txt" can be named.
    if path.is_dir():
        return _folder(path), False
    if path.exists():
        return [path], True
    if not glob.has_magic(str(path)):
        raise HeddleError(f"{source}: no such file or folder")
    matches = [Path(match) for match in glob.glob(str(path), recursive=True)]
    files = {match for match in matches if match.is_file()}
    # "**" matches a folder and its content; for any other pattern, a matched folder means its files.
    if not files or "**" not in path.parts:
        files |= {file for match in matches if match.is_dir() for file in _texts(match)}
    if not files:
        raise HeddleError(f"{source}: the pattern matches no file")
    return sorted(files, key=lambda file: file.parts), False


def _folder(folder: Path) -> list[Path]:
    if not (files := _texts(folder)):
        raise HeddleError(
            f"{folder}: no text in this folder; looked for .txt, .md and .jsonl, each also .gz. "
            f"Name other files by a pattern, such as '{folder}/**/*.py'"
        )
    return files


def _texts(folder: Path) -> list[Path]:
    return [file for file in _walk(folder, frozenset({"__pycache__"})) if _kind(file) in KNOWN]


def _walk(root: Path, leave_out: frozenset[str]) -> list[Path]:
    """Regular files below ``root``, sorted by path; hidden names are skipped and links to folders are not followed."""
    files = []
    for folder, folders, names in os.walk(root, onerror=_unreadable):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in leave_out]
        files += [Path(folder, name) for name in names if not name.startswith(".")]
    return sorted((file for file in files if file.is_file()), key=lambda file: file.parts)


def _unreadable(error: OSError) -> None:
    raise HeddleError(f"{error.filename}: cannot be read: {error.strerror}") from error


def _kind(file: Path) -> str:
    """The extension that says how to read a file: ``.jsonl`` for ``a.jsonl.gz``."""
    suffix = file.suffix.lower()
    return Path(file.stem).suffix.lower() if suffix == ".gz" else suffix


def _read_file(file: Path) -> Iterator[Document]:
    if not file.is_file():
        raise HeddleError(f"{file}: not a regular file")
    try:
        with gzip.open(file) if file.suffix.lower() == ".gz" else file.open("rb") as stream:
            if _kind(file) == ".jsonl":
                offset = 0
                for number, line in enumerate(stream, start=1):
                    text = _line_text(_decode(line, file, offset), f"{file}:{number}")
                    offset += len(line)
                    if text:
                        yield Document(text, f"{file}:{number}")
            elif text := _decode(stream.read(), file, 0):
                yield Document(text, str(file))
    except EOFError as error:
        raise HeddleError(f"{file}: the gzip data is cut short; copy or download the file again") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise HeddleError(f"{file}: not a valid gzip file ({error})") from error
    except OSError as error:
        raise HeddleError(f"{file}: cannot be read: {error.strerror or error}") from error


def _decode(data: bytes, file: Path, offset: int) -> str:
    """Decode UTF-8; ``offset`` is where ``data`` starts in the (unzipped) file, for the message."""
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


def _line_text(line: str, origin: str) -> str:
    """The field ``text`` of one line of JSON."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise HeddleError(f'{origin}: not a line of JSON; every line must be like {{"text": "..."}}') from error
    text = record.get("text") if isinstance(record, dict) else None
    if not isinstance(text, str):
        raise HeddleError(f'{origin}: no field "text" with a string; every line must be like {{"text": "..."}}')
    try:
        text.encode()
    except UnicodeEncodeError as error:
        # JSON can encode half of a surrogate pair (\ud83d alone), which UTF-8 cannot.
        raise HeddleError(f"{origin}: half of a surrogate pair at character {error.start}; remove it") from error
    return text
