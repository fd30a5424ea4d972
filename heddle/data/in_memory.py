"""Python objects as a corpus: texts, ids, tuples, or rows with named columns, from lists, data frames or a `datasets` Dataset."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import isnan
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heddle.checks import as_list
from heddle.config.data import DataConfig
from heddle.config.tasks import TaskSettings
from heddle.data.corpus import Corpus, Part
from heddle.data.encode import records_of
from heddle.data.memory import EncodedDocument, part_of, part_of_encoded
from heddle.data.record_stats import RecordStats, class_names, for_parts
from heddle.data.records import MISSED, Column
from heddle.data.sources.arrow import named_class
from heddle.data.sources.documents import Document, TextStats, describe_documents
from heddle.data.sources.examples import LABEL, MESSAGES, Example, as_number, of_row
from heddle.data.sources.notes import MalformedError, Reader
from heddle.data.sources.tables import TableRow
from heddle.data.split import choose_split
from heddle.data.token_writer import first_bytes
from heddle.data.unseen import ScorableRecords, describe_unseen, scorable_records
from heddle.errors import HeddleError, article
from heddle.text.tokenizer import Tokenizer

LONGEST_PATH = 1024  # characters of a text that may be a path
TEXT = ("text",)  # fields of a task that reads plain text instead of records
Ids = npt.NDArray[np.int64]
Result = TypeVar("Result")


class InMemoryData:
    """The user's Python objects, read as a task needs them.

    Args:
        data: for tasks that read plain text: a string, a list of strings, an array of ids [N] or a list of arrays. For others: a
            list of tuples in the order of the task's fields. For all: dicts by column name, or a `datasets` Dataset.
        task: the task.
        columns: which columns of dicts are which fields, where the names differ.
        what: name of the data in messages.

    Raises:
        HeddleError: the data have another type than the task needs.
    """

    def __init__(self, data: Any, task: TaskSettings, columns: DataConfig, what: str = "data") -> None:
        self.task, self.columns, self.what = task, columns, what
        self.items, self.names = items_of(data, what), class_names_of(data)
        self._reader = Reader()
        self._unseen: Mapping[str, int] = {}
        self.ids = [_ids(item) for item in self.items] if self.items and _is_array(self.items[0]) else None
        if not self.items:
            raise HeddleError(f"{what}: empty; the task {task_name(task)} needs {self.needed()}")
        if self.ids is not None and task.fields != TEXT:
            raise self._wrong_kind(0)

    def needed(self) -> str:
        """The data that the task reads, as a phrase for messages."""
        if self.task.fields == TEXT:
            return "a text, texts or arrays of ids"
        if self.task.labels == "tokens" and LABEL in self.task.fields:
            return "tagged words: tuples (words, tags), or lists of pairs (word, tag)"
        if self.task.labels == "roles":
            return "conversations: lists of messages, each a dict with a role and a content"
        return f"{'pairs' if len(self.task.fields) == 2 else 'tuples'} ({', '.join(self.task.fields)})"

    def documents(self) -> Iterator[Document]:
        """The non-empty texts."""
        return (document for document in self._each(self._document) if document.text)

    def examples(self) -> Iterator[Example]:
        """The records."""
        return self._each(self._example)

    def scorable(self, classes: tuple[str, ...]) -> ScorableRecords:
        """The records that a model with these classes can be scored on; all if it has no classes yet.

        Raises:
            HeddleError: the model has learned none of the labels.
        """
        examples = list(self.examples())
        if not classes or not self.task.has_classes:
            return ScorableRecords(examples, [0] * len(examples), {})
        scorable = scorable_records(examples, classes, "the model", self.task.labels == "several")
        self._unseen = scorable.unseen
        return scorable

    def left_out(self) -> list[str]:
        """One line for each kind of malformed item that the last pass skipped, and one for labels that a model has not learned."""
        lines = self._reader.notes.lines()
        if self._unseen:
            lines.append(describe_unseen(self._unseen, self.task.labels == "several", "the model"))
        return [f"{self.what}: {line}" for line in lines]

    def _each(self, parse: Callable[[int], Result]) -> Iterator[Result]:
        """Parse each item; malformed ones raise an error unless they are to be skipped."""
        self._reader = Reader(skips="items" if self.columns.skip_invalid else "none")
        return self._reader.parse_each(range(len(self.items)), parse)

    def _document(self, number: int) -> Document:
        item = self.items[number]
        if not isinstance(item, str | Mapping):
            raise self._wrong_kind(number)
        text = item if isinstance(item, str) else self._row(item, number).text(self.columns.text)
        return Document(text, f"item {number}")

    def _example(self, number: int) -> Example:
        item, columns, task = self.items[number], self.columns.columns(), self.task
        if isinstance(item, Mapping):
            example = of_row(self._row(item, number), task.reads(columns), columns, task.labels, self.columns.separator)
        elif (values := self._fields(item)) is not None:
            row = TableRow({name: _plain(value) for name, value in values.items()}, f"item {number}")
            example = of_row(row, tuple(values), {}, task.labels)
        else:
            raise self._wrong_kind(number)
        if task.labels == "numbers":
            as_number(example)
        return example

    def texts(self) -> Iterator[str]:
        """All texts, to train a tokenizer on."""
        if self.ids is not None:
            raise HeddleError(f"{self.what}: ids have no text to train a tokenizer on")
        if self.task.fields == TEXT:
            return (document.text for document in self.documents())
        return (text for example in self.examples() for text in example.written())

    def classes(self) -> tuple[str, ...]:
        """Names of the classes; empty if the task has none."""
        if not self.task.has_classes:
            return ()
        labels = (example.label for example in self.examples())
        several = (label if isinstance(label, tuple) else (str(label),) for label in labels)
        return class_names(name for names in several for name in names if name)

    def _fields(self, item: Any) -> dict[str, Any] | None:
        """A tuple's values by field; a sentence may also be a list of pairs (word, tag). None if the item does not fit."""
        task = self.task
        if task.labels == "roles":
            return {MESSAGES: item} if isinstance(item, list | tuple) else None
        if task.labels == "tokens" and isinstance(item, list):
            if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in item):
                return None
            return {"text": [word for word, _ in item], LABEL: [tag for _, tag in item]}
        if not isinstance(item, tuple | list):
            return None
        names = next((names for names in _orders(task) if len(names) == len(item)), None)
        return None if names is None else dict(zip(names, item, strict=True))

    def _row(self, item: Mapping[str, Any], number: int) -> TableRow:
        values = {column: self._named(column, value) for column, value in item.items()}
        return TableRow(values, f"item {number}")

    def _named(self, column: str, value: Any) -> Any:
        """A column's value, with the class numbers of a Dataset replaced by names."""
        value, names = _plain(value), self.names.get(column)
        return value if names is None else named_class(value, names)

    def _wrong_kind(self, number: int) -> MalformedError:
        name = "array" if _is_array(self.items[number]) else type(self.items[number]).__name__
        kind = f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
        where = "it" if len(self.items) == 1 and not isinstance(self.items[0], tuple) else f"item {number}"
        fault = f"{task_name(self.task)} needs {self.needed()}; {where} is {kind}"
        return MalformedError("of another kind", self.what, fault)


def corpus_of(
    data: InMemoryData, validation: "InMemoryData | float | None", tokenizer: Tokenizer, classes: tuple[str, ...] = ()
) -> Corpus:
    """A user's data as a corpus in memory, split as a run splits its sources.

    Args:
        data: the data to train on.
        validation: the data to evaluate on; or the share of the training data to hold out, by the rules of
            `heddle.data.build_store` and `build_records`, and the end of ids; None: nothing is evaluated.
        tokenizer: the tokenizer of all texts.
        classes: names of the classes, if they are already fixed.

    Raises:
        HeddleError: the data do not fit the task, a part is empty, or the tokenizer cannot encode some text.
    """
    if data.task.fields != TEXT:
        return _records(data, validation, tokenizer, classes)
    if data.ids is not None:
        train = part_of_ids(data.ids, tokenizer)
        if isinstance(validation, float):
            cut = int(sum(map(len, data.ids)) * (1 - validation))
            return _divided(*(part_of_ids(half, tokenizer) for half in _halves(data.ids, cut)))
        return Corpus(train, None if validation is None else _part(validation, tokenizer))
    if not isinstance(validation, float):
        return Corpus(_part(data, tokenizer), None if validation is None else _part(validation, tokenizer))
    documents = list(data.documents())
    split = choose_split(describe_documents(documents, TextStats(validation)), validation)
    parts: dict[str, list[Document]] = {"train": [], "validation": []}
    for document in documents:
        encoded = document.text.encode()
        for piece in split.divide(document.text, len(encoded), hashlib.sha256(encoded).digest()):
            parts[piece.part].append(replace(document, text=piece.text))
    built = (part_of(part, tokenizer) for part in parts.values())
    return _divided(*built) if split.by == "characters" else Corpus(*built)


def _divided(train: Part, validation: Part) -> Corpus:
    """The parts of a text that was cut in two; a single document has no separator at its end, as in a store."""
    mark = train.separator if train.documents + validation.documents > 2 else None
    return Corpus(replace(train, separator=mark, ends=False), replace(validation, separator=mark, begins=False))


def _halves(documents: Sequence[Ids], cut: int) -> tuple[list[Ids], list[Ids]]:
    """The documents before and after `cut` ids; at most one document is divided."""
    first, second = list[Ids](), list[Ids]()
    for document in documents:
        first += [document[:cut]] if cut else []
        second += [document[cut:]] if cut < len(document) else []
        cut = max(0, cut - len(document))
    return first, second


def part_of_ids(documents: Sequence[Ids], tokenizer: Tokenizer) -> Part:
    """A part in memory from documents of ids, separated as `heddle.data.part_of` separates texts.

    Raises:
        HeddleError: an id is outside of the tokenizer's vocabulary, or there are fewer than two ids.
    """

    def encoded() -> Iterator[EncodedDocument]:
        for document in documents:
            invalid = document[(document < 0) | (document >= tokenizer.vocab_size)]
            if len(invalid):
                raise HeddleError(f"data: id {invalid[0]} is out of range (vocab size {tokenizer.vocab_size})")
            if len(document):
                # The end-of-text id separates documents and has no text of its own.
                text_bytes = tokenizer.decode_bytes(document[document != tokenizer.end_of_text].tolist())
                text = text_bytes.decode(errors="replace")
                first = first_bytes(tokenizer.token_bytes(int(document[0])), text)
                yield document.tolist(), len(text_bytes), len(text), first

    return part_of_encoded(encoded(), tokenizer.end_of_text)


def _part(data: InMemoryData, tokenizer: Tokenizer) -> Part:
    return part_of(data.documents(), tokenizer) if data.ids is None else part_of_ids(data.ids, tokenizer)


def _records(
    data: InMemoryData, validation: "InMemoryData | float | None", tokenizer: Tokenizer, classes: tuple[str, ...]
) -> Corpus:
    labels, chat = data.task.labels, data.task.chat(None)
    if validation is None:
        return Corpus(records_of(data.examples(), tokenizer, labels, classes or data.classes(), chat))
    share = validation if isinstance(validation, float) else None
    scorable = validation.scorable(classes) if isinstance(validation, InMemoryData) else None
    held_out_examples = None if scorable is None else scorable.examples
    examples = list(for_parts(data.examples(), held_out_examples))
    stats = RecordStats(share, labels)
    for example in examples:
        stats.add(example)
    classes = classes or stats.description().classes
    split_stats = RecordStats(share, labels, stats.hold_out())
    parts: dict[str, list[Example]] = {"train": [], "validation": []}
    for example in examples:
        if part := split_stats.add(example):
            parts[part].append(example)
    train, held_out = (records_of(part, tokenizer, labels, classes, chat) for part in parts.values())
    if scorable is not None and scorable.unseen and labels == "several":
        counts = [[count] for count, each in zip(scorable.missed, scorable.examples, strict=True) if not each.empty]
        held_out = replace(held_out, columns={**held_out.columns, MISSED: Column.of(counts)})
    return Corpus(train, replace(held_out, blank=stats.blank))


def items_of(data: Any, what: str) -> list[Any]:
    """The items of a list, an iterator, a Dataset, a column or a data frame; a string or an array of ids is one item.

    Raises:
        HeddleError: the data have another type, or name a file.
    """
    if isinstance(data, np.ndarray) and data.dtype.kind in "OUST" and data.ndim in (1, 2):
        return [tuple(row) for row in data.tolist()] if data.ndim == 2 else list(data.tolist())
    if isinstance(data, PathLike) or (isinstance(data, str) and _names_a_file(data)):
        raise HeddleError(
            f"{what}: {str(data)!r} is the path of a file or a folder, and would itself be learned as text: read it with "
            "heddle.data.read_documents, or heddle.data.read_examples for records"
        )
    if isinstance(data, str) or _is_array(data):
        return [data]
    if isinstance(getattr(data, "column_names", None), Mapping):
        first = next(iter(data), "train")
        raise HeddleError(f"{what}: a table of several datasets; take one, such as data[{first!r}]")
    if hasattr(data, "columns") and (rows := _rows_of_frame(data)) is not None:
        return rows
    if isinstance(data, Mapping) and data and all(map(_is_column, data.values())):
        lengths = {name: len(column) for name, column in data.items()}
        if len(set(lengths.values())) > 1:
            sizes = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise HeddleError(f"{what}: columns must have equal lengths, not {sizes}")
        columns = [as_list(column) or list(column) for column in data.values()]
        return [dict(zip(data, values, strict=True)) for values in zip(*columns, strict=True)]
    iterable = isinstance(data, Iterable) or hasattr(data, "__getitem__")
    if not iterable or isinstance(data, Mapping | bytes | np.generic | type):
        raise HeddleError(f"{what}: a text, a list or a dataset is needed, not {article(type(data).__name__)}")
    return list(data)


def _is_column(value: Any) -> bool:
    return not isinstance(value, str | bytes | Mapping) and (isinstance(value, Sequence) or as_list(value) is not None)


def _rows_of_frame(data: Any) -> list[Any] | None:
    """The rows of a data frame, as dicts by column; None if it is not a data frame."""
    if hasattr(data, "to_dicts"):  # polars
        return list(data.to_dicts())
    return list(data.to_dict("records")) if hasattr(data, "to_dict") and hasattr(data, "iloc") else None


def _names_a_file(text: str) -> bool:
    """Whether a text is the path of an existing file or folder."""
    try:
        return (
            0 < len(text) < LONGEST_PATH and not text.isspace() and Path(text).exists() and ("/" in text or "." in text)
        )
    except (OSError, ValueError):
        return False


def class_names_of(data: Any) -> dict[str, Sequence[str]]:
    """The class names by column, from the features of a `datasets` Dataset; empty for anything else."""
    features = getattr(data, "features", None)
    names_by_column: dict[str, Sequence[str]] = {}
    for column, feature in features.items() if isinstance(features, Mapping) else ():
        names = getattr(getattr(feature, "feature", feature), "names", None)
        if isinstance(names, list | tuple):
            names_by_column[column] = names
    return names_by_column


def task_name(task: TaskSettings) -> str:
    return str(getattr(task, "kind", type(task).__name__))


def _orders(task: TaskSettings) -> list[tuple[str, ...]]:
    """The accepted orders of a tuple's fields: the task's, and one with the optional fields before the label."""
    label = tuple(field for field in task.fields if field == LABEL)
    others = tuple(field for field in task.fields if field != LABEL)
    return [task.fields, (*others, *task.optional, *label)]


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray | Tensor)


def _ids(item: Any) -> Ids:
    """Int[N] from an array or a tensor of ids."""
    if isinstance(item, Tensor) and (item.is_meta or item.layout != torch.strided):
        raise HeddleError("data: ids need an ordinary tensor, not one without values or of a sparse layout")
    array = np.asarray(item.detach().cpu() if isinstance(item, Tensor) else item)
    if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
        raise HeddleError(
            f"data: ids are whole numbers in one dimension, not {array.dtype.name} of shape {list(array.shape)}"
        )
    return array.astype(np.int64)


def _plain(value: Any) -> Any:
    """Convert scalars and arrays of numpy and torch, and tuples, to plain Python values; NaN in a data frame becomes None."""
    if isinstance(value, np.generic | np.ndarray) or (isinstance(value, Tensor) and not value.is_meta):
        value = value.tolist()
    if isinstance(value, float) and isnan(value):
        return None
    return list(value) if isinstance(value, tuple) else value
