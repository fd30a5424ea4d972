"""Texts to predict from: arguments, files with a text per line, tables, tagged words, and standard input."""

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from math import isnan
from pathlib import Path
from typing import Any

from heddle.cli.streams import input_lines, is_piped
from heddle.config.data import DataConfig, Labels
from heddle.data.sources.examples import LABEL, TAGGED, Example, of_row, read_examples
from heddle.data.sources.files import COMPRESSED, STDIN, TABLES, TEXTS, check_line, kind_of, raw_lines, read_lines
from heddle.data.sources.notes import MalformedError, Reader
from heddle.data.sources.tables import TableRow, read_rows
from heddle.errors import HeddleError, TextError, pluralize
from heddle.text.heartbeat import heartbeat

FILES = re.compile(
    rf"\S+({'|'.join(map(re.escape, (*TEXTS, *TABLES, *TAGGED)))})({'|'.join(map(re.escape, COMPRESSED))})?",
    re.IGNORECASE,
)
EMPTY = "there is no text: every one is empty"
CHUNK = 4096  # texts whose results are printed together


@dataclass(frozen=True)
class Inputs:
    """How texts are read.

    Attributes:
        fields: `text`, or `text` and `pair`.
        columns: the columns of these fields in tables, where they have other names.
        labels: `tokens`, if texts are read as words.
        reader: what to do with malformed rows.
    """

    fields: tuple[str, ...] = ("text",)
    columns: Mapping[str, str] | None = None
    labels: Labels = "classes"
    reader: Reader = field(default_factory=Reader)

    def read(self, given: Sequence[str], pairs: Sequence[str] = ()) -> "Items":
        """The texts, pairs or lists of words of arguments, each of which is a text, a file or `-`.

        Texts with nothing but blanks have no result, and a line on stderr says how many there are.

        Args:
            given: the arguments; without any, standard input is read if it is a pipe or a file.
            pairs: the second texts of arguments that are texts.

        Raises:
            HeddleError: there is no text; a file cannot be read; or texts and pairs are not equally many.
        """
        if not given and not is_piped():
            raise HeddleError("give a text, a file with a text per line, a table, or - for standard input")
        items = Items(self._examples(given or STDIN[:1], list(pairs)))
        for line in self.reader.notes.lines():
            print(line, file=sys.stderr)
        if all(items.blank):
            raise HeddleError(EMPTY)
        if blank := sum(items.blank):
            print(
                f"{pluralize(blank, 'empty text')} of {len(items):,}: no result, which is null or NaN", file=sys.stderr
            )
        return items

    def _examples(self, given: Sequence[str], pairs: list[str]) -> Iterator[tuple[Example, Mapping[str, Any]]]:
        plain = [word for word in given if word not in STDIN and not _is_file(word)]
        if "pair" in self.fields and len(plain) != len(pairs):
            raise HeddleError(
                f"{pluralize(len(plain), 'text')} and {pluralize(len(pairs), 'second text')}: this run reads pairs of texts; "
                "give --pair once for each text, or a table"
            )
        seconds = iter(pairs)
        numbers = count(1)
        for word in given:
            if word in STDIN:
                yield from self._lines(input_lines(self.reader.encoding), "standard input")
            elif _is_file(word):
                yield from self._file(Path(word))
            else:
                texts = (word, next(seconds)) if "pair" in self.fields else (word,)
                origin = named_text(next(numbers), len(plain))
                yield self._row(TableRow(dict(zip(self.fields, texts, strict=True)), origin), {})

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

    def _lines(self, lines: Any, where: str) -> Iterator[tuple[Example, Mapping[str, Any]]]:
        """A text per line; or lines of JSON, if the first one is an object."""
        objects: bool | None = None
        for number, line in enumerate(lines, start=1):
            if objects is None and line.strip():
                objects = _object(line) is not None
                if not objects and "pair" in self.fields:
                    raise HeddleError(f"{where} has a text per line, but this run reads pairs of texts: give a table")
            row = TableRow({"text": line}, f"{where}:{number}")
            with self.reader.skip_malformed():
                check_line(line, row.origin, self.reader.encoding)
                made = self._line(line, row, bool(objects and line.strip()))
                self.reader.notes.read += 1
                yield made

    def _line(self, line: str, row: TableRow, is_object: bool) -> tuple[Example, Mapping[str, Any]]:
        if is_object:
            values = _object(line)
            if values is None:
                raise MalformedError("not JSON", row.origin, "not a line of JSON, as the first one is")
            row = TableRow(values, row.origin)
        elif not line.strip():
            row = TableRow(dict.fromkeys(self.fields, ""), row.origin)
        return self._row(row, (self.columns or {}) if is_object else {})

    def _row(self, row: TableRow, columns: Mapping[str, str]) -> tuple[Example, Mapping[str, Any]]:
        """A row as an example, and its own columns. What is null, as NaN of pandas is, is an empty text."""
        read = {columns.get(field, field) for field in self.fields}
        empty = {name: "" for name in read if name in row.values and is_null(row.values[name])}
        return of_row(replace(row, values={**row.values, **empty}), self.fields, columns, self.labels), row.values


def reader_of(encoding: str, skip_invalid: bool) -> Reader:
    """A reader that leaves out malformed items, or refuses the first.

    Raises:
        HeddleError: Python knows no such encoding.
    """
    return Reader(DataConfig.of({"encoding": encoding}).encoding, "items" if skip_invalid else "none")


class Items(list[Any]):
    """Texts, pairs or lists of words in order.

    Args:
        found: each with the columns of its row.

    Attributes:
        origins: where each was read.
        rows: the columns of each.
        blank: whether each has nothing but blanks.
    """

    def __init__(self, found: Iterable[tuple[Example, Mapping[str, Any]]]) -> None:
        pairs = list(found)
        texts = [tuple(example.texts.values()) for example, _ in pairs]
        super().__init__(each if len(each) > 1 else each[0] for each in texts)
        self.origins = [example.origin for example, _ in pairs]
        self.rows = [row for _, row in pairs]
        self.blank = [example.empty for example, _ in pairs]


def is_null(value: Any) -> bool:
    """Whether a value of a table says that there is none."""
    return value is None or (isinstance(value, float) and isnan(value))


def named_text(number: int, of: int) -> str:
    """What an argument that is a text is called."""
    return "the text" if of == 1 else f"text {number}"


def text_lines(file: Path, encoding: str = "utf-8") -> Iterator[str]:
    """The lines of a text file, without their ends.

    Raises:
        HeddleError: the file does not exist, or is not valid text in this encoding.
    """
    if not file.exists():
        raise HeddleError(f"{file}: no such file")
    for line in read_lines(file, encoding):
        yield line.rstrip("\r\n")


@contextmanager
def placed(origins: Sequence[str]) -> Iterator[None]:
    """Errors about one of several texts name where it was read.

    Raises:
        HeddleError: such an error, with its place.
    """
    try:
        yield
    except TextError as error:
        raise error.at(origins[error.number]) from None


def _is_file(word: str) -> bool:
    """Whether an argument is a file to read.

    Raises:
        HeddleError: it looks like one, and there is none; or it is a folder.
    """
    with suppress(OSError, ValueError):  # a long text is no name
        if Path(word).is_file():
            return True
        if Path(word).is_dir() and not re.search(r"\s", word.strip()) and "/" in word:
            raise HeddleError(f"{word} is a folder: name the files in it")
    if FILES.fullmatch(word):
        raise HeddleError(f"{word}: no such file")
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
    items: Items, call: Callable[[list[Any], Callable[[int, int], None]], Sequence[Any]]
) -> Iterator[tuple[list[Any], list[Any]]]:
    """Each chunk of the texts with its results, None for texts of blanks alone.

    Every two seconds, a line on stderr says how many are done.
    """
    counted = [0, 0]

    def progress(done: int, of: int) -> None:
        counted[1] = done

    def state() -> str:
        return f"{min(sum(counted), len(items)):,} of {pluralize(len(items), 'text')}"

    for start in range(0, len(items), CHUNK):
        chunk = items[start : start + CHUNK]
        there = [number for number in range(len(chunk)) if not items.blank[start + number]]
        counted[:] = [start, 0]
        origins = [items.origins[start + number] for number in there]
        with heartbeat(lambda line: print(line, file=sys.stderr), state), placed(origins):
            results = call([chunk[number] for number in there], progress)
        by_place = dict(zip(there, results, strict=True))
        yield chunk, [by_place.get(number) for number in range(len(chunk))]


def report_cuts(cut: int, count: int, context: int, pairs: bool = False) -> None:
    """Say on stderr how many texts were longer than the context, as training does."""
    if cut:
        what = "the longer text of a pair loses its end" if pairs else "they lose their ends"
        print(f"texts longer than context = {context}: {cut:,} of {count:,}; {what}", file=sys.stderr)
