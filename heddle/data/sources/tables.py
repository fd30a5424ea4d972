"""Reading the rows of files with named columns: JSON lines, JSON arrays, CSV, TSV, Parquet, Arrow."""

import csv
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heddle.checks import RepeatedKeyError, unique_keys
from heddle.data.sources.arrow import ARROW, arrow_rows
from heddle.data.sources.files import JSON, check_line, kind_of, raw_lines, read_text
from heddle.data.sources.notes import MalformedError, Reader
from heddle.errors import did_you_mean, pluralize

# Python's csv refuses fields above 128 kB, but a document may be one field.
_LONGEST_FIELD = 2**31 - 1
_KINDS = {
    int: "a number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
    type(None): "nothing",
}
_DELIMITERS = ",;\t|"
_RETURNS, _FEEDS = "its lines end in carriage returns alone", "end them with line feeds, as tr '\\r' '\\n' does"
_QUOTED = re.compile(r'("[^"\t]*"\t?)+')  # a line with all fields quoted
_DOUBLED = re.compile(r'(?:^|\t)"(?:[^"\t]|"")*""(?:[^"\t]|"")*"(?=[\t\r\n]|$)')  # a quoted field with quotes inside
_RECORDS = 'every line must be an object, like {"text": "..."}'

FIELDS = ("text", "source", "target", "pair", "negative", "label", "messages")


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of a table and its origin, as `path:line`."""

    values: Mapping[str, Any]
    origin: str

    def get(self, column: str) -> Any:
        """The value of a column; `translation.en` is `en` inside `translation`, unless a column has that name.

        Raises:
            MalformedError: there is no such column.
        """
        if column in self.values:
            return self.values[column]
        value: Any = self.values
        for name in column.split("."):
            if not isinstance(value, Mapping) or name not in value:
                available = ", ".join(map(str, self.values)) or "none"
                suggestion = did_you_mean(column, self.values)
                # A field without a configured column is read from the column with its own name.
                where_later = (
                    f" in training, --{column}-column afterwards" if column in ("text", "pair", "label") else ""
                )
                advice = f" Name yours: {column}=...{where_later}" if column in FIELDS and not suggestion else ""
                raise MalformedError(
                    "missing column",
                    self.origin,
                    f"no column {column!r}",
                    f"there are: {available}.{suggestion}{advice}",
                )
            value = value[name]
        return value

    def text(self, column: str) -> str:
        """The text in a column.

        Raises:
            MalformedError: there is no such column, or its value is not a text.
        """
        return as_text(self.get(column), column, self.origin)


def as_text(value: Any, column: str, origin: str) -> str:
    """Check that a value is a text that UTF-8 can encode, and return it.

    Raises:
        MalformedError: it is not.
    """
    if not isinstance(value, str):
        kind = "null" if value is None else "wrong type"
        raise MalformedError(
            kind, origin, f"column {column!r} has {_KINDS.get(type(value), 'something else')}, not a string"
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:
        # JSON can encode half of a surrogate pair (\ud83d alone), which UTF-8 cannot.
        fault = f"half of a surrogate pair at character {error.start}"
        raise MalformedError("surrogates", origin, fault, "remove it") from error
    return value


def read_rows(file: Path, reader: Reader | None = None) -> Iterator[TableRow]:
    """The rows of a table.

    `.jsonl`, `.ndjson`, `.json`: an object per line, or an array of objects. `.csv`: fields separated by commas, a header first;
    quoted fields may contain line breaks (RFC 4180). If the header has more semicolons, tabs or bars than commas, they separate the
    fields. `.tsv`: fields separated by tabs, a header first; quotes are ordinary characters, as in IANA's
    text/tab-separated-values, unless the file quotes fields as CSV does, as pandas writes it (`quotes_fields`). Blank lines of
    `.csv` and `.tsv` are skipped. `.parquet` and `.arrow`: rows are numbered from 1.

    Args:
        reader: how to read the file, and whether malformed rows are skipped.

    Raises:
        HeddleError: the file cannot be read.
        MalformedError: a row is malformed.
    """
    reader = reader or Reader()
    with reader.skip_malformed():
        if kind_of(file) in ARROW:
            for number, values in enumerate(arrow_rows(file), start=1):
                yield TableRow(values, f"{file}:{number}")
        elif kind_of(file) in JSON:
            yield from _json_rows(file, reader)
        else:
            tabs = kind_of(file) == ".tsv" and not quotes_fields(file, reader.encoding)
            yield from _with_header(file, _tsv(file, reader) if tabs else _csv(file, reader), reader)


def _with_header(file: Path, lines: Iterator[tuple[int, list[str]]], reader: Reader) -> Iterator[TableRow]:
    header: list[str] | None = None
    for number, row in lines:
        origin = f"{file}:{number}"
        if header is None:
            header = row
            repeated = next((name for name in row if row.count(name) > 1), None)
            if repeated is not None:
                raise MalformedError("repeated column", origin, f"the header names the column {repeated!r} twice")
            check_line("\t".join(row), origin, reader.encoding)
            continue
        with reader.skip_malformed():
            if len(row) != len(header):
                fault = f"{pluralize(len(row), 'field')}, but the header names {len(header)}: {', '.join(header)}"
                raise MalformedError("wrong number of fields", origin, fault)
            for field in row:
                check_line(field, origin, reader.encoding)
            if len(row) > 1 and row == header:
                raise MalformedError("header again", origin, "the header, once more", "remove it")
            yield TableRow(dict(zip(header, row, strict=True)), origin)


def _json_rows(file: Path, reader: Reader) -> Iterator[TableRow]:
    first = next((line for line in raw_lines(file, reader.encoding) if line.strip()), "")
    if first.lstrip().startswith("["):
        yield from _json_array(file, reader)
        return
    if kind_of(file) == ".json" and not _is_object(first):
        _refuse_object(file, reader)
    for number, line in enumerate(raw_lines(file, reader.encoding), start=1):
        origin = f"{file}:{number}"
        with reader.skip_malformed():
            check_line(line, origin, reader.encoding)
            if not line.strip():
                raise MalformedError("blank line", origin, "a blank line, not a line of JSON", _RECORDS)
            try:
                values = json.loads(line, object_pairs_hook=unique_keys)
            except RepeatedKeyError as error:
                raise MalformedError("repeated column", origin, str(error)) from error
            except (ValueError, RecursionError) as error:
                raise MalformedError("not JSON", origin, "not a line of JSON", _RECORDS) from error
            if not isinstance(values, dict):
                raise MalformedError("no object", origin, "not an object", _RECORDS)
            yield TableRow(values, origin)


def _json_array(file: Path, reader: Reader) -> Iterator[TableRow]:
    """The objects of a JSON array. A file that is not an array may be JSON lines whose first line is a list, which is refused."""
    try:
        items = json.loads(read_text(file, reader.encoding), object_pairs_hook=unique_keys)
    except RepeatedKeyError as error:
        raise MalformedError("repeated column", file, str(error)) from error
    except RecursionError as error:
        raise MalformedError("not JSON", f"{file}:1", "not a line of JSON", _RECORDS) from error
    except ValueError as error:
        line, reason = (error.lineno, error.msg) if isinstance(error, json.JSONDecodeError) else (1, str(error))
        fault = f"neither JSON lines nor a JSON array of objects: {reason}"
        raise MalformedError("not JSON", f"{file}:{line}", fault, _RECORDS) from error
    for number, values in enumerate(items, start=1):
        origin = f"{file} item {number}"
        with reader.skip_malformed():
            if not isinstance(values, dict):
                raise MalformedError(
                    "no object", origin, "not an object", 'every item must be one, like {"text": "..."}'
                )
            yield TableRow(values, origin)


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _refuse_object(file: Path, reader: Reader) -> None:
    """Refuse a file that is a single JSON value over several lines.

    Raises:
        MalformedError: it is.
    """
    try:
        value = json.loads(read_text(file, reader.encoding))
    except (ValueError, RecursionError):
        return
    list_name = (
        next((name for name, each in value.items() if isinstance(each, list)), None)
        if isinstance(value, dict)
        else None
    )
    reason = f"its {list_name!r} alone may be" if list_name else "it has settings or columns"
    advice = f"{reason}; write a line for each record (pandas: orient='records', lines=True)"
    raise MalformedError("one object", file, "one JSON value, not an array of records and not lines of them", advice)


def _tsv(file: Path, reader: Reader) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(raw_lines(file, reader.encoding), start=1):
        if line := line.removesuffix("\n").removesuffix("\r"):
            if number == 1 and "\r" in line:
                raise MalformedError("not TSV", f"{file}:1", f"not a header ({_RETURNS})", _FEEDS)
            yield number, line.split("\t")


def _csv(file: Path, reader: Reader) -> Iterator[tuple[int, list[str]]]:
    lines, delimiter = raw_lines(file, reader.encoding), ""
    for before, line in enumerate(lines):
        if (separator := re.fullmatch(r"sep=(.)\r?\n?", line)) is not None:  # Excel's own first line
            delimiter = separator[1]
        elif line.strip():
            yield from _fields(file, _with_first(line, lines), delimiter or delimiter_of(line), before, reader)
            return


def _with_first(first: str, rest: Iterator[str]) -> Iterator[str]:
    yield first
    yield from rest


def _fields(
    file: Path, lines: Iterator[str], delimiter: str, before: int, reader: Reader
) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(_LONGEST_FIELD)
    rows = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        number = before + rows.line_num + 1
        with reader.skip_malformed():
            try:
                row = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                returns = "new-line character" in str(error)
                reason = _RETURNS if returns else str(error)
                place = f"{file}:{number}"
                raise MalformedError(
                    "not CSV", place, f"not valid CSV ({reason})", _FEEDS if returns else ""
                ) from error
            if row:
                yield number, row


def delimiter_of(header: str) -> str:
    """The delimiter of a table: the most frequent of , ; tab and | in its header, outside of quotes."""
    outside = re.sub(r'"[^"]*"', "", header)
    return max(_DELIMITERS, key=outside.count)  # the first one if counts are equal


def quotes_fields(file: Path, encoding: str = "utf-8") -> bool:
    """Whether a `.tsv` file quotes its fields as CSV does, as pandas writes it, rather than using quotes as ordinary characters.

    It does if the entire file is valid CSV, and a quoted field has doubled quotes inside, or all fields of the header are quoted,
    or rows have equally many fields only when quotes are parsed.
    """
    if not any(line.startswith('"') or '\t"' in line for line in raw_lines(file, encoding)):
        return False
    needed, widths, tabs = False, set[int](), set[int]()

    def lines() -> Iterator[str]:
        nonlocal needed
        for line in raw_lines(file, encoding):
            needed = needed or _DOUBLED.search(line) is not None
            tabs.update([line.count("\t")] if line.strip() else [])
            yield line

    csv.field_size_limit(_LONGEST_FIELD)
    try:
        for row in csv.reader(lines(), delimiter="\t", strict=True):
            if row and not widths:
                header = next(line for line in raw_lines(file, encoding) if line.strip()).rstrip("\r\n")
                needed = needed or _QUOTED.fullmatch(header) is not None
            widths.update([len(row)] if row else [])
            needed = needed or (widths == {1} and "\n" in "".join(row))
    except csv.Error:
        return False
    return needed or (len(widths) == 1 and len(tabs) > 1)
