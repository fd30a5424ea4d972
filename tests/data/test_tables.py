"""Tables as they come: JSON in lines and as an array, fields separated by what countries and programs use, quotes or none."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from heddle.data.sources.notes import MalformedError, Notes, Reader
from heddle.data.sources.tables import delimiter_of, quotes_fields, read_rows

RECORDS = [{"text": "one, two", "n": "1"}, {"text": 'she said "so"', "n": "2"}, {"text": "a;b\tc", "n": "3"}]


def rows(file: Path, **options: Any) -> list[dict[str, Any]]:
    return [dict(row.values) for row in read_rows(file, Reader(**options))]


def table(records: list[dict[str, str]], **options: Any) -> str:
    """As Python's own csv writes it, which pandas uses too."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(records[0]), lineterminator="\n", **options)
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.json"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_json_is_read_as_lines_and_as_an_array(tmp_path: Path, name: str, mark: str) -> None:
    file = tmp_path / name
    file.write_text(mark + "".join(f"{json.dumps(each)}\n" for each in RECORDS))
    assert rows(file) == RECORDS
    for indent in (None, 2):
        file.write_text(mark + json.dumps(RECORDS, indent=indent))
        result = list(read_rows(file))
        assert [row.values for row in result] == RECORDS
        assert result[1].origin == f"{file} item 2"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            '{\n "train": [{"text": "a"}]\n}',
            "one JSON value, not an array of records and not lines of them; its 'train' alone",
        ),
        (
            '{\n "text": {"0": "a"}\n}',
            "settings or columns; write a line for each record (pandas: orient='records', lines=True)",
        ),
        ('[{"text": "a"},\n {"text": "b",}]', ":2: neither JSON lines nor a JSON array of objects: "),
        ('[{"text": "a"}, 3]', " item 2: not an object"),
        ('[{"text": "a", "text": "b"}]', "the key 'text' occurs twice"),
    ],
)
def test_other_json_is_refused_by_its_name(tmp_path: Path, text: str, line: str) -> None:
    file = tmp_path / "a.json"
    file.write_text(text)
    with pytest.raises(MalformedError) as error:
        rows(file)
    assert line in str(error.value)


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
@pytest.mark.parametrize("first", ["", "sep={}\n", "\ufeff"])
def test_csv_of_any_country(tmp_path: Path, delimiter: str, quoting: Any, first: str) -> None:
    file = tmp_path / "a.csv"
    file.write_text(first.format(delimiter) + table(RECORDS, delimiter=delimiter, quoting=quoting))
    rows = list(read_rows(file))
    assert [row.values for row in rows] == RECORDS
    assert rows[0].origin == f"{file}:{3 if 'sep' in first else 2}"


def test_what_separates_fields_is_what_the_header_has_most_of() -> None:
    assert delimiter_of('"a, b, c";d\n') == ";"
    assert delimiter_of("text,label;x\n") == ","
    assert delimiter_of("text\n") == ","


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
def test_tsv_as_pandas_writes_it(tmp_path: Path, quoting: Any) -> None:
    """Quotes around fields that need them, doubled inside; line breaks and tabs inside."""
    file = tmp_path / "a.tsv"
    records = [*RECORDS, {"text": "two\nlines", "n": "4"}]
    file.write_text(table(records, delimiter="\t", quoting=quoting))
    assert rows(file) == records
    for field in ("two\nlines", "a\ttab", 'a "quote"', '"quoted"'):
        file.write_text(table([{"text": field, "n": "1"}], delimiter="\t"))
        assert rows(file) == [{"text": field, "n": "1"}]


def test_a_row_that_is_short_does_not_change_what_quotes_are(tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    file.write_text(table(RECORDS, delimiter="\t") + "short\n")
    assert rows(file, skips="items") == RECORDS


@pytest.mark.parametrize(
    "field", ['"a whole quote"', '"half', 'half"', '"one" and "two"', '5" and 6"', '""', '"', '"a" said b']
)
def test_tsv_without_quoting_keeps_its_quotes(tmp_path: Path, field: str) -> None:
    """As GLUE and CoNLL have it."""
    file = tmp_path / "a.tsv"
    file.write_text(f"text\tn\n{field}\t1\nplain\t2\n{field}\t3\n")
    assert [row["text"] for row in rows(file)] == [field, "plain", field]
    assert not quotes_fields(file)


def test_one_field_in_quotes_and_one_that_only_begins_with_one_are_both_kept(tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    file.write_text('text\tn\n"a ""quote"" "\t1\n"half\t2\n')
    assert [row["text"] for row in rows(file)] == ['"a ""quote"" "', '"half']


def test_a_key_that_occurs_twice_in_a_line_is_refused(tmp_path: Path) -> None:
    """As two columns of one name are: `json` alone would keep the last."""
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "one"}\n{"text": "two", "label": "a", "text": "three"}\n')
    with pytest.raises(MalformedError, match=r"a.jsonl:2: the key 'text' occurs twice"):
        rows(file)
    notes = Notes()
    assert rows(file, skips="items", notes=notes) == [{"text": "one"}]
    assert notes.left_out == {"repeated column": 1}


def test_what_is_malformed_is_left_out_and_counted_if_asked(tmp_path: Path) -> None:
    file, notes = tmp_path / "a.csv", Notes()
    data = 'text,n\ngood,1\nF\xe4den,2\nthree,fields,3\n"early" end,4\ntext,n\nlast,5\n'
    file.write_bytes(data.encode("latin-1"))
    records = rows(file, skips="items", notes=notes)
    assert [row["text"] for row in records] == ["good", "last"]
    assert notes.left_out == {"not UTF-8": 1, "wrong number of fields": 1, "not CSV": 1, "header again": 1}
    assert [note.where for note in notes] == [f"{file}:{line}" for line in (3, 4, 5, 6)]
    with pytest.raises(
        MalformedError, match=r"a.csv:3: not UTF-8 \(0xe4\); convert it with iconv, or name its encoding"
    ):
        rows(file)
    latin = rows(file, encoding="latin-1", skips="items")
    assert [row["text"] for row in latin] == ["good", "F\xe4den", "last"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "cp1252", "utf-8-sig", "shift_jis"])
def test_another_encoding_is_read_by_its_name(tmp_path: Path, encoding: str) -> None:
    word = "\u30c6\u30ad\u30b9\u30c8" if encoding == "shift_jis" else "F\xe4den"
    for name, text in (
        ("a.csv", f"text,n\n{word},1\n"),
        ("a.json", json.dumps([{"text": word, "n": "1"}], ensure_ascii=False)),
    ):
        (tmp_path / name).write_bytes(text.encode(encoding))
        assert rows(tmp_path / name, encoding=encoding) == [{"text": word, "n": "1"}]


def test_a_mark_of_utf8_is_no_other_encoding(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbftext,n\na,1\n")
    with pytest.raises(MalformedError, match="it begins with the mark of UTF-8, but encoding = 'cp1252'"):
        rows(tmp_path / "a.csv", encoding="cp1252")
