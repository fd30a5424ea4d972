"""Reading records of text: rows of tables, lines of parallel files, labelled folders, tagged words."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from math import isfinite
from pathlib import Path

from heddle.checks import SOME, checked
from heddle.config.data import Labels
from heddle.data.sources.files import TABLES, TEXTS, check_line, find_files, kind_of, name_of, raw_lines, read_text
from heddle.data.sources.notes import MalformedError, Reader
from heddle.data.sources.tables import TableRow, as_text, read_rows
from heddle.data.sources.values import BLANKS, SEPARATOR, label_of, message_of, several_labels, split_words, words_of
from heddle.display import displayed
from heddle.errors import HeddleError, for_each, pluralize
from heddle.text.chat_template import checked_messages

TAGGED = (".conll", ".conllu", ".bio", ".iob", ".iob2")
"""The extensions, in folders, of files with a word and its tag per line."""
LABEL, MESSAGES = "label", "messages"
NO_LABEL = "unlabelled"  # kind of records left out because the settings list their label as meaning no label
NO_TAG = "unlabelled words"


@displayed(".fields")
@dataclass(frozen=True, slots=True)
class Example:
    """One record of text.

    Attributes:
        texts: by field: a text, or its words if each has a label, or the contents of a conversation's messages.
        label: a class or a number as written, or several classes, or a class per word ("" for a word without one), or a role per
            message; None: there are no labels.
        origin: where it was read: a path, or `path:line`.
        part: `train` or `validation`, if the user assigned it to a part.
    """

    texts: Mapping[str, str | tuple[str, ...]]
    label: str | tuple[str, ...] | None
    origin: str
    part: str | None = None

    @property
    def empty(self) -> bool:
        """Whether one of its texts is empty or only whitespace."""
        parts = [text if isinstance(text, tuple) else (text,) for text in self.texts.values()]
        return not all(any(part.strip() for part in text) for text in parts)

    def written(self) -> list[str]:
        """Each text as a string, with words joined by spaces."""
        return [" ".join(text) if isinstance(text, tuple) else text for text in self.texts.values()]


@checked(sources=SOME, fields=SOME)
def read_examples(
    sources: Sequence[str | Path],
    fields: Sequence[str],
    columns: Mapping[str, str] | None = None,
    labels: Labels = "classes",
    separator: str = SEPARATOR,
    reader: Reader | None = None,
) -> Iterator[Example]:
    """Read every record of `sources`, in the order of `heddle.data.read_documents`.

    Tables (see `heddle.data.sources.tables`) have a record per row. How other files are read depends on the fields:

    - `source` and `target`: pairs of parallel files, line i of one with line i of the other. `columns` has their extensions, such
      as `en` and `de` for `train.en` and `train.de`; without it, there are two files, and the first is the source.
    - `text` and `label`: a text per file; its label is the name of the folder that it is in, which has no such folder below it.
    - with `labels="tokens"`: CoNLL's columns, a word and its tag per line, a blank line after each sentence. The first column
      is the word and the last the tag, unless `columns` has their numbers, from 1. Tabs or spaces separate columns; a no-break
      space and other Unicode whitespace belong to words. A line that begins with # is a comment unless it has as many columns as
      the file.

    Args:
        fields: fields of a record, such as `("source", "target")` or `("text", "label")`.
        columns: by field, the name of its column, where it differs from the field's name.
        labels: kind of the labels.
        separator: separates several labels in a cell.
        reader: how files are read, whether malformed items are skipped, and where they are counted; without it, a warning lists the
            files of a folder that are not read.

    Raises:
        HeddleError: a source cannot be read, or has no records.
        MalformedError: a row lacks a column or has a wrong value in it, or parallel files have different numbers of lines.
    """
    emit_warnings, columns, reader = reader is None, dict(columns or {}), reader or Reader()
    files = example_files(sources, fields, columns, labels, reader)
    examples: Iterator[Example]
    if kind_of(files[0]) in TABLES:
        rows = (row for file in files for row in read_rows(file, reader))
        examples = reader.parse_each(rows, lambda row: of_row(row, fields, columns, labels, separator))
    elif {"source", "target"} <= set(fields):
        examples = _parallel(files, columns, reader)
    elif labels == "tokens":
        examples = (example for file in files for example in _tagged(file, columns, reader))
    elif set(fields) == {"text", LABEL} and labels != "several":
        examples = _labelled(files, columns, reader)
    else:
        raise HeddleError(
            f"{files[0]}: records of {', '.join(fields)} can only be read from tables: {', '.join(TABLES)}"
        )
    any_example = False
    for example in examples:
        any_example = True
        if (labelled := _labelled_part(example, labels, reader)) is not None:
            yield labelled
    if not any_example and not reader.notes.left_out:
        raise HeddleError(f"{', '.join(map(str, sources))}: no records; all files are empty")
    for line in reader.notes.lines() if emit_warnings else ():
        warnings.warn(line, stacklevel=2)


def _labelled_part(example: Example, labels: Labels, reader: Reader) -> Example | None:
    """Remove the tags that mean "no label" from a record; None if its label, or all of its tags, mean that."""
    all_labels = example.label if isinstance(example.label, tuple) and labels != "roles" else (example.label,)
    no_label = next((each for each in all_labels if each and each in reader.unlabelled), None)
    if no_label is None:
        return example
    tags = tuple("" if tag in reader.unlabelled else str(tag) for tag in all_labels)
    if labels == "tokens" and any(tags):
        message = f"sentences have words with the tag {no_label}, which means no label"
        reader.notes.add(NO_TAG, example.origin, message, "these words are not targets", left_out=False)
        return replace(example, label=tags)
    message = f"records have the label {no_label}, which means no label"
    reader.notes.add(NO_LABEL, example.origin, message, "they are left out")
    return None


def example_files(
    sources: Sequence[str | Path],
    fields: Sequence[str],
    columns: Mapping[str, str],
    labels: Labels,
    reader: Reader | None = None,
) -> list[Path]:
    """The files that `read_examples` reads, in order.

    Raises:
        HeddleError: there are no files, or only some are tables.
    """
    pairs = {"source", "target"} <= set(fields)
    extensions = (*TABLES, *(() if pairs else TAGGED if labels == "tokens" else TEXTS))
    if pairs:
        extensions += tuple(f".{columns[side]}".lower() for side in ("source", "target") if side in columns)
    files: list[Path] = []
    notes = (reader or Reader()).notes
    by_source = for_each(lambda each: find_files(each, extensions, notes), sources)
    for source, (source_files, is_file) in zip(sources, by_source, strict=True):
        tables = [file for file in source_files if kind_of(file) in TABLES]
        if tables and not is_file:
            notes.other_files(Path(source), [file for file in source_files if kind_of(file) not in TABLES])
        files += source_files if is_file else tables or source_files
    tables = [file for file in files if kind_of(file) in TABLES]
    if tables and len(tables) < len(files):
        other = next(file for file in files if kind_of(file) not in TABLES)
        raise HeddleError(f"{other} is not a table, but {tables[0]} is: give only tables, or no tables")
    return files


def check_folders(files: Sequence[Path], fields: Sequence[str], labels: Labels) -> None:
    """Refuse training texts that all lie in one folder, and so have a single class.

    Raises:
        HeddleError: they do.
    """
    folders = {file.absolute().parent for file in files}
    if set(fields) == {"text", LABEL} and labels == "classes" and kind_of(files[0]) not in TABLES and len(folders) == 1:
        raise HeddleError(
            f"{files[0]}: the label of a text file is the name of its folder, and there is only {folders.pop().name!r}: give a "
            "folder for each class, or a table (.tsv, .csv, .jsonl) with a label column"
        )


def of_row(
    row: TableRow, fields: Sequence[str], columns: Mapping[str, str], labels: Labels, separator: str = SEPARATOR
) -> Example:
    """Convert a table's row to a record."""
    if labels == "roles":
        return _conversation(row, columns.get(MESSAGES, MESSAGES))
    values = {field: row.get(columns.get(field, field)) for field in fields if field != LABEL}
    label: str | tuple[str, ...] | None = None
    if LABEL in fields:
        name = columns.get(LABEL, LABEL)
        if labels == "several":
            label = several_labels(row, name, separator)
        else:
            label = (words_of if labels == "tokens" else label_of)(row.get(name), name, row.origin)
    texts: dict[str, str | tuple[str, ...]] = {}
    for field, value in values.items():
        name = columns.get(field, field)
        tagged = labels == "tokens" and field == "text"
        texts[field] = words_of(value, name, row.origin) if tagged else as_text(value, name, row.origin)
    if labels == "tokens" and isinstance(label, tuple) and len(label) != len(texts["text"]):
        fault = f"{pluralize(len(texts['text']), 'word')}, but {pluralize(len(label), 'label')}"
        raise MalformedError("words and labels", row.origin, fault, "there must be one for each")
    example = Example(texts, label, row.origin)
    if labels == "numbers" and label is not None:
        as_number(example)
    return example


def _conversation(row: TableRow, column: str) -> Example:
    if column == MESSAGES not in row.values and "conversations" in row.values:
        column = "conversations"  # ShareGPT's name
    value = row.get(column)
    if not isinstance(value, list):
        fault = f"column {column!r} must have a list of messages, each with a role and a content"
        raise MalformedError("null" if value is None else "no messages", row.origin, fault)
    try:
        messages = checked_messages([message_of(each) for each in value])
    except HeddleError as error:
        raise MalformedError("messages", row.origin, str(error)) from None
    contents = tuple(as_text(message["content"], column, row.origin) for message in messages)
    return Example({MESSAGES: contents}, tuple(message["role"] for message in messages), row.origin)


def _parallel(files: Sequence[Path], columns: Mapping[str, str], reader: Reader) -> Iterator[Example]:
    for pair in _pairs(files, columns):
        with reader.skip_malformed():
            yield from reader.parse_each(_line_pairs(*pair, reader), partial(_parallel_example, *pair, reader))


def _line_pairs(source: Path, target: Path, reader: Reader) -> Iterator[tuple[int, str, str]]:
    """The number of each line, from 1, and both lines."""
    missing = "\0missing"
    lines = zip_longest(*(raw_lines(file, reader.encoding) for file in (source, target)), fillvalue=missing)
    for number, (source_line, target_line) in enumerate(lines, start=1):
        if missing in (source_line, target_line):
            more = number + sum(1 for _ in lines)
            long, short = (target, source) if source_line == missing else (source, target)
            fault = (
                f"has {pluralize(number - 1, 'line')}, but {long} has {more:,}: parallel files need equally many lines"
            )
            error = MalformedError("unequal lines", short, fault, doubtful=True)
            error.args = (f"{short} {fault}",)
            raise error
        yield number, source_line, target_line


def _parallel_example(source: Path, target: Path, reader: Reader, lines: tuple[int, str, str]) -> Example:
    number, source_line, target_line = lines
    check_line(source_line, f"{source}:{number}", reader.encoding)
    check_line(target_line, f"{target}:{number}", reader.encoding)
    return Example(
        {"source": source_line.rstrip("\r\n"), "target": target_line.rstrip("\r\n")}, None, f"{source}:{number}"
    )


def _pairs(files: Sequence[Path], columns: Mapping[str, str]) -> list[tuple[Path, Path]]:
    """Match parallel files."""
    sides = [columns[side] for side in ("source", "target") if side in columns]
    if not sides:
        if len(files) != 2:
            names = ", ".join(map(str, files[:4])) + (", …" if len(files) > 4 else "")
            raise HeddleError(
                f"two parallel files are needed, the source first, not {len(files)} ({names}); for more files, set their "
                "extensions, such as source=en target=de for train.en and train.de"
            )
        return [(files[0], files[1])]
    if len(sides) == 1:
        raise HeddleError("parallel files need the extensions of both sides, such as source=en target=de")
    by_stem: dict[Path, dict[str, Path]] = {}
    for file in files:
        by_stem.setdefault(name_of(file).with_suffix(""), {})[name_of(file).suffix.removeprefix(".")] = file
    for stem, by_side in by_stem.items():
        for side in sides:
            if side not in by_side:
                raise HeddleError(f"{stem}.{side} is missing: there is only {', '.join(map(str, by_side.values()))}")
    return [(by_side[sides[0]], by_side[sides[1]]) for by_side in by_stem.values()]


def _labelled(files: Sequence[Path], columns: Mapping[str, str], reader: Reader) -> Iterator[Example]:
    if columns:
        name, column = next(iter(columns.items()))
        raise HeddleError(
            f"{name} = {column!r} names a column, but {files[0]} is not a table: the label of a text is the name of its folder"
        )

    above = {folder for file in files for folder in file.absolute().parent.parents}

    def example(file: Path) -> Example:
        folder = file.absolute().parent
        if folder in above:
            fault = (
                f"it lies next to folders whose names are the labels of other texts, so {folder.name!r} is not a label"
            )
            raise MalformedError("no label", file, fault, "move it into one of them, or leave it out")
        return Example({"text": read_text(file, reader.encoding)}, folder.name, str(file))

    yield from reader.parse_each(files, example)


def _tagged(file: Path, columns: Mapping[str, str], reader: Reader) -> Iterator[Example]:
    """The sentences of a file of CoNLL's columns."""
    word_at, tag_at = (_number(columns.get(field), field) for field in ("text", LABEL))
    universal = kind_of(file) == ".conllu"
    if universal:  # its columns begin with ID, FORM, LEMMA, UPOS
        word_at, tag_at = word_at or 2, tag_at or 4
    needed = max(word_at or 1, tag_at or 2)
    with reader.skip_malformed():
        width = _width(file, reader)

        def sentence(lines: Sequence[tuple[int, str]]) -> Example:
            words = []
            for number, line in lines:
                cells = cells_of(check_line(line, f"{file}:{number}", reader.encoding))
                if universal and not cells[0].isdecimal():
                    continue  # a contraction (1-2) or an empty word (1.1): not words of the sentence
                if len(cells) < needed or len(cells) != width:
                    fault = f"{pluralize(len(cells), 'column')}, but " + (
                        f"at least {needed} are needed" if len(cells) < needed else f"the first line has {width}"
                    )
                    raise MalformedError("wrong number of columns", f"{file}:{number}", fault)
                # A no-break space at the end of a tag would make an invisible extra class.
                words.append((cells[(word_at or 1) - 1], cells[-1 if tag_at is None else tag_at - 1].strip()))
            texts = {"text": tuple(word for word, _ in words)}
            return Example(texts, tuple(tag for _, tag in words), f"{file}:{lines[0][0]}")

        yield from reader.parse_each(_sentences(file, width, reader), sentence)


def _sentences(file: Path, width: int, reader: Reader) -> Iterator[list[tuple[int, str]]]:
    """The lines of each sentence with their numbers, without comments."""
    lines: list[tuple[int, str]] = []
    for number, line in enumerate(raw_lines(file, reader.encoding), start=1):
        if not line.strip(BLANKS):
            if lines:
                yield lines
            lines = []
        elif not line.startswith("-DOCSTART-") and not (line.startswith("#") and len(cells_of(line)) != width):
            lines.append((number, line))
    if lines:
        yield lines


def _width(file: Path, reader: Reader) -> int:
    """How many columns the first line has, not counting lines that begin with #."""
    lines = (line for line in raw_lines(file, reader.encoding) if line.strip(BLANKS))
    return next((len(cells_of(line)) for line in lines if line[0] != "#" and not line.startswith("-DOCSTART-")), 0)


def cells_of(line: str) -> Sequence[str]:
    """The columns of a line, separated by tabs, or by spaces if there are no tabs."""
    text = line.strip(BLANKS)
    return text.split("\t") if "\t" in text else split_words(text)


def _number(column: str | None, field: str) -> int | None:
    """A column's number, from 1."""
    if column is not None and not (column.isdecimal() and int(column)):
        raise HeddleError(f"{field} = {column!r}: CoNLL's columns have no names; give a number, from 1")
    return None if column is None else int(column)


def as_number(example: Example) -> float:
    """A record's label as a number.

    Raises:
        MalformedError: it is not a finite number.
    """
    try:
        number = float(str(example.label))
    except ValueError:
        number = float("nan")
    if not isfinite(number):
        raise MalformedError("no number", example.origin, f"the label {example.label!r} is not a finite number")
    return number
