"""Rows of results in a file: a row for each row of the input, with the input's own columns."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import Any

from heddle.cli.inputs import Items
from heddle.data.sources.arrow import package
from heddle.errors import HeddleError
from heddle.weights.files import refuse_unwritable, write_file

ROWS = (".csv", ".jsonl", ".parquet")
INDEX = "index"


def check_out(out: Path, kinds: Sequence[str] = ROWS) -> None:
    """Refuse a file that cannot be written, before anything takes time.

    Raises:
        HeddleError: it exists, its extension is not one of `kinds`, or a package is missing.
    """
    if out.suffix not in kinds:
        raise HeddleError(f"--out {out}: must end in {', '.join(kinds[:-1])} or {kinds[-1]}")
    if out.suffix == ".parquet":
        package("pyarrow", out)
    refuse_unwritable(out)


def with_input(items: Items, results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each row of the input with its result: its number from 0, its own columns, and the result's.

    Raises:
        HeddleError: a column of the input is called as one of the results.
    """
    columns = dict.fromkeys(column for values in items.rows for column in values)
    both = next((column for result in results for column in result if column in columns), None)
    if both is not None:
        raise HeddleError(f"--out: the input has a column {both!r}, which the result has too: rename it in the input")
    empty = dict.fromkeys(columns)
    return [
        {INDEX: number, **empty, **values, **result}
        for number, (values, result) in enumerate(zip(items.rows, results, strict=True))
    ]


def write_rows(out: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as CSV, lines of JSON or Parquet; what is missing is empty or null, and half of a surrogate pair is escaped.

    Raises:
        HeddleError: the file cannot be written, or it is Parquet and a column has values of several kinds.
    """
    columns = list(dict.fromkeys(column for row in rows for column in row))
    if out.suffix == ".csv":
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([_cell(row.get(column)) for column in columns] for row in rows)
        data = text.getvalue().encode(errors="backslashreplace")
    elif out.suffix == ".jsonl":
        written = (f"{json.dumps(_plain(row), ensure_ascii=False, default=str)}\n" for row in rows)
        data = "".join(written).encode(errors="backslashreplace")
    else:
        stream, arrow = io.BytesIO(), package("pyarrow", out)
        table = {column: _array(arrow, out, column, [row.get(column) for row in rows]) for column in columns}
        package("pyarrow.parquet", out).write_table(arrow.table(table), stream)
        data = stream.getvalue()
    write_file(out, data)


def _array(arrow: Any, out: Path, column: str, values: list[Any]) -> Any:
    """A column of Parquet."""
    try:
        return arrow.array(values)
    except (arrow.ArrowException, OverflowError, UnicodeError) as error:
        raise HeddleError(
            f"--out {out}: the column {column!r} has values that no column of Parquet can have ({error}): write .jsonl or .csv"
        ) from error


def _cell(value: Any) -> Any:
    """A value as a field of CSV."""
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, list | tuple | Mapping) else value


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row without NaN, which JSON does not have."""
    return {column: None if isinstance(value, float) and isnan(value) else value for column, value in row.items()}
