"""Texts to predict from: arguments, files with a text per line, tables, tagged words, and standard input."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from math import isnan
from pathlib import Path
from typing import Any

from heddle.config.data import DataConfig, Labels
from heddle.data.sources.examples import LABEL, TAGGED, Example, of_row, read_examples
from heddle.data.sources.files import COMPRESSED, STDIN, TABLES, TEXTS, check_line, kind_of, raw_lines, read_lines
from heddle.data.sources.notes import MalformedError, Reader
from heddle.data.sources.tables import TableRow, read_rows
from heddle.errors import HeddleError, TextError, pluralize
from heddle.progress import counting

FILES = re.compile(
    rf"\S+({'|'.join(map(re.escape, (*TEXTS, *TABLES, *TAGGED)))})({'|'.join(map(re.escape, COMPRESSED))})?",
    re.IGNORECASE,
)
EMPTY = "every text is empty"
CHUNK = 4096  # texts whose results are printed together
Lines = Callable[[str], Iterable[str]]


@dataclass(frozen=True)
class Inputs:
    """How to read texts from arguments and files.

    Attributes:
        fields: `text`, or `text` and `pair`.
        columns: table columns of fields whose column has another name.
        labels: `tokens` to read texts as words.
        reader: what to do with malformed rows.
    """

    fields: tuple[str, ...] = ("text",)
    columns: Mapping[str, str] | None = None
    labels: Labels = "classes"
    reader: Reader = field(default_factory=Reader)

    def read(self, arguments: Sequence[str], pairs: Sequence[str], stdin: Lines) -> "Items":
        """Read texts, pairs or lists of words from arguments, each of which is a text, a file or `-`.

        Args:
            arguments: at least one.
            pairs: the second text of each argument that is a text.
            stdin: returns the lines of standard input, in an encoding.

        Raises:
            HeddleError: a file cannot be read, or texts and pairs differ in number.
        """
        return Items(self._examples(arguments, pairs, stdin))

    def _examples(
        self, arguments: Sequence[str], pairs: Sequence[str], stdin: Lines
    ) -> Iterator[tuple[Example, Mapping[str, Any]]]:
        texts = [argument for argument in arguments if argument not in STDIN and not _is_file(argument)]
        if "pair" in self.fields and len(texts) != len(pairs):
            raise HeddleError(
                f"{pluralize(len(texts), 'text')} and {pluralize(len(pairs), 'second text')}: this run reads text pairs; "
                "give --pair once per text, or a table"
            )
        second_texts = iter(pairs)
        numbers = count(1)
        for argument in arguments:
            if argument in STDIN:
                yield from self._lines(stdin(self.reader.encoding), "standard input")
            elif _is_file(argument):
                yield from self._file(Path(argument))
            else:
                parts = (argument, next(second_texts)) if "pair" in self.fields else (argument,)
                origin = text_label(next(numbers), len(texts))
                yield self._row(TableRow(dict(zip(self.fields, parts, strict=True)), origin), {})

    def _file(self, file: Path) -> Iterator[tuple[Example, Mapping[str, Any]]]:
        kind = kind_of(file)
        if kind in TABLES:
            rows = read_rows(file, self.reader)
            yield from self.reader.parse_each(rows, lambda row: self._row(row, self.columns or {}))
        elif kind in TAGGED and self.labels == "tokens":
            for example in read_examples([file], ("text", LABEL), {}, "tokens", reader=self.reader):
                yield example, {"words": list(example.texts["text"]), "tags": list(example.label or ())}
        else:
            with self.reader.skip_malformed():
                lines = (line.rstrip("\r\n") for line in raw_lines(file, self.reader.encoding))
                yield from self._lines(lines, str(file))

    def _lines(self, lines: Any, source: str) -> Iterator[tuple[Example, Mapping[str, Any]]]:
        """One text per line, or JSON lines if the first line is an object."""
        objects: bool | None = None
        for number, line in enumerate(lines, start=1):
            if objects is None and line.strip():
                objects = _object(line) is not None
                if not objects and "pair" in self.fields:
                    raise HeddleError(f"{source} has one text per line, but this run reads text pairs: give a table")
            row = TableRow({"text": line}, f"{source}:{number}")
            with self.reader.skip_malformed():
                check_line(line, row.origin, self.reader.encoding)
                example = self._line(line, row, bool(objects and line.strip()))
                self.reader.notes.read += 1
                yield example

    def _line(self, line: str, row: TableRow, is_object: bool) -> tuple[Example, Mapping[str, Any]]:
        if is_object:
            values = _object(line)
            if values is None:
                raise MalformedError("not JSON", row.origin, "expected a JSON object, as on the first line")
            row = TableRow(values, row.origin)
        elif not line.strip():
            row = TableRow(dict.fromkeys(self.fields, ""), row.origin)
        return self._row(row, (self.columns or {}) if is_object else {})

    def _row(self, row: TableRow, columns: Mapping[str, str]) -> tuple[Example, Mapping[str, Any]]:
        """A row as an example, and its columns. A null, including NaN from pandas, is an empty text."""
        columns_read = {columns.get(field, field) for field in self.fields}
        nulls = {name: "" for name in columns_read if name in row.values and is_null(row.values[name])}
        return of_row(replace(row, values={**row.values, **nulls}), self.fields, columns, self.labels), row.values


def reader_of(encoding: str, skip_invalid: bool) -> Reader:
    """A reader that skips malformed items, or fails at the first one.

    Raises:
        HeddleError: unknown encoding.
    """
    return Reader(DataConfig.of({"encoding": encoding}).encoding, "items" if skip_invalid else "none")


class Items(list[Any]):
    """Texts, pairs or lists of words in order.

    Args:
        examples: each with the columns of its row.

    Attributes:
        origins: file and line of each text.
        rows: columns of each text's row.
        empty: whether each text is whitespace alone.
    """

    def __init__(self, examples: Iterable[tuple[Example, Mapping[str, Any]]]) -> None:
        pairs = list(examples)
        texts = [tuple(example.texts.values()) for example, _ in pairs]
        super().__init__(fields if len(fields) > 1 else fields[0] for fields in texts)
        self.origins = [example.origin for example, _ in pairs]
        self.rows = [row for _, row in pairs]
        self.empty = [example.empty for example, _ in pairs]


def is_null(value: Any) -> bool:
    """Whether a table value is missing: None or NaN."""
    return value is None or (isinstance(value, float) and isnan(value))


def text_label(number: int, of: int) -> str:
    """The name of a text argument in messages."""
    return "the text" if of == 1 else f"text {number}"


def text_lines(file: Path, encoding: str = "utf-8") -> Iterator[str]:
    """The lines of a text file, without line endings.

    Raises:
        HeddleError: the file does not exist, or is not valid text in this encoding.
    """
    if not file.exists():
        raise HeddleError(f"{file}: no such file")
    for line in read_lines(file, encoding):
        yield line.rstrip("\r\n")


@contextmanager
def locating_errors(origins: Sequence[str]) -> Iterator[None]:
    """Add a text's file and line to errors about it."""
    try:
        yield
    except TextError as error:
        raise error.at(origins[error.number]) from None


def _is_file(argument: str) -> bool:
    """Whether an argument is a file to read.

    Raises:
        HeddleError: it looks like a file name but does not exist, or it is a folder.
    """
    with suppress(OSError, ValueError):  # a text may be too long for a file name
        if Path(argument).is_file():
            return True
        if Path(argument).is_dir() and not re.search(r"\s", argument.strip()) and "/" in argument:
            raise HeddleError(f"{argument} is a folder; name the files in it")
    if FILES.fullmatch(argument):
        raise HeddleError(f"{argument}: no such file")
    return False


def _object(line: str) -> dict[str, Any] | None:
    """The JSON object of a line, or None."""
    if not line.lstrip().startswith("{"):
        return None
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def in_chunks(
    items: Items, call: Callable[[list[Any], Callable[[int, int], None]], Sequence[Any]], tell: Callable[[str], None]
) -> Iterator[tuple[list[Any], list[Any]]]:
    """Call a function on chunks of texts; yield each chunk with its results, None for empty texts.

    Args:
        items: the texts.
        call: gets the texts of a chunk that are not empty, and a function to report progress to.
        tell: called with a line of progress every two seconds.
    """

    def state(done: int) -> str:
        return f"{min(start + done, len(items)):,} of {pluralize(len(items), 'text')}"

    for start in range(0, len(items), CHUNK):
        chunk = items[start : start + CHUNK]
        nonempty = [number for number in range(len(chunk)) if not items.empty[start + number]]
        origins = [items.origins[start + number] for number in nonempty]
        with counting(tell, state) as done, locating_errors(origins):
            results = call([chunk[number] for number in nonempty], done)
        by_place = dict(zip(nonempty, results, strict=True))
        yield chunk, [by_place.get(number) for number in range(len(chunk))]
