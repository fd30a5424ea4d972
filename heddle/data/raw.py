"""What a run learns from, before it is tokenised: documents, or records of several fields."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from heddle.config.data import DataConfig
from heddle.config.tasks import TaskSettings
from heddle.data.provenance import Provenance, fingerprint
from heddle.data.record_stats import RecordStats, RecordSummary, for_parts
from heddle.data.record_store import RecordStore, Store, build_records
from heddle.data.sources.arrow import HUB, dataset_files, is_dataset, splits_of
from heddle.data.sources.documents import (
    KNOWN,
    Description,
    Document,
    TextStats,
    describe_documents,
    python_library,
    read_documents,
)
from heddle.data.sources.examples import Example, check_folders, example_files, read_examples
from heddle.data.sources.files import STDIN, find_files, standard_input
from heddle.data.sources.notes import Notes, Reader
from heddle.data.store import TokenStore, build_store
from heddle.errors import HeddleError, pluralize
from heddle.text.heartbeat import heartbeat
from heddle.text.tokenizer import Tokenizer

Tell = Callable[[str], None]
TEXT = ("text",)  # what a task reads if it does not read records
SHOWN = 4  # names in a message


class RawDataset(ABC):
    """The user's sources, read as a task needs them. Each method reads them once more, so that memory does not grow with them.

    Args:
        data: the settings.
        sources: files, folders and globs to train on.
        validation: the user's own to evaluate on, or none.
    """

    one_text = False  # whether it is a single document

    def __init__(self, data: DataConfig, sources: list[str | Path], validation: list[str | Path]) -> None:
        self.data, self.sources, self.validation = data, sources, validation
        self.share = None if validation else data.validation
        self.names: Mapping[str, str] = {}  # what to call a file that stands for standard input
        self.again = False  # whether standard input was read before
        self.notes = Notes()  # of the last reading
        self.left_out: Mapping[str, int] = {}  # how many items `read` left out, by what is wrong with them
        self.counts = False  # whether everything malformed is counted, instead of stopping at the first

    def reader(self) -> Reader:
        """For one reading of everything."""
        skips: Literal["none", "items", "all"] = "all" if self.counts else "items" if self.data.skip_invalid else "none"
        self.notes = Notes()
        return Reader(self.data.encoding, skips, self.data.unlabelled, self.notes)

    def tell_notes(self, tell: Tell) -> None:
        """Tell what the last reading left out or found worth a remark."""
        self.left_out = self.notes.left_out
        for line in self.notes.lines():
            tell(line)

    def reads(self) -> dict[str, Any]:
        """The settings of its readers, where they are not the defaults."""
        settings = {name: getattr(self.data, name) for name in ("encoding", "skip_invalid", "unlabelled")}
        return {name: value for name, value in settings.items() if value != DataConfig.model_fields[name].default}

    @abstractmethod
    def files(self, sources: list[str | Path]) -> list[Path]:
        """The files of sources, in the order in which they are read."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The settings that decide what is read and what is held out, by name."""

    def provenance(self, recipe: Mapping[str, Any] | None) -> Provenance:
        """What a store made of this would be made from; reads every file for its hash.

        Args:
            recipe: how the tokenizer is trained on it, or None.
        """
        parts = {"sources": self.sources, "validation_sources": self.validation}
        there = {part: [source for source in sources if str(source) not in STDIN] for part, sources in parts.items()}
        files = ((part, file) for part, sources in there.items() if sources for file in self.files(sources))
        return Provenance(fingerprint(files, self.names), self.settings(), recipe)

    @abstractmethod
    def read(self, tell: Tell) -> str:
        """Read everything once; returns what it is, in words."""

    def check(self, provenance: Provenance | None) -> None:
        """Refuse files that are no longer what they were when their hashes were taken."""
        if provenance is not None and (said := provenance.differences(self.provenance(None))):
            raise HeddleError(f"{'; '.join(said)}; the text has changed since it was first read: run the command again")

    @abstractmethod
    def texts(self) -> Iterator[str]:
        """Every text, for a tokenizer to learn from."""

    @abstractmethod
    def tokenize(
        self, directory: Path, tokenizer: Tokenizer, tell: Tell, provenance: Provenance | None = None
    ) -> tuple[Store, list[str]]:
        """Tokenise everything into a store, reporting progress. Returns it, and what was held out, in words.

        Raises:
            HeddleError: the files are no longer those of `provenance`, or cannot be tokenised.
        """


@contextmanager
def open_dataset(data: DataConfig, task: TaskSettings, again: bool = False) -> Iterator[RawDataset]:
    """What a run with these settings learns from; what standard input gave is kept until the block ends.

    Args:
        data: the settings.
        task: what it learns.
        again: whether standard input, if it is a source, was read before, and so is left alone.

    Raises:
        HeddleError: the task reads records and no sources are given.
    """
    records = task.fields != TEXT
    if records and not data.sources:
        raise HeddleError(f"this task reads records of {' and '.join(task.fields)}: name their files")
    sources = downloaded(data.sources) if data.sources else [*python_library()]
    given = (*sources, *(downloaded(data.validation_sources) or own_validation(data)))
    read = nullcontext([*given]) if again else standard_input(given, ".jsonl" if records else ".txt")
    with read as found:
        train, validation = found[: len(sources)], found[len(sources) :]
        made = RawRecords(data, train, validation, task) if records else RawText(data, train, validation)
        made.again = again
        made.names = {str(file): "-" for file, name in zip(found, given, strict=True) if str(name) in STDIN}
        yield made


def downloaded(sources: Iterable[str]) -> list[str | Path]:
    """The sources with the files of datasets in place of their names, which are looked up only once."""
    found: list[str | Path] = []
    for source in sources:
        found += dataset_files(source) if source.startswith(HUB) else [source]
    return found


def own_validation(data: DataConfig) -> list[str | Path]:
    """The files of the validation splits of the sources, if every source is a dataset that has one.

    Raises:
        HeddleError: only some have one, or a share was asked for too.
    """
    found = [splits_of(source) if is_dataset(source) and "#" not in source else {} for source in data.sources]
    files: list[str | Path] = [file for splits in found for file in splits.get("validation", [])]
    if files and not all("validation" in splits for splits in found):
        raise HeddleError("only some of the sources have a validation split of their own: name validation_sources")
    if files and data.sets_share:
        raise HeddleError(
            f"validation = {data.validation} has no effect: the sources have a validation split of their own"
        )
    return files


class RawText(RawDataset):
    """Documents."""

    def read(self, tell: Tell) -> str:
        tally = TextStats(self.share)
        with heartbeat(tell, lambda: f"{tally.bytes / 1e6:,.1f} MB read"):
            self.described: Description = describe_documents(self.documents(), tally)
        self.one_text = self.described.documents == 1
        self.tell_notes(tell)
        return f"{pluralize(self.described.documents, 'document')}, {self.described.bytes / 1e6:,.1f} MB"

    def files(self, sources: list[str | Path]) -> list[Path]:
        return [file for source in sources for file in find_files(source, KNOWN)[0]]

    def settings(self) -> dict[str, Any]:
        return {"reads": "texts", "text": self.data.text, "validation": self.share, **self.reads()}

    def texts(self) -> Iterator[str]:
        return (document.text for document in self.documents())

    def tokenize(
        self, directory: Path, tokenizer: Tokenizer, tell: Tell, provenance: Provenance | None = None
    ) -> tuple[Store, list[str]]:
        several = self.described.documents > 1 and tokenizer.end_of_text is not None
        with Counter(tell, self.described.bytes) as count:
            store = build_store(
                directory,
                self.documents(),
                tokenizer,
                self.share,
                several,
                count,
                self.described,
                self.data.workers,
                provenance,
                self.left_out,
            )
        self.check(provenance)
        return store, [describe_split(store), *describe_overlap(store)]

    def documents(self) -> Iterator[Document]:
        """Every document; with its part, if the user said it."""
        reader = self.reader()
        if not self.validation:
            yield from read_documents(self.sources, self.data.text, reader)
            return
        for part, sources in (("train", self.sources), ("validation", self.validation)):
            for document in read_documents(sources, self.data.text, reader):
                yield replace(document, part=part)


class RawRecords(RawDataset):
    """Records of several fields."""

    def __init__(
        self, data: DataConfig, sources: list[str | Path], validation: list[str | Path], task: TaskSettings
    ) -> None:
        super().__init__(data, sources, validation)
        self.fields, self.labels = task.reads(data.columns()), task.labels
        self.chat = task.chat(None)

    described: RecordSummary

    def read(self, tell: Tell) -> str:
        check_folders(self.files(self.sources), self.fields, self.labels)
        tally = RecordStats(self.share, self.labels)
        with heartbeat(tell, lambda: f"{tally.bytes / 1e6:,.1f} MB read"):
            for example in self.examples():
                tally.add(example)
        self.tell_notes(tell)
        found = self.described = tally.description()
        if (count := len(found.untaught)) > 0:
            names = ", ".join(map(repr, found.untaught[:SHOWN])) + (", …" if count > SHOWN else "")
            are, them = ("is", "it") if count == 1 else ("are", "them")
            tell(
                f"{pluralize(count, 'label')} of the validation part {are} not in the training part ({names}, first "
                f"{found.first_untaught}): no record teaches {them}"
            )
        classes = f", {len(found.classes)} classes" if found.classes else ""
        empty = (
            f"; {found.empty:,} with an empty text left out, the first at {found.first_empty}" if found.empty else ""
        )
        return f"{pluralize(found.records, 'record')}, {found.bytes / 1e6:,.1f} MB{classes}{empty}"

    def files(self, sources: list[str | Path]) -> list[Path]:
        return example_files(sources, self.fields, self.data.columns(), self.labels)

    def settings(self) -> dict[str, Any]:
        columns = {field: self.data.columns().get(field, field) for field in self.fields}
        columns |= {"separator": self.data.separator} if self.labels == "several" else {}
        chat = {} if self.chat is None else {"chat": self.chat.to_dict()}
        return {
            "reads": [*self.fields],
            **columns,
            "labels": self.labels,
            "validation": self.share,
            **chat,
            **self.reads(),
        }

    def texts(self) -> Iterator[str]:
        return (text for example in self.examples() for text in example.written())

    def tokenize(
        self, directory: Path, tokenizer: Tokenizer, tell: Tell, provenance: Provenance | None = None
    ) -> tuple[Store, list[str]]:
        with Counter(tell, self.described.bytes) as count:
            store = build_records(
                directory,
                self.examples(),
                tokenizer,
                self.share,
                self.labels,
                count,
                self.described,
                self.data.workers,
                provenance,
                self.chat,
                self.left_out,
            )
        self.check(provenance)
        return store, describe_records(store)

    def examples(self) -> Iterator[Example]:
        """Every record; with its part, if the user said it."""
        reader = self.reader()

        def read(sources: list[str | Path]) -> Iterator[Example]:
            return read_examples(sources, self.fields, self.data.columns(), self.labels, self.data.separator, reader)

        return for_parts(read(self.sources), read(self.validation) if self.validation else None)


class Counter:
    """Tells every few seconds how much has been cut."""

    def __init__(self, tell: Tell, total: int) -> None:
        self.done = 0
        self._beat = heartbeat(tell, lambda: f"{self.done / 1e6:,.1f} of {total / 1e6:,.1f} MB cut")

    def __enter__(self) -> Callable[[int, int], None]:
        self._beat.__enter__()
        return self._count

    def __exit__(self, *error: object) -> None:
        self._beat.__exit__(None, None, None)

    def _count(self, done: int, total: int) -> None:
        self.done = done


def describe_split(store: TokenStore) -> str:
    """What was held out of a text, in one line."""
    share, asked, cut = store.split["held_out"], store.split["validation"], store.split["cut"]
    if asked is None:
        return f"validation: {pluralize(store.validation.documents, 'document')} of validation_sources, {share:.1%} of all text"
    there = store.train.documents + store.validation.documents - cut
    how = {
        "characters": "the end of the text",
        "documents": f"{store.validation.documents:,} of {there:,} documents, drawn by their content",
        "both": f"the ends of {cut:,} of {there:,} documents, too few or too uneven to hold out whole ones alone",
    }[store.split["by"]]
    missed = "" if abs(share - asked) <= 0.25 * min(asked, 1 - asked) else f"; validation = {asked:g} was asked for"
    return f"held out for validation: {share:.1%} of the text, {how}{missed}"


def describe_overlap(store: TokenStore) -> list[str]:
    """How many of the held-out texts are in the training text too, in one line; nothing if none is."""
    twice = store.split["overlap"]
    of = pluralize(store.validation.documents, "text")
    said = f"{twice:,} of {of} held out {'is' if twice == 1 else 'are'} in the training text too, word for word"
    return [f"{said}: the score will be better than on new text"] if twice else []


def describe_records(store: RecordStore) -> list[str]:
    """What was held out of records, and how much of it the training part has too, in a line each."""
    held, there = len(store.validation), len(store.train) + len(store.validation)
    if store.split["by"] == "sources":
        lines = [f"validation: {pluralize(held, 'record')} of validation_sources"]
    else:
        lines = [
            f"held out for validation: {held:,} of {pluralize(there, 'record')} ({held / there:.1%}), drawn by their content"
        ]
    whole, first = store.split["repeated"], store.split["repeated_first"]
    if whole or first:
        name = next(iter(store.train.columns))
        only = f"; {first:,} have a {name} that is" if first > whole else ""
        lines.append(f"{whole:,} of the {held:,} validation records are in the training part too{only}")
    return lines
