"""The user's records before they are tokenised: rows of tables, lines of parallel files, labelled folders, tagged words."""

from ast import literal_eval
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import isfinite
from pathlib import Path
from typing import Any

from heddle.checks import SOME, checked
from heddle.config.data import Labels
from heddle.data.files import TABLES, TEXTS, decode, find_files, kind_of, name_of, open_file, read_lines
from heddle.data.tables import Row, as_text, read_rows
from heddle.errors import HeddleError, pluralize
from heddle.text.chat import checked_messages

TAGGED = (".conll", ".conllu", ".bio", ".iob", ".iob2")
"""The extensions of files with a word and its tag per line that are read from folders."""
LABEL, MESSAGES = "label", "messages"
SEPARATOR, SIGNS = ",", ("|", ";")  # between several labels in a cell: the default, and what else may be meant
MARKS = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False}  # in the column of a label


@dataclass(frozen=True, slots=True)
class Example:
    """One record of text.

    Attributes:
        texts: by field: a text, or its words if each has a label, or the contents of a conversation's messages.
        label: a class or a number as written, or several classes, or a class per word, or a role per message; None: there are no
            labels.
        origin: where it was read: a path, or `path:line`.
        part: `train` or `validation`, if the user said which part it is for.
    """

    texts: Mapping[str, str | tuple[str, ...]]
    label: str | tuple[str, ...] | None
    origin: str
    part: str | None = None

    @property
    def empty(self) -> bool:
        """Whether one of its texts has nothing but blanks."""
        parts = [text if isinstance(text, tuple) else (text,) for text in self.texts.values()]
        return not all(any(part.strip() for part in text) for text in parts)

    def written(self) -> list[str]:
        """Each text as a reader would see it: words with blanks between them."""
        return [" ".join(text) if isinstance(text, tuple) else text for text in self.texts.values()]


@checked(sources=SOME, fields=SOME)
def read_examples(
    sources: Sequence[str | Path],
    fields: Sequence[str],
    columns: Mapping[str, str] | None = None,
    labels: Labels = "classes",
    separator: str = SEPARATOR,
) -> Iterator[Example]:
    """Read every record of `sources`, in the order of `heddle.data.read_documents`.

    Tables (`.jsonl`, `.csv`, `.tsv`) have a record per row. Other files are read by what the fields are:

    - `source` and `target`: pairs of parallel files, line i of one with line i of the other. `columns` names their extensions,
      such as `en` and `de` for `train.en` and `train.de`; without, there are two files, and the first is the source.
    - `text` and `label`: a text per file; its label is the name of the folder that it is in.
    - with `labels="tokens"`: CoNLL's columns, a word and its tag per line, a blank line after each sentence. The first column
      is the word and the last the tag, unless `columns` has their numbers, from 1.

    Args:
        fields: what a record has, such as `("source", "target")` or `("text", "label")`.
        columns: the name of the column of a field, if it is not the field's own.
        labels: what the label is.
        separator: what stands between several labels in one cell.

    Raises:
        HeddleError: a source cannot be read, has no such column or no record, or parallel files have different numbers of lines.
    """
    columns = dict(columns or {})
    files = example_files(sources, fields, columns, labels)
    examples: Iterator[Example]
    if kind_of(files[0]) in TABLES:
        examples = (of_row(row, fields, columns, labels, separator) for file in files for row in read_rows(file))
    elif {"source", "target"} <= set(fields):
        examples = _parallel(files, columns)
    elif labels == "tokens":
        examples = (example for file in files for example in _tagged(file, columns))
    elif set(fields) == {"text", LABEL} and labels != "several":
        examples = _labelled(files, columns)
    else:
        raise HeddleError(f"{files[0]}: records of {', '.join(fields)} are read from tables only: {', '.join(TABLES)}")
    some = False
    for example in examples:
        some = True
        yield example
    if not some:
        raise HeddleError(f"{', '.join(map(str, sources))}: no records; every file there is empty")


def example_files(
    sources: Sequence[str | Path], fields: Sequence[str], columns: Mapping[str, str], labels: Labels
) -> list[Path]:
    """The files that `read_examples` reads, in order.

    Raises:
        HeddleError: there is none, or some are tables and some are not.
    """
    pairs = {"source", "target"} <= set(fields)
    known = (*TABLES, *(() if pairs else TAGGED if labels == "tokens" else TEXTS))
    if pairs:
        known += tuple(f".{columns[side]}".lower() for side in ("source", "target") if side in columns)
    files: list[Path] = []
    for source in sources:
        found, named = find_files(source, known)
        tables = [file for file in found if kind_of(file) in TABLES]
        files += found if named else tables or found
    tables = [file for file in files if kind_of(file) in TABLES]
    if tables and len(tables) < len(files):
        other = next(file for file in files if kind_of(file) not in TABLES)
        raise HeddleError(f"{other} is no table, but {tables[0]} is: give tables only, or none")
    return files


def check_folders(files: Sequence[Path], fields: Sequence[str], labels: Labels) -> None:
    """Refuse texts to train on whose label is the name of the folder that all of them are in.

    Raises:
        HeddleError: they have a single class.
    """
    folders = {file.absolute().parent for file in files}
    if set(fields) == {"text", LABEL} and labels == "classes" and kind_of(files[0]) not in TABLES and len(folders) == 1:
        raise HeddleError(
            f"{files[0]}: the label of a text file is the name of its folder, and there is only {folders.pop().name!r}: give a "
            "folder for each class, or a table (.tsv, .csv, .jsonl) with a label column"
        )


def of_row(
    row: Row, fields: Sequence[str], columns: Mapping[str, str], labels: Labels, separator: str = SEPARATOR
) -> Example:
    """A table's row as a record."""
    if labels == "roles":
        return _conversation(row, columns.get(MESSAGES, MESSAGES))
    values = {field: row.get(columns.get(field, field)) for field in fields if field != LABEL}
    label: str | tuple[str, ...] | None = None
    if LABEL in fields:
        name = columns.get(LABEL, LABEL)
        if labels == "several":
            label = several_labels(row, name, separator)
        else:
            label = (_words if labels == "tokens" else _label)(row.get(name), name, row.origin)
    texts: dict[str, str | tuple[str, ...]] = {}
    for field, value in values.items():
        name = columns.get(field, field)
        tagged = labels == "tokens" and field == "text"
        texts[field] = _words(value, name, row.origin) if tagged else as_text(value, name, row.origin)
    if labels == "tokens" and isinstance(label, tuple) and len(label) != len(texts["text"]):
        words = pluralize(len(texts["text"]), "word")
        raise HeddleError(f"{row.origin}: {words}, but {pluralize(len(label), 'label')}; there must be one for each")
    return Example(texts, label, row.origin)


def _conversation(row: Row, column: str) -> Example:
    """The messages of a row."""
    value = row.get(column)
    if not isinstance(value, list):
        raise HeddleError(
            f"{row.origin}: column {column!r} must have a list of messages, each with a role and a content"
        )
    try:
        messages = checked_messages(value)
    except HeddleError as error:
        raise HeddleError(f"{row.origin}: {error}") from None
    contents = tuple(as_text(message["content"], column, row.origin) for message in messages)
    return Example({MESSAGES: contents}, tuple(message["role"] for message in messages), row.origin)


def _words(value: Any, column: str, origin: str) -> tuple[str, ...]:
    """Words or their tags, from a list or from a text with blanks between them."""
    if isinstance(value, str):
        return tuple(as_text(value, column, origin).split())
    if not isinstance(value, list):
        raise HeddleError(f"{origin}: column {column!r} must have a list of words, or a text with blanks between them")
    return tuple(as_text(str(word) if isinstance(word, int) else word, column, origin) for word in value)


def _label(value: Any, column: str, origin: str) -> str:
    """A class or a number, as text."""
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value) if isinstance(value, int | float) else as_text(value, column, origin).strip()
    if not text or (isinstance(value, float) and not isfinite(value)):  # pandas writes NaN where a label is missing
        raise HeddleError(f"{origin}: the label is {text or 'empty'}; leave the record out, or give it one")
    return text


def several_labels(row: Row, name: str, separator: str = SEPARATOR) -> tuple[str, ...]:
    """The labels of a row, each once, in order: a list, a cell with a separator between them, or a column of 1 and 0 for each.

    Args:
        row: the row.
        name: the column, or several columns with commas between them, unless one has this name.
        separator: what stands between labels in a cell; an empty cell has none.

    Raises:
        HeddleError: there is no such column, or its value is something else.
    """
    columns = [each.strip() for each in name.split(",")]
    if len(columns) > 1 and name not in row.values:
        return tuple(column for column in columns if _marked(row.get(column), column, row.origin))
    value = row.get(name)
    listed = _as_list(value) if isinstance(value, str) else value
    if isinstance(listed, str):
        listed = [part.strip() for part in listed.split(separator)]
        other = next((part for part in listed for sign in SIGNS if sign in part), None)
        if separator == SEPARATOR and other is not None:
            raise HeddleError(
                f"{row.origin}: the label {other!r} may be several: name what stands between them, such as separator='|', or "
                "give labels as a list"
            )
        listed = [part for part in listed if part]
    elif isinstance(listed, int) and not isinstance(listed, bool):
        listed = [listed]
    if not isinstance(listed, list | tuple):
        raise HeddleError(
            f"{row.origin}: column {name!r} must have a list of labels, or a text with {separator!r} between them; [] or an empty "
            "text is none"
        )
    return tuple(dict.fromkeys(_label(each, name, row.origin) for each in listed))


def _as_list(text: str) -> Any:
    """A text that is a list as JSON or Python writes it, as pandas puts lists into CSV; else the text."""
    if not (text.strip().startswith("[") and text.strip().endswith("]")):
        return text
    try:
        return literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def _marked(value: Any, column: str, origin: str) -> bool:
    """Whether a column says that a row has its label."""
    text = str(value).strip().lower()
    if text not in MARKS:
        raise HeddleError(
            f"{origin}: column {column!r} has {value!r}; the column of a label must have 1 or 0 in each row"
        )
    return MARKS[text]


def _parallel(files: Sequence[Path], columns: Mapping[str, str]) -> Iterator[Example]:
    for source, target in _pairs(files, columns):
        count = 0
        missing = object()
        lines = zip_longest(read_lines(source), read_lines(target), fillvalue=missing)
        for count, (one, other) in enumerate(lines, start=1):
            if one is missing or other is missing:
                more = count + sum(1 for _ in lines)
                long, short = (target, source) if one is missing else (source, target)
                raise HeddleError(
                    f"{short} has {pluralize(count - 1, 'line')}, but {long} has {more:,}: parallel files need equally many lines"
                )
            texts = {"source": str(one).rstrip("\r\n"), "target": str(other).rstrip("\r\n")}
            yield Example(texts, None, f"{source}:{count}")


def _pairs(files: Sequence[Path], columns: Mapping[str, str]) -> list[tuple[Path, Path]]:
    """Which files are parallel."""
    sides = [columns[side] for side in ("source", "target") if side in columns]
    if not sides:
        if len(files) != 2:
            there = ", ".join(map(str, files[:4])) + (", …" if len(files) > 4 else "")
            raise HeddleError(
                f"two parallel files are needed, the source first, not {len(files)} ({there}); of more, name the extensions, "
                "such as source=en target=de for train.en and train.de"
            )
        return [(files[0], files[1])]
    if len(sides) == 1:
        raise HeddleError("parallel files need the extensions of both sides, such as source=en target=de")
    by_stem: dict[Path, dict[str, Path]] = {}
    for file in files:
        by_stem.setdefault(name_of(file).with_suffix(""), {})[name_of(file).suffix.removeprefix(".")] = file
    for stem, found in by_stem.items():
        for side in sides:
            if side not in found:
                raise HeddleError(f"{stem}.{side} is missing: there is only {', '.join(map(str, found.values()))}")
    return [(found[sides[0]], found[sides[1]]) for found in by_stem.values()]


def _labelled(files: Sequence[Path], columns: Mapping[str, str]) -> Iterator[Example]:
    if columns:
        name, column = next(iter(columns.items()))
        raise HeddleError(
            f"{name} = {column!r} names a column, but {files[0]} is no table: the label of a text is the name of its folder"
        )
    for file in files:
        with open_file(file) as stream:
            yield Example({"text": decode(stream.read(), file, 0)}, file.absolute().parent.name, str(file))


def _tagged(file: Path, columns: Mapping[str, str]) -> Iterator[Example]:
    word_at, tag_at = (_number(columns.get(field), field) for field in ("text", LABEL))
    universal = kind_of(file) == ".conllu"
    if universal:  # whose columns begin ID, FORM, LEMMA, UPOS
        word_at, tag_at = word_at or 2, tag_at or 4
    words: list[tuple[str, str]] = []
    first = 1
    for number, line in enumerate(read_lines(file), start=1):
        text = line.strip()
        if not text:
            if words:
                yield _sentence(words, f"{file}:{first}")
            words, first = [], number + 1
            continue
        if text.startswith("-DOCSTART-") or (universal and text.startswith("#")):
            continue
        cells = text.split("\t") if "\t" in text else text.split()
        if (
            universal and not cells[0].isdecimal()
        ):  # a contraction (1-2) or an empty word (1.1): not words of the sentence
            continue
        needed = max(word_at or 1, tag_at or 2)
        if len(cells) < needed:
            raise HeddleError(f"{file}:{number}: {pluralize(len(cells), 'column')}, but at least {needed} are needed")
        words.append((cells[(word_at or 1) - 1], cells[-1 if tag_at is None else tag_at - 1]))
    if words:
        yield _sentence(words, f"{file}:{first}")


def _sentence(words: Sequence[tuple[str, str]], origin: str) -> Example:
    return Example({"text": tuple(word for word, _ in words)}, tuple(tag for _, tag in words), origin)


def _number(column: str | None, field: str) -> int | None:
    """A column's number, from 1."""
    if column is not None and not (column.isdecimal() and int(column)):
        raise HeddleError(f"{field} = {column!r}: CoNLL's columns have no names; give a number, from 1")
    return None if column is None else int(column)


def as_number(example: Example) -> float:
    """A label that is a number.

    Raises:
        HeddleError: it is none, or not finite.
    """
    try:
        number = float(str(example.label))
    except ValueError:
        number = float("nan")
    if not isfinite(number):
        raise HeddleError(f"{example.origin}: the label {example.label!r} is not a finite number")
    return number
