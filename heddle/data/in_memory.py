"""What a user has in Python, as a corpus: texts, ids, tuples, or rows with named columns, of lists or of a `datasets` Dataset."""

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
from heddle.data.unseen import Known, describe_unseen, known_labels
from heddle.errors import HeddleError, article
from heddle.text.tokenizer import Tokenizer

LONGEST_PATH = 1024  # characters of a text that may be a path
TEXT = ("text",)  # what a task reads if it does not read records
Ids = npt.NDArray[np.int64]
Made = TypeVar("Made")


class InMemoryData:
    """The user's data, as one task reads it.

    Args:
        data: for tasks that read a text: a string, a list of strings, an array of ids [N] or a list of them. For others: a list
            of tuples in the order of the task's fields. For all: dicts by column name, or a `datasets` Dataset.
        task: the task.
        columns: which columns of dicts are which fields, where the names differ.
        what: what the data are, for messages.

    Raises:
        HeddleError: the data are of another kind.
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
            raise self._unfit(0)

    def needed(self) -> str:
        """What the task reads, in words."""
        if self.task.fields == TEXT:
            return "a text, texts or arrays of ids"
        if self.task.labels == "tokens" and LABEL in self.task.fields:
            return "tagged words: tuples (words, tags), or lists of pairs (word, tag)"
        if self.task.labels == "roles":
            return "conversations: lists of messages, each a dict with a role and a content"
        return f"{'pairs' if len(self.task.fields) == 2 else 'tuples'} ({', '.join(self.task.fields)})"

    def documents(self) -> Iterator[Document]:
        """The texts that are not empty."""
        return (document for document in self._each(self._document) if document.text)

    def examples(self) -> Iterator[Example]:
        """The records."""
        return self._each(self._example)

    def known(self, classes: tuple[str, ...]) -> Known:
        """The records with labels that a model with these classes has learned; all if it has none yet.

        Raises:
            HeddleError: it knows none of the labels.
        """
        examples = list(self.examples())
        if not classes or not self.task.has_classes:
            return Known(examples, [0] * len(examples), {})
        known = known_labels(examples, classes, "the model", self.task.labels == "several")
        self._unseen = known.unseen
        return known

    def left_out(self) -> list[str]:
        """What the last reading left out as malformed, and labels that a model has not learned, in a line each."""
        lines = self._reader.notes.lines()
        if self._unseen:
            lines.append(describe_unseen(self._unseen, self.task.labels == "several", "the model"))
        return [f"{self.what}: {line}" for line in lines]

    def _each(self, make: Callable[[int], Made]) -> Iterator[Made]:
        """What is made of each item; of malformed ones, only if they are not to be skipped, an error."""
        self._reader = Reader(skips="items" if self.columns.skip_invalid else "none")
        return self._reader.each(range(len(self.items)), make)

    def _document(self, number: int) -> Document:
        item = self.items[number]
        if not isinstance(item, str | Mapping):
            raise self._unfit(number)
        text = item if isinstance(item, str) else self._row(item, number).text(self.columns.text)
        return Document(text, f"item {number}")

    def _example(self, number: int) -> Example:
        item, named, task = self.items[number], self.columns.columns(), self.task
        if isinstance(item, Mapping):
            example = of_row(self._row(item, number), task.reads(named), named, task.labels, self.columns.separator)
        elif (values := self._fields(item)) is not None:
            row = TableRow({name: _plain(value) for name, value in values.items()}, f"item {number}")
            example = of_row(row, tuple(values), {}, task.labels)
        else:
            raise self._unfit(number)
        if task.labels == "numbers":
            as_number(example)
        return example

    def texts(self) -> Iterator[str]:
        """Every text, for a tokenizer to learn from."""
        if self.ids is not None:
            raise HeddleError(f"{self.what}: ids have no text to train a tokenizer on")
        if self.task.fields == TEXT:
            return (document.text for document in self.documents())
        return (text for example in self.examples() for text in example.written())

    def classes(self) -> tuple[str, ...]:
        """Names of the classes of the labels; none if the task has no classes."""
        if not self.task.has_classes:
            return ()
        labels = (example.label for example in self.examples())
        several = (label if isinstance(label, tuple) else (str(label),) for label in labels)
        return class_names(name for names in several for name in names if name)

    def _fields(self, item: Any) -> dict[str, Any] | None:
        """A tuple's values by field; a sentence may also be a list of pairs (word, tag). None: it does not fit."""
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
        named = {column: self._named(column, value) for column, value in item.items()}
        return TableRow(named, f"item {number}")

    def _named(self, column: str, value: Any) -> Any:
        """A value of a column; a Dataset's classes by their names."""
        value, names = _plain(value), self.names.get(column)
        return value if names is None else named_class(value, names)

    def _unfit(self, number: int) -> MalformedError:
        name = "array" if _is_array(self.items[number]) else type(self.items[number]).__name__
        found = f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
        where = "it" if len(self.items) == 1 and not isinstance(self.items[0], tuple) else f"item {number}"
        fault = f"{task_name(self.task)} needs {self.needed()}; {where} is {found}"
        return MalformedError("of another kind", self.what, fault)


def corpus_of(
    given: InMemoryData, validation: "InMemoryData | float | None", tokenizer: Tokenizer, classes: tuple[str, ...] = ()
) -> Corpus:
    """A user's data as a corpus in memory, divided as a run divides its sources.

    Args:
        given: the data to train on.
        validation: the data to evaluate on; or the share of the training data to hold out, by the rules of
            `heddle.data.build_store` and `build_records`, and of ids the end; None: nothing is evaluated.
        tokenizer: the tokenizer of all texts.
        classes: names of the classes, if they are known before.

    Raises:
        HeddleError: the data do not fit the task, a part is empty, or the tokenizer does not know some text.
    """
    if given.task.fields != TEXT:
        return _records(given, validation, tokenizer, classes)
    if given.ids is not None:
        whole = part_of_ids(given.ids, tokenizer)
        if isinstance(validation, float):
            cut = int(sum(map(len, given.ids)) * (1 - validation))
            return _divided(*(part_of_ids(half, tokenizer) for half in _halves(given.ids, cut)))
        return Corpus(whole, None if validation is None else _part(validation, tokenizer))
    if not isinstance(validation, float):
        return Corpus(_part(given, tokenizer), None if validation is None else _part(validation, tokenizer))
    documents = list(given.documents())
    split = choose_split(describe_documents(documents, TextStats(validation)), validation)
    parts: dict[str, list[Document]] = {"train": [], "validation": []}
    for document in documents:
        data = document.text.encode()
        for piece in split.divide(document.text, len(data), hashlib.sha256(data).digest()):
            parts[piece.part].append(replace(document, text=piece.text))
    found = (part_of(part, tokenizer) for part in parts.values())
    return _divided(*found) if split.by == "characters" else Corpus(*found)


def _divided(train: Part, validation: Part) -> Corpus:
    """The parts of a text that was cut between them; one document has no mark at its end, as in a store."""
    mark = train.separator if train.documents + validation.documents > 2 else None
    return Corpus(replace(train, separator=mark, ends=False), replace(validation, separator=mark, begins=False))


def _halves(documents: Sequence[Ids], cut: int) -> tuple[list[Ids], list[Ids]]:
    """The documents before and after so many ids; at most one is divided."""
    first, second = list[Ids](), list[Ids]()
    for document in documents:
        first += [document[:cut]] if cut else []
        second += [document[cut:]] if cut < len(document) else []
        cut = max(0, cut - len(document))
    return first, second


def part_of_ids(documents: Sequence[Ids], tokenizer: Tokenizer) -> Part:
    """A part in memory from documents that are ids, separated as `heddle.data.part_of` separates texts.

    Raises:
        HeddleError: an id is not the tokenizer's, or there are fewer than two.
    """

    def encoded() -> Iterator[EncodedDocument]:
        for document in documents:
            wrong = document[(document < 0) | (document >= tokenizer.vocab_size)]
            if len(wrong):
                raise HeddleError(f"data: the id {wrong[0]} is none of the tokenizer's {tokenizer.vocab_size} ids")
            if len(document):
                # An end of text separates documents and has no text of its own.
                spelt = tokenizer.decode_bytes(document[document != tokenizer.end_of_text].tolist())
                text = spelt.decode(errors="replace")
                first = first_bytes(tokenizer.token_bytes(int(document[0])), text)
                yield document.tolist(), len(spelt), len(text), first

    return part_of_encoded(encoded(), tokenizer.end_of_text)


def _part(given: InMemoryData, tokenizer: Tokenizer) -> Part:
    return part_of(given.documents(), tokenizer) if given.ids is None else part_of_ids(given.ids, tokenizer)


def _records(
    given: InMemoryData, validation: "InMemoryData | float | None", tokenizer: Tokenizer, classes: tuple[str, ...]
) -> Corpus:
    labels, chat = given.task.labels, given.task.chat(None)
    if validation is None:
        return Corpus(records_of(given.examples(), tokenizer, labels, classes or given.classes(), chat))
    share = validation if isinstance(validation, float) else None
    known = validation.known(classes) if isinstance(validation, InMemoryData) else None
    held_out_examples = None if known is None else known.examples
    examples = list(for_parts(given.examples(), held_out_examples))
    counted = RecordStats(share, labels)
    for example in examples:
        counted.add(example)
    classes = classes or counted.description().classes
    tally = RecordStats(share, labels, counted.hold_out())
    parts: dict[str, list[Example]] = {"train": [], "validation": []}
    for example in examples:
        if part := tally.add(example):
            parts[part].append(example)
    train, held_out = (records_of(part, tokenizer, labels, classes, chat) for part in parts.values())
    if known is not None and known.unseen and labels == "several":
        counts = [[count] for count, each in zip(known.missed, known.examples, strict=True) if not each.empty]
        held_out = replace(held_out, columns={**held_out.columns, MISSED: Column.of(counts)})
    return Corpus(train, replace(held_out, blank=counted.blank))


def items_of(data: Any, what: str) -> list[Any]:
    """The items of a list, an iterator, a Dataset, a column or a data frame; a string and an array of ids are one item.

    Raises:
        HeddleError: it is something else.
    """
    if isinstance(data, np.ndarray) and data.dtype.kind in "OUST" and data.ndim in (1, 2):
        return [tuple(row) for row in data.tolist()] if data.ndim == 2 else list(data.tolist())
    if isinstance(data, PathLike) or (isinstance(data, str) and _names_a_file(data)):
        raise HeddleError(
            f"{what}: {str(data)!r} names a file or a folder, and would be learned as a text: read it with "
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
            raise HeddleError(f"{what}: columns must be equally long, and have {sizes} values")
        columns = [as_list(column) or list(column) for column in data.values()]
        return [dict(zip(data, values, strict=True)) for values in zip(*columns, strict=True)]
    listed = isinstance(data, Iterable) or hasattr(data, "__getitem__")
    if not listed or isinstance(data, Mapping | bytes | np.generic | type):
        raise HeddleError(f"{what}: a text, a list or a dataset is needed, not {article(type(data).__name__)}")
    return list(data)


def _is_column(value: Any) -> bool:
    return not isinstance(value, str | bytes | Mapping) and (isinstance(value, Sequence) or as_list(value) is not None)


def _rows_of_frame(data: Any) -> list[Any] | None:
    """The rows of a data frame, as dicts by column; None: it is none."""
    if hasattr(data, "to_dicts"):  # polars
        return list(data.to_dicts())
    return list(data.to_dict("records")) if hasattr(data, "to_dict") and hasattr(data, "iloc") else None


def _names_a_file(text: str) -> bool:
    """Whether a text is the path of a file or folder that exists."""
    try:
        return (
            0 < len(text) < LONGEST_PATH and not text.isspace() and Path(text).exists() and ("/" in text or "." in text)
        )
    except (OSError, ValueError):
        return False


def class_names_of(data: Any) -> dict[str, Sequence[str]]:
    """The names of classes by column, from the features of a `datasets` Dataset; of anything else none."""
    features = getattr(data, "features", None)
    found: dict[str, Sequence[str]] = {}
    for column, feature in features.items() if isinstance(features, Mapping) else ():
        names = getattr(getattr(feature, "feature", feature), "names", None)
        if isinstance(names, list | tuple):
            found[column] = names
    return found


def task_name(task: TaskSettings) -> str:
    """A task's kind."""
    return str(getattr(task, "kind", type(task).__name__))


def _orders(task: TaskSettings) -> list[tuple[str, ...]]:
    """The fields of a tuple: those of the task, or with the optional ones before the label."""
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
    """Scalars and arrays of numpy and torch, and tuples, as Python's own values; what is missing in a data frame is None."""
    if isinstance(value, np.generic | np.ndarray) or (isinstance(value, Tensor) and not value.is_meta):
        value = value.tolist()
    if isinstance(value, float) and isnan(value):
        return None
    return list(value) if isinstance(value, tuple) else value
