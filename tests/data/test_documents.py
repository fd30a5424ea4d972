"""Reading documents: every kind of source, a fixed order, and one clear line for everything that is no text."""

import gzip
import json
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.data.sources.documents import Document, describe, python_library, read_documents
from heddle.data.sources.notes import Reader
from tests import refusing


def texts(*sources: str | Path) -> list[str]:
    return [document.text for document in read_documents(sources, reader=Reader())]


def refusal(*sources: str | Path) -> str:
    return refusing.refusal(lambda: list(read_documents(sources)))


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    (folder / "sub" / ".hidden").mkdir(parents=True)
    (folder / "b.md").write_text("second")
    (folder / "a.txt").write_text("first")
    (folder / "sub" / "c.py").write_text("third = 3")
    (folder / "sub" / "d.txt.gz").write_bytes(gzip.compress(b"fourth"))
    (folder / "sub" / "empty.py").touch()
    (folder / "sub" / "picture.png").write_bytes(b"\x89PNG\0")
    (folder / "sub" / "notes.odd").write_text("not a known extension")
    (folder / "sub" / ".hidden" / "e.txt").write_text("hidden")
    return folder


def test_a_folder_is_read_sorted_and_by_known_extensions(corpus: Path) -> None:
    assert texts(corpus) == ["first", "second", "fourth"]  # source code only where it is asked for


@pytest.mark.parametrize("source", ["corpus", "corpus/*.txt", "corpus/gone.txt"])
def test_a_link_to_a_file_that_is_gone_is_not_silently_left_out(tmp_path: Path, corpus: Path, source: str) -> None:
    (corpus / "gone.txt").symlink_to("elsewhere.txt")
    message = refusal(tmp_path / source)
    assert message == f"{corpus}/gone.txt: a link to a missing file; remove the link, or restore the file"
    (corpus / "elsewhere.txt").write_text("there")
    assert "there" in texts(tmp_path / source)


def test_sources_come_in_the_order_given(corpus: Path) -> None:
    assert texts(corpus / "b.md", str(corpus / "a.txt"), corpus / "b.md") == ["second", "first", "second"]


def test_a_named_file_may_have_any_extension(corpus: Path) -> None:
    assert texts(corpus / "sub" / "notes.odd") == ["not a known extension"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.txt", ["first"]),
        ("?.*", ["first", "second"]),
        ("**/*.py", ["third = 3"]),
        ("s*", ["fourth"]),
        ("*", ["first", "second", "fourth"]),
        ("sub/c.py", ["third = 3"]),
    ],
)
def test_globs(corpus: Path, pattern: str, expected: list[str]) -> None:
    assert texts(f"{corpus}/{pattern}") == expected


def test_a_name_that_exists_is_no_pattern(tmp_path: Path) -> None:
    (tmp_path / "notes [old].txt").write_text("literal")
    assert texts(tmp_path / "notes [old].txt") == ["literal"]


def test_line_ends_are_kept_and_the_mark_is_not(tmp_path: Path) -> None:
    text = "one\r\ntwo\rthree\n\n"
    (tmp_path / "a.txt").write_bytes(f"\ufeff{text}".encode())
    assert texts(tmp_path / "a.txt") == [text]


@pytest.mark.parametrize("name", ["a.jsonl", "a.JSONL", "a.jsonl.gz"])
def test_lines_of_json_are_documents(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    lines = [{"text": "één\r\n"}, {"text": "", "id": 1}, {"id": 2, "text": "two\u2028lines"}]
    data = "\n".join(json.dumps(line, ensure_ascii=False) for line in lines).encode()
    file.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    documents = list(read_documents([file]))
    assert documents == [Document("één\r\n", f"{file}:1"), Document("two\u2028lines", f"{file}:3")]


def test_a_byte_order_mark_is_no_part_of_a_line_of_json(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes('\ufeff{"text": "one"}\n'.encode())
    assert texts(tmp_path / "a.jsonl") == ["one"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "not a line of JSON"),
        (b"{", "not a line of JSON"),
        (b"[" * 100_000, "not a line of JSON"),
        (b"3", "not an object"),
        (b'["text"]', "not an object"),
        (b'{"txt": "a"}', "no column 'text'; there are: txt. Did you mean 'txt'?"),
        (b'{"text": 3}', "column 'text' has a number, not a string"),
        (b'{"text": "\\ud83d"}', "half of a surrogate pair"),
    ],
)
def test_other_lines_are_refused_with_their_number(tmp_path: Path, line: bytes, reason: str) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'{"text": "good"}\n' + line + b"\n")
    message = refusal(file)
    assert message.startswith(f"{file}:2: ")
    assert reason in message


@given(st.lists(st.text(min_size=1, alphabet=st.characters(exclude_categories=["Cs"])), min_size=1, max_size=5))
def test_any_text_comes_back(tmp_path_factory: pytest.TempPathFactory, expected: list[str]) -> None:
    folder = tmp_path_factory.mktemp("any")
    (folder / "a.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in expected))
    whole = "".join(expected).replace("\0", "")
    (folder / "b.txt").write_bytes(whole.encode())
    whole = whole.removeprefix("\ufeff")
    assert texts(folder) == expected + [whole] * bool(whole)
    shutil.rmtree(folder)


def test_missing_and_empty_sources_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    (tmp_path / "nothing.jsonl").write_text('{"text": ""}\n')
    (tmp_path / "folder").mkdir()
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "a.txt").touch()
    assert "no such file" in refusal(tmp_path / "missing.txt")
    assert "empty" in refusal(tmp_path / "empty.txt")
    assert "empty" in refusal(tmp_path / "nothing.jsonl")
    assert "no text in this folder" in refusal(tmp_path / "folder")
    (tmp_path / "folder" / "code.py").write_text("x = 3")
    assert f"such as '{tmp_path}/folder/**/*.py'" in refusal(tmp_path / "folder")
    assert texts(f"{tmp_path}/folder/**/*.py") == ["x = 3"]
    assert "every file there is empty" in refusal(tmp_path / "bare")
    assert "matches no file" in refusal(tmp_path / "*.md")


def test_what_is_not_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"text\0text")
    assert "binary" in refusal(file)
    assert "byte 4" in refusal(file)
    file.write_bytes("naïve".encode("latin-1"))
    assert f"{file}: not UTF-8 at byte 2 (0xef)" in refusal(file)
    file.write_bytes("wide".encode("utf-16"))
    assert "UTF-16" in refusal(file)
    lines = tmp_path / "a.jsonl"
    lines.write_bytes(b'{"text": "a"}\n{"text": "\xff"}\n')
    assert "a.jsonl:2: not UTF-8 (0xff); convert it" in refusal(lines)
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in refusal(tmp_path / "pipe")


def test_damaged_gzip_is_refused(tmp_path: Path) -> None:
    file, whole = tmp_path / "a.txt.gz", gzip.compress(os.urandom(4000).hex().encode())
    file.write_bytes(whole[:-20])
    assert "cut short" in refusal(file)
    file.write_bytes(b"plain text")
    assert "not a valid gzip file" in refusal(file)
    file.write_bytes(whole[:1000] + bytes(100) + whole[1100:])
    assert "not a valid gzip file" in refusal(file)


def test_an_unreadable_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("secret")

    def closed(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", closed)
    assert "cannot be read: Permission denied" in refusal(tmp_path / "a.txt")


def test_describe_counts_utf8_bytes_and_fingerprints_contents(corpus: Path, tmp_path: Path) -> None:
    (corpus / "a.txt").write_text("één")
    stats = describe([corpus], reader=Reader())
    assert (stats.documents, stats.bytes, stats.squares) == (3, 5 + 6 + 6, 25 + 36 + 36)
    moved = Path(shutil.copytree(corpus, tmp_path / "moved"))
    assert describe([moved], reader=Reader()) == stats
    (moved / "a.txt").write_text("eén!")
    changed = describe([moved], reader=Reader())
    assert changed.bytes == stats.bytes
    assert changed.sha256 != stats.sha256


def test_the_python_library_is_sorted_readable_source() -> None:
    files = python_library()
    assert files == python_library() == sorted(files)
    names = {file.name for file in files}
    assert {"argparse.py", "dataclasses.py", "typing.py"} <= names
    parts = {part for file in files for part in file.parts}
    assert not {"site-packages", "test", "tests", "idlelib"} & parts
    some = files[:: max(1, len(files) // 40)]
    assert [document.origin for document in read_documents(some)] == [str(file) for file in some]
