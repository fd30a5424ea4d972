"""Sixty files of a folder that have something wrong, each another kind or another place of it, with the words that name it."""

import bz2
import gzip
import io
import json
import lzma
import zipfile
from pathlib import Path


def zipped(*names: str) -> bytes:
    """A zip archive with such files in it."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name in names:
            archive.writestr(name, "content")
    return data.getvalue()


def lines(*values: object) -> bytes:
    """Lines of JSON."""
    return "".join(f"{json.dumps(value)}\n" for value in values).encode()


GOOD = lines({"text": "whole", "label": "x"}, {"text": "and sound", "label": "y"})

# What is wrong, by file; all are read for texts.
TEXTS: dict[str, tuple[bytes, str]] = {
    "latin.txt": ("Fäden".encode("latin-1"), "not UTF-8"),
    "windows.md": ("“quoted”".encode("cp1252"), "not UTF-8"),
    "utf16.txt": ("wide".encode("utf-16"), "UTF-16"),
    "utf16be.txt": (b"\xfe\xff" + "wide".encode("utf-16-be"), "UTF-16"),
    "utf16bare.csv": ("text\nwide and wide\n".encode("utf-16-le"), "UTF-16"),
    "zero.txt": (b"a\0b and more text", "no text"),
    "report.txt": (b"%PDF-1.7\n%\xe2\xe3", "no text"),
    "letter.txt": (zipped("word/document.xml"), "no text"),
    "sheet.csv": (zipped("xl/workbook.xml"), "no text"),
    "archive.jsonl": (zipped("a.txt"), "no text"),
    "old.txt": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 99, "no text"),
    "rich.txt": (b"{\\rtf1 text}", "no text"),
    "packed.jsonl": (gzip.compress(GOOD), "no text"),
    "packed.csv": (lzma.compress(GOOD), "no text"),
    "packed.tsv": (bz2.compress(GOOD), "no text"),
    "tables.tsv": (b"PAR1" + bytes(99), "no text"),
    "pickled.txt": (b"\x80\x04\x95\x08\0\0\0\0\0\0\0\x8c\x04text\x94.", "no text"),
    "array.txt": (b"\x93NUMPY\x01\0v\0{'descr'", "no text"),
    "image.md": (b"\x89PNG\r\n\x1a\n", "no text"),
    "cut.txt.gz": (gzip.compress(bytes(range(32, 127)) * 40)[:-20], "cut short"),
    "cut.jsonl.xz": (lzma.compress(GOOD)[:-9], "cut short"),
    "plain.txt.gz": (b"no gzip at all", "damaged"),
    "plain.txt.bz2": (b"no bzip2 at all", "damaged"),
    "plain.jsonl.xz": (b"no xz at all", "damaged"),
    "broken.parquet": (b"PAR1 and then nothing", "damaged"),
    "broken.arrow": (b"ARROW1 and then nothing", "damaged"),
    "half.jsonl": (GOOD + b'{"text": "hal', "not JSON"),
    "quotes.jsonl": (b"{'text': 'as Python has it'}\n", "not JSON"),
    "commas.jsonl": (b'{"text": "a",}\n' + GOOD, "not JSON"),
    "marks.ndjson": (GOOD + b"\xef\xbb\xbf" + GOOD, "not JSON"),
    "blank.jsonl": (GOOD + b"\n" + GOOD, "blank line"),
    "lists.jsonl": (GOOD + b'["a", "b"]\n', "no object"),
    "texts.json": (b'["a", "b"]', "other files"),
    "numbers.jsonl": (b"[1, 2, 3]\n", "no object"),
    "cut.json": (b'[{"text": "a"}, {"text": ', "not JSON"),
    "settings.json": (b'{\n "train": {\n  "steps": 3\n }\n}\n', "other files"),
    "null.jsonl": (lines({"text": None}), "null"),
    "null.json": (b'[{"text": null}]', "null"),
    "number.jsonl": (lines({"text": 3}), "wrong type"),
    "list.jsonl": (lines({"text": ["a"]}), "wrong type"),
    "object.ndjson": (lines({"text": {"en": "a"}}), "wrong type"),
    "surrogate.jsonl": (b'{"text": "\\ud83d"}\n', "surrogates"),
    "latin.jsonl": ('{"text": "Fäden"}\n'.encode("latin-1"), "not UTF-8"),
    "latin.csv": ("text,n\ngood,1\nFäden,2\n".encode("latin-1"), "not UTF-8"),
    "latin.tsv": ("text\tn\nFäden\t2\n".encode("latin-1"), "not UTF-8"),
    "zero.jsonl": (GOOD + b'{"text": "a\0"}\n', "zero byte"),
    "zero.csv": (b"text,n\n" + b"a,1\n" * 2000 + b"a\0,1\n", "zero byte"),
    "column.jsonl": (lines({"body": "a"}), "missing column"),
    "column.csv": (b"body,n\na,1\n", "missing column"),
    "column.tsv": (b"body\tn\na\t1\n", "missing column"),
    "headless.csv": (b"this is good,1\nthat is bad,0\n", "missing column"),
    "fields.csv": (b"text,n\na,1\nb, and c,2\n", "wrong number of fields"),
    "fields.tsv": (b"text\tn\na\t1\nb\tc\t2\n", "wrong number of fields"),
    "again.csv": (b"text,n\na,1\ntext,n\nb,2\n", "header again"),
    "twice.csv": (b"text,text\na,b\n", "repeated column"),
    "open.csv": (b'text,n\n"never closed,1\na,2\n', "not CSV"),
    "after.csv": (b'text,n\n"closed" early,1\n', "not CSV"),
    "nothing.txt": (b"", "empty file"),
    "mojibake.txt": ("FÃ¤den".encode(), "mojibake"),
    "page.md": (b"<!DOCTYPE html><html><body>text</body></html>", "markup"),
    "records.txt": (GOOD, "JSON as text"),
    "thesis.pdf": (b"%PDF-1.7", "other files"),
}


def write(folder: Path) -> None:
    """Write all of them, and one that has nothing wrong."""
    folder.mkdir(exist_ok=True)
    for name, (data, _) in TEXTS.items():
        (folder / name).write_bytes(data)
    (folder / "good.jsonl").write_bytes(GOOD)


# What may be wrong with labelled records, by file.
RECORDS: dict[str, tuple[bytes, str]] = {
    "null.jsonl": (lines({"text": "a", "label": None}), "no label"),
    "nan.jsonl": (b'{"text": "a", "label": NaN}\n', "no label"),
    "empty.csv": (b"text,label\na,\n", "no label"),
    "list.jsonl": (lines({"text": "a", "label": ["x"]}), "wrong type"),
    "nulltext.jsonl": (lines({"text": None, "label": "x"}), "null"),
    "unlabelled.tsv": (b"text\tlabel\na one\tx\nb two\ty\nc three\t-\n", "no label"),
    "nolabel.jsonl": (lines({"text": "a"}), "missing column"),
    "latin.csv": ("text,label\nFäden,x\n".encode("latin-1"), "not UTF-8"),
    "fields.csv": (b"text,label\na,x,y\n", "wrong number of fields"),
}

assert len(TEXTS) >= 60
