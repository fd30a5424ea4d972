"""Results as columns, and files with a row for each input row, including the input's columns."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from heddle.data.sources.arrow import package
from heddle.errors import HeddleError
from heddle.predict.classify import Prediction, TextClass, TextLabels, TextNumber, WordClasses
from heddle.predict.fill import Filling
from heddle.weights.files import refuse_unwritable, write_file

ROWS = (".csv", ".jsonl", ".parquet")
INDEX = "index"
RESULTS = {"classes": TextClass, "labels": TextLabels, "words": WordClasses, "number": TextNumber}
Vector = np.ndarray[Any, np.dtype[np.float32]]


def check_out(out: Path, kinds: Sequence[str] = ROWS) -> None:
    """Refuse an output file that cannot be written, before any work is done.

    Raises:
        HeddleError: the file exists, its extension is not in `kinds`, or a package is missing.
    """
    if out.suffix not in kinds:
        raise HeddleError(f"--out {out}: must end in {', '.join(kinds[:-1])} or {kinds[-1]}")
    if out.suffix == ".parquet":
        package("pyarrow", out)
    refuse_unwritable(out)


def result_fields(kind: str, result: Prediction | None) -> dict[str, Any]:
    """The fields of a result of this kind of head, null for an empty text."""
    return asdict(result) if result else dict.fromkeys(field.name for field in fields(RESULTS[kind]))


def result_columns(kind: str, result: Prediction | None) -> dict[str, Any]:
    """A result of this kind of head as columns, null for an empty text."""
    if isinstance(result, TextClass):
        return {"predicted": result.label, "probability": result.probability,
                "probabilities": dict(result.probabilities), "cut": result.cut}  # fmt: skip
    if isinstance(result, WordClasses):
        return {"predicted": [word.label for word in result.words],
                "probability": [word.probability for word in result.words], "cut": result.cut}  # fmt: skip
    if isinstance(result, TextLabels):
        return {"predicted": list(result.labels), "probabilities": dict(result.probabilities), "cut": result.cut}
    if isinstance(result, TextNumber):
        return {"predicted": result.number, "cut": result.cut}
    columns = {
        "number": ("predicted", "cut"),
        "labels": ("predicted", "probabilities", "cut"),
        "words": ("predicted", "probability", "cut"),
    }
    return dict.fromkeys(columns.get(kind, ("predicted", "probability", "probabilities", "cut")))


def filling_columns(filling: Filling | None) -> dict[str, Any]:
    """A text with its masks filled in as columns, null for an empty text."""
    values = asdict(filling) if filling else dict.fromkeys(field.name for field in fields(Filling))
    return {"filled": values.pop("text"), **values}


def add_input_columns(rows: Sequence[Mapping[str, Any]], results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each input row with its result: the row number from 0, the input's columns, and the result's.

    Raises:
        HeddleError: an input column and a result column have the same name.
    """
    columns = dict.fromkeys(column for values in rows for column in values)
    conflict = next((column for result in results for column in result if column in columns), None)
    if conflict is not None:
        raise HeddleError(
            f"--out: the input column {conflict!r} has the name of a result column; rename it in the input"
        )
    nulls = dict.fromkeys(columns)
    return [
        {INDEX: number, **nulls, **values, **result}
        for number, (values, result) in enumerate(zip(rows, results, strict=True))
    ]


def write_rows(out: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as CSV, JSON lines or Parquet. Missing values are empty or null; lone surrogates are escaped.

    Raises:
        HeddleError: the file cannot be written, or a Parquet column has values of mixed types.
    """
    columns = list(dict.fromkeys(column for row in rows for column in row))
    if out.suffix == ".csv":
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([_cell(row.get(column)) for column in columns] for row in rows)
        data = text.getvalue().encode(errors="backslashreplace")
    elif out.suffix == ".jsonl":
        lines = (f"{json.dumps(_without_nan(row), ensure_ascii=False, default=str)}\n" for row in rows)
        data = "".join(lines).encode(errors="backslashreplace")
    else:
        stream, arrow = io.BytesIO(), package("pyarrow", out)
        table = {column: _array(arrow, out, column, [row.get(column) for row in rows]) for column in columns}
        package("pyarrow.parquet", out).write_table(arrow.table(table), stream)
        data = stream.getvalue()
    write_file(out, data)


def write_vectors(out: Path, rows: Sequence[Vector | None], dim: int) -> None:
    """Write vectors [N D] as .npy, or as the tensor `embeddings` of a .safetensors file, with NaN for empty texts."""
    vectors = np.stack([np.full(dim, np.nan, np.float32) if row is None else row for row in rows])
    if out.suffix == ".safetensors":
        write_file(out, save({"embeddings": vectors}))
        return
    data = io.BytesIO()
    np.save(data, vectors, allow_pickle=False)
    write_file(out, data.getvalue())


def _array(arrow: Any, out: Path, column: str, values: list[Any]) -> Any:
    """A Parquet column."""
    try:
        return arrow.array(values)
    except (arrow.ArrowException, OverflowError, UnicodeError) as error:
        raise HeddleError(
            f"--out {out}: column {column!r} cannot be stored as Parquet ({error}); write .jsonl or .csv"
        ) from error


def _cell(value: Any) -> Any:
    """A value as a CSV field."""
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, list | tuple | Mapping) else value


def _without_nan(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row without NaN, which JSON does not have."""
    return {column: None if isinstance(value, float) and isnan(value) else value for column, value in row.items()}
