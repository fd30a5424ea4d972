"""Files with named columns, as rows: lines of JSON, CSV, TSV, Parquet, Arrow."""

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heddle.data.arrow import ARROW, arrow_rows
from heddle.data.files import kind_of, read_lines
from heddle.errors import HeddleError, did_you_mean

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

FIELDS = ("text", "source", "target", "pair", "negative", "label", "messages")


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table and its origin, as `path:line`."""

    values: Mapping[str, Any]
    origin: str

    def get(self, column: str) -> Any:
        """The value of a column; `translation.en` is `en` inside `translation`, unless a column has that name.

        Raises:
            HeddleError: there is no such column.
        """
        if column in self.values:
            return self.values[column]
        found: Any = self.values
        for name in column.split("."):
            if not isinstance(found, Mapping) or name not in found:
                there = ", ".join(map(str, self.values)) or "none"
                near = did_you_mean(column, self.values)
                # A field whose column was never named is looked for under its own name.
                after = f" in training, --{column}-column afterwards" if column in ("text", "pair", "label") else ""
                named = f" Name yours: {column}=...{after}" if column in FIELDS and not near else ""
                raise HeddleError(f"{self.origin}: no column {column!r}; there are: {there}.{near}{named}")
            found = found[name]
        return found

    def text(self, column: str) -> str:
        """The text in a column.

        Raises:
            HeddleError: there is no such column, or it holds something else.
        """
        return as_text(self.get(column), column, self.origin)


def as_text(value: Any, column: str, origin: str) -> str:
    """A value that must be a text that UTF-8 can encode."""
    if not isinstance(value, str):
        raise HeddleError(f"{origin}: column {column!r} has {_KINDS.get(type(value), 'something else')}, not a string")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        # JSON can encode half of a surrogate pair (\ud83d alone), which UTF-8 cannot.
        raise HeddleError(f"{origin}: half of a surrogate pair at character {error.start}; remove it") from error
    return value


def read_rows(file: Path) -> Iterator[Row]:
    """The rows of a table.

    `.jsonl`: an object per line. `.csv`: fields separated by commas, a header first; quoted fields may hold line breaks (RFC 4180).
    `.tsv`: fields separated by tabs, a header first; quotes are ordinary characters, as IANA's text/tab-separated-values has it.
    Blank lines of `.csv` and `.tsv` are skipped. `.parquet` and `.arrow`: rows are numbered from 1.

    Raises:
        HeddleError: the file cannot be read, or a line is not as it should be.
    """
    if kind_of(file) in ARROW:
        yield from (Row(values, f"{file}:{number}") for number, values in enumerate(arrow_rows(file), start=1))
        return
    if kind_of(file) == ".jsonl":
        yield from _json_rows(file)
        return
    fields = _tsv(file) if kind_of(file) == ".tsv" else _csv(file)
    header: list[str] | None = None
    for number, row in fields:
        if header is None:
            header = row
            repeated = next((name for name in row if row.count(name) > 1), None)
            if repeated is not None:
                raise HeddleError(f"{file}:{number}: the header names the column {repeated!r} twice")
        elif len(row) != len(header):
            raise HeddleError(
                f"{file}:{number}: {len(row)} fields, but the header names {len(header)}: {', '.join(header)}"
            )
        else:
            yield Row(dict(zip(header, row, strict=True)), f"{file}:{number}")


def _json_rows(file: Path) -> Iterator[Row]:
    for number, line in enumerate(read_lines(file), start=1):
        origin = f"{file}:{number}"
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise HeddleError(
                f'{origin}: not a line of JSON; every line must be an object, like {{"text": "..."}}'
            ) from error
        if not isinstance(values, dict):
            raise HeddleError(f'{origin}: not an object; every line must be one, like {{"text": "..."}}')
        yield Row(values, origin)


def _tsv(file: Path) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(read_lines(file), start=1):
        if line := line.removesuffix("\n").removesuffix("\r"):
            yield number, line.split("\t")


def _csv(file: Path) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(_LONGEST_FIELD)
    reader = csv.reader(read_lines(file), strict=True)
    while True:
        number = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise HeddleError(f"{file}:{number}: not valid CSV ({error})") from error
        if row:
            yield number, row
