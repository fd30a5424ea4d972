"""Recognising files that are not text by their first bytes, with advice for each format."""

import zipfile
from pathlib import Path

PEEK_BYTES = 4096  # enough to recognise a format

MAGIC: tuple[tuple[bytes, str, str], ...] = (
    (b"%PDF-", "a PDF", "export its text first, for example with pdftotext"),
    (b"{\\rtf", "a document in RTF", "save it as plain text"),
    (b"\xd0\xcf\x11\xe0", "a document of an old Office", "save it as text, or as CSV in UTF-8"),
    (b"\x1f\x8b", "compressed with gzip", "end its name in .gz"),
    (b"BZh91AY&SY", "compressed with bzip2", "end its name in .bz2"),
    (b"\xfd7zXZ\x00", "compressed with xz", "end its name in .xz"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd", "end its name in .zst"),
    (b"7z\xbc\xaf\x27\x1c", "an archive of 7-Zip", "unpack it"),
    (b"Rar!\x1a", "a RAR archive", "unpack it"),
    (b"PAR1", "a Parquet file", "end its name in .parquet"),
    (b"ARROW1", "an Arrow file", "end its name in .arrow"),
    (b"SQLite format 3\x00", "an SQLite database", "export its table as CSV"),
    (b"\x80\x03", "a pickle", "save its content as JSON lines or Parquet"),
    (b"\x80\x04", "a pickle", "save its content as JSON lines or Parquet"),
    (b"\x80\x05", "a pickle", "save its content as JSON lines or Parquet"),
    (b"\x93NUMPY", "an array of NumPy", "save its texts as JSON lines"),
    (b"\x89HDF", "an HDF5 file", "export its table as CSV or Parquet"),
    (b"\x89PNG", "an image", "only text can be read"),
    (b"\xff\xd8\xff", "an image", "only text can be read"),
    (b"GIF89a", "an image", "only text can be read"),
    (b"\x7fELF", "a program", "only text can be read"),
)
ZIPPED = {
    "xl/workbook.xml": ("an Excel workbook", "save its sheet as CSV UTF-8"),
    "word/document.xml": ("a Word document", "save it as plain text"),
    "ppt/presentation.xml": ("a PowerPoint presentation", "save its outline as plain text"),
    "META-INF/container.xml": ("an EPUB book", "convert it to plain text"),
    "content.xml": ("an OpenDocument file", "save it as plain text, or its sheet as CSV"),
}
UTF16 = ("UTF-16", "convert it first: iconv -f UTF-16 -t UTF-8; or name its encoding (encoding=utf-16)")


def not_text(beginning: bytes, file: Path) -> tuple[str, str] | None:
    """The format of a file that is not text, and what to do with the file; None if it may be text.

    Args:
        beginning: its first bytes, decompressed.
        file: the file, whose table of contents is read if it is a zip archive.
    """
    if beginning.startswith(b"PK\x03\x04"):
        return _zipped(file)
    if beginning[257:262] == b"ustar":
        return "a tar archive", "unpack it"
    return next(((what, advice) for magic, what, advice in MAGIC if beginning.startswith(magic)), None)


def utf16(beginning: bytes) -> bool:
    """Whether a file looks like UTF-16: it has a byte order mark, or a zero in every second byte."""
    if beginning[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return True
    zeros = (beginning[0::2].count(0), beginning[1::2].count(0))
    return len(beginning) >= 8 and max(zeros) > 0.4 * len(beginning) / 2 and min(zeros) == 0


def _zipped(file: Path) -> tuple[str, str]:
    try:
        with zipfile.ZipFile(file) as archive:
            names = set(archive.namelist())
    except (OSError, zipfile.BadZipFile):
        names = set()
    description = next((words for name, words in ZIPPED.items() if name in names), None)
    return description or ("a zip archive", "unpack it")
