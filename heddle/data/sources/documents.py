"""Reading files, folders and globs as documents, in the same order on every machine."""

import hashlib
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from heddle.checks import SOME, checked
from heddle.data.sources.files import PEEK_BYTES, TABLES, TEXTS, find_files, kind_of, looks_like_json, read_text, walk
from heddle.data.sources.notes import Reader
from heddle.data.sources.tables import read_rows
from heddle.display import displayed
from heddle.errors import HeddleError, for_each

KNOWN = (*TEXTS, *TABLES)
"""The extensions that are read from a folder, each also compressed. A file named directly or by a glob may have any extension."""

TEXT = "text"  # the default column of a table's text

# Tests, vendored packages and editors are half of the library, and some are deliberately not UTF-8.
NOT_LIBRARY = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo", "__pycache__"}
)


@displayed(".text")
@dataclass(frozen=True, slots=True)
class Document:
    """One text and its origin: a path, or ``path:line`` for a row of a table.

    Attributes:
        part: `train` or `validation`, if the user assigned it to a part.
    """

    text: str
    origin: str
    part: str | None = None


@displayed()
@dataclass(frozen=True, slots=True)
class Description:
    """Counts and fingerprint of a list of sources.

    Attributes:
        documents: number of documents.
        bytes: UTF-8 bytes of their text.
        sha256: SHA-256 of the documents' digests, in order.
        squares: sum of each document's squared bytes: bytes² / squares documents of equal size would vary as much.
        hashed: bytes of the documents that their hash holds out, at the share given to the `TextStats`.
    """

    documents: int
    bytes: int
    sha256: str
    squares: int
    hashed: int


def held_out(digest: bytes, validation: float) -> bool:
    """Whether a document's SHA-256, and so only its content, assigns it to the validation part."""
    return int.from_bytes(digest[:8], "big") < int(validation * 2**64)


class TextStats:
    """Accumulates a `Description` of a stream of documents; ``validation`` is the share to hold out by hash, or None."""

    def __init__(self, validation: float | None = None) -> None:
        self.bytes = 0
        self._documents = self._squares = self._hashed = 0
        self._validation = validation or 0.0
        self._digest = hashlib.sha256()

    def add(self, data: bytes) -> bytes:
        """Count one document's UTF-8 bytes and return its SHA-256 digest."""
        digest = hashlib.sha256(data).digest()
        self._documents += 1
        self.bytes += len(data)
        self._squares += len(data) ** 2
        self._hashed += len(data) if held_out(digest, self._validation) else 0
        self._digest.update(digest)
        return digest

    def description(self) -> Description:
        return Description(self._documents, self.bytes, self._digest.hexdigest(), self._squares, self._hashed)


@checked(sources=SOME)
def read_documents(sources: Sequence[str | Path], text: str = TEXT, reader: Reader | None = None) -> Iterator[Document]:
    """Read every document of ``sources``: in the order given, and inside a folder or glob sorted by path.

    A source is a file, a folder (searched recursively for the `KNOWN` extensions, hidden names left out) or a glob. A table
    (see `heddle.data.sources.tables`) has one document per row, in the column ``text``; any other file is one document, byte for
    byte (CRLF is kept). Any file may be compressed (``.gz``, ``.bz2``, ``.xz``; ``.zst`` if the package zstandard is installed).
    Empty texts are skipped, but a file named directly must not be empty.

    Args:
        text: the column of a table's text.
        reader: how files are read, whether malformed items are skipped, and where skipped files are counted; without it, a warning
            lists the files of a folder that are not read.

    Raises:
        HeddleError: a source is missing or empty, or `text` names a column but no source is a table.
        MalformedError: a file is binary, in another encoding or damaged, or a table has no such column.
    """
    emit_warnings, tables, reader = reader is None, text == TEXT, reader or Reader()
    notes = reader.notes
    for source, (files, is_file) in zip(
        sources, for_each(lambda each: find_files(each, KNOWN, notes), sources), strict=True
    ):
        any_document, malformed_at_start = False, reader.notes.malformed
        for file in files:
            tables = tables or kind_of(file) in TABLES
            any_in_file, malformed_before = False, reader.notes.malformed
            for document in _read_file(file, text, reader):
                any_document = any_in_file = True
                yield document
            if not any_in_file and reader.notes.malformed == malformed_before:
                reader.notes.add("empty file", str(file), "files have no text", "they are left out", left_out=False)
        if not any_document and reader.notes.malformed == malformed_at_start:
            raise HeddleError(f"{source}: {'the file is empty' if is_file else 'every file there is empty'}")
    if not tables:
        raise HeddleError(
            f"text = {text!r} names a column, but no source is a table ({', '.join(TABLES)}); leave it out"
        )
    for line in reader.notes.lines() if emit_warnings else ():
        warnings.warn(line, stacklevel=2)


@checked(sources=SOME)
def describe(
    sources: Sequence[str | Path], stats: TextStats | None = None, text: str = TEXT, reader: Reader | None = None
) -> Description:
    """Count the documents and bytes of ``sources`` and fingerprint them in one pass.

    Args:
        stats: updated with each document, to watch progress.
        text: the column of a table's text.
        reader: as in `read_documents`.
    """
    return describe_documents(read_documents(sources, text, reader), stats or TextStats())


def describe_documents(documents: Iterable[Document], stats: TextStats) -> Description:
    """Count and fingerprint documents in one pass."""
    for document in documents:
        if document.text:
            stats.add(document.text.encode())
    return stats.description()


def python_library() -> list[Path]:
    """The sources of this machine's Python standard library: ``.py`` files, sorted by their path inside it.

    Installed packages, test suites, IDLE, lib2to3, turtledemo, files that the build generated for this machine, and empty files
    are excluded. The same Python release gives the same list.
    """
    root = Path(sysconfig.get_path("stdlib"))
    files = [
        file
        for file in walk(root, NOT_LIBRARY)
        if file.suffix == ".py"
        and file.is_file()
        and not file.name.startswith("_sysconfigdata")
        and file.stat().st_size > 0
    ]
    if not files:
        raise HeddleError(
            f"{root}: no Python sources; this Python was installed without its library's sources: name a text"
        )
    return files


def _read_file(file: Path, text: str, reader: Reader) -> Iterator[Document]:
    if kind_of(file) in TABLES:
        rows = reader.parse_each(read_rows(file, reader), lambda row: Document(row.text(text), row.origin))
        yield from (document for document in rows if document.text)
        return
    with reader.skip_malformed():
        if content := read_text(file, reader.encoding):
            reader.notes.read += 1
            if looks_like_json(content[:PEEK_BYTES]):
                reader.notes.add("JSON as text", str(file), "files look like JSON records, but are read as text",
                                 "rename them to .jsonl to read their columns", left_out=False)  # fmt: skip
            yield Document(content, str(file))
