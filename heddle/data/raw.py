"""A run's data before tokenisation: documents, or records of several fields."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from heddle.config.data import DataConfig, Labels
from heddle.config.tasks import TaskSettings
from heddle.data.provenance import Provenance, fingerprint
from heddle.data.record_stats import RecordStats, RecordSummary, for_parts
from heddle.data.record_store import (
    Store,
    build_records,
    record_jobs,
    record_workers,
    records_encoder,
)
from heddle.data.records import Rows
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
from heddle.data.split import choose_split
from heddle.data.split_text import describe_overlap, describe_records, describe_split
from heddle.data.store import build_store, encode_texts, text_jobs
from heddle.errors import HeddleError, for_each, pluralize
from heddle.progress import counting, heartbeat
from heddle.text.processes import Encodes, InOrder, in_order, suitable_workers
from heddle.text.tokenizer import Tokenizer

Tell = Callable[[str], None]
TEXT = ("text",)  # fields of a task that reads plain text instead of records
MAX_NAMES = 4  # names in a message


class Jobs(NamedTuple):
    """What is to be tokenised: what encodes a job, the jobs in order, how many processes do them, and the UTF-8 bytes of all."""

    encode: Callable[[Encodes, Any], Rows]
    jobs: Iterator[Any]
    workers: int
    bytes: int


class RawDataset(ABC):
    """The user's sources, read as a task needs them. Each method reads the files again, so that memory stays bounded.

    Args:
        data: the settings.
        sources: files, folders and globs to train on.
        validation: files, folders and globs to evaluate on; empty to hold out a share of the training data.
    """

    one_text = False  # whether there is only one document
    labels: Labels = "classes"  # kind of the labels; texts have none
    described: Description | RecordSummary  # after `read`

    def __init__(self, data: DataConfig, sources: list[str | Path], validation: list[str | Path]) -> None:
        self.data, self.sources, self.validation = data, sources, validation
        self.share = None if validation else data.validation
        self.names: Mapping[str, str] = {}  # the recorded name of a file that replaces standard input
        self.stdin_read = False  # whether standard input was read earlier
        self.notes = Notes()  # of the last pass
        self.left_out: Mapping[str, int] = {}  # how many malformed items `read` left out, by kind
        self.counts_malformed = False  # whether to count all malformed items instead of stopping at the first

    def reader(self) -> Reader:
        """A reader for one pass over all sources."""
        skips: Literal["none", "items", "all"] = (
            "all" if self.counts_malformed else "items" if self.data.skip_invalid else "none"
        )
        self.notes = Notes()
        return Reader(self.data.encoding, skips, self.data.unlabelled, self.notes)

    def report_notes(self, tell: Tell) -> None:
        """Report what the last pass left out, and its remarks."""
        self.left_out = self.notes.left_out
        for line in self.notes.lines():
            tell(line)

    def reader_settings(self) -> dict[str, Any]:
        """The settings of the reader that differ from their defaults."""
        settings = {name: getattr(self.data, name) for name in ("encoding", "skip_invalid", "unlabelled")}
        return {name: value for name, value in settings.items() if value != DataConfig.model_fields[name].default}

    @abstractmethod
    def files(self, sources: list[str | Path]) -> list[Path]:
        """The files of these sources, in the order in which they are read."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The settings that decide what is read and what is held out, by name."""

    def provenance(self, recipe: Mapping[str, Any] | None) -> Provenance:
        """The provenance of a store of this data; reads every file to compute its checksum.

        Args:
            recipe: how the tokenizer is trained on the data, or None.
        """
        parts = {"sources": self.sources, "validation_sources": self.validation}
        named = {part: [source for source in sources if str(source) not in STDIN] for part, sources in parts.items()}
        files = ((part, file) for part, sources in named.items() if sources for file in self.files(sources))
        return Provenance(fingerprint(files, self.names), self.settings(), recipe)

    @abstractmethod
    def read(self, tell: Tell) -> str:
        """Read all sources once. Returns a description of the data in one line."""

    def check(self, provenance: Provenance | None) -> None:
        """Refuse files that changed since their checksums were computed."""
        if provenance is not None and (differences := provenance.differences(self.provenance(None))):
            raise HeddleError(
                f"{'; '.join(differences)}; the text has changed since it was first read: run the command again"
            )

    @abstractmethod
    def texts(self) -> Iterator[str]:
        """All texts, to train a tokenizer on."""

    @abstractmethod
    def jobs(self, tokenizer: Tokenizer) -> Jobs:
        """What is to be tokenised, after `read`."""

    def encode(self, tokenizer: Tokenizer, tell: Tell, provenance: Provenance, encoded: InOrder) -> None:
        """Go through all jobs, reporting progress, for the results that `encoded` keeps; no store is written.

        Raises:
            HeddleError: the files differ from `provenance`, or cannot be tokenised.
        """
        encode, jobs, workers, size = self.jobs(tokenizer)
        with _counting(tell, size) as count, closing(encoded(encode, jobs, tokenizer, workers)) as results:
            for job, _ in results:
                count(job.done, size)
        self.check(provenance)

    @abstractmethod
    def tokenize(
        self,
        directory: Path,
        tokenizer: Tokenizer,
        tell: Tell,
        provenance: Provenance | None = None,
        encoded: InOrder = in_order,
    ) -> tuple[Store, list[str]]:
        """Tokenise all sources into a store, reporting progress. Returns the store, and lines that describe the held-out part.

        Args:
            provenance: the files and settings that the sources had.
            encoded: what encodes the jobs, in order.

        Raises:
            HeddleError: the files differ from `provenance`, or cannot be tokenised.
        """


@contextmanager
def open_dataset(data: DataConfig, task: TaskSettings, stdin_read: bool = False) -> Iterator[RawDataset]:
    """The raw data of a run with these settings; a copy of standard input exists until the block ends.

    Args:
        data: the settings.
        task: the run's task.
        stdin_read: whether standard input, if it is a source, was read earlier and must not be read again.

    Raises:
        HeddleError: the task reads records and no sources are given.
    """
    records = task.fields != TEXT
    if records and not data.sources:
        raise HeddleError(f"this task needs records with {' and '.join(task.fields)}: name their files")
    sources = resolve_datasets(data.sources) if data.sources else [*python_library()]
    all_sources = (*sources, *(resolve_datasets(data.validation_sources) or own_validation(data)))
    opened = nullcontext([*all_sources]) if stdin_read else standard_input(all_sources, ".jsonl" if records else ".txt")
    with opened as paths:
        train, validation = paths[: len(sources)], paths[len(sources) :]
        dataset = RawRecords(data, train, validation, task) if records else RawText(data, train, validation)
        dataset.stdin_read = stdin_read
        dataset.names = {str(file): "-" for file, name in zip(paths, all_sources, strict=True) if str(name) in STDIN}
        yield dataset


def resolve_datasets(sources: Iterable[str]) -> list[str | Path]:
    """The sources with dataset names replaced by the datasets' files, so that each name is resolved only once."""
    files: list[str | Path] = []
    for source in sources:
        files += dataset_files(source) if source.startswith(HUB) else [source]
    return files


def own_validation(data: DataConfig) -> list[str | Path]:
    """The files of the validation splits of the sources, if every source is a dataset that has one.

    Raises:
        HeddleError: only some have one, or the settings also request a share.
    """
    splits_by_source = [
        splits_of(source) if is_dataset(source) and "#" not in source else {} for source in data.sources
    ]
    files: list[str | Path] = [file for splits in splits_by_source for file in splits.get("validation", [])]
    if files and not all("validation" in splits for splits in splits_by_source):
        raise HeddleError("only some of the sources have a validation split of their own: name validation_sources")
    if files and data.sets_share:
        raise HeddleError(
            f"validation = {data.validation} has no effect: the sources have a validation split of their own"
        )
    return files


class RawText(RawDataset):
    """Documents."""

    def read(self, tell: Tell) -> str:
        stats = TextStats(self.share)
        with heartbeat(tell, lambda: f"{stats.bytes / 1e6:,.1f} MB read"):
            self.described: Description = describe_documents(self.documents(), stats)
        self.one_text = self.described.documents == 1
        self.report_notes(tell)
        return f"{pluralize(self.described.documents, 'document')}, {self.described.bytes / 1e6:,.1f} MB"

    def files(self, sources: list[str | Path]) -> list[Path]:
        return [file for files, _ in for_each(lambda each: find_files(each, KNOWN), sources) for file in files]

    def settings(self) -> dict[str, Any]:
        return {"reads": "texts", "text": self.data.text, "validation": self.share, **self.reader_settings()}

    def texts(self) -> Iterator[str]:
        return (document.text for document in self.documents())

    def jobs(self, tokenizer: Tokenizer) -> Jobs:
        size, workers = self.described.bytes, self.data.workers
        split = choose_split(self.described, self.share)
        count = suitable_workers(tokenizer, size) if workers is None else workers
        return Jobs(encode_texts, text_jobs(self.documents(), tokenizer, split, TextStats(self.share)), count, size)

    def tokenize(
        self,
        directory: Path,
        tokenizer: Tokenizer,
        tell: Tell,
        provenance: Provenance | None = None,
        encoded: InOrder = in_order,
    ) -> tuple[Store, list[str]]:
        several = self.described.documents > 1 and tokenizer.end_of_text is not None
        with _counting(tell, self.described.bytes) as count:
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
                encoded,
            )
        self.check(provenance)
        return store, [describe_split(store), *describe_overlap(store)]

    def documents(self) -> Iterator[Document]:
        """All documents, each with its part if there are validation sources."""
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
        stats = RecordStats(self.share, self.labels)
        with heartbeat(tell, lambda: f"{stats.bytes / 1e6:,.1f} MB read"):
            for example in self.examples():
                stats.add(example)
        self.report_notes(tell)
        summary = self.described = stats.description()
        if (count := len(summary.validation_only)) > 0:
            names = ", ".join(map(repr, summary.validation_only[:MAX_NAMES])) + (", …" if count > MAX_NAMES else "")
            are, them = ("is", "it") if count == 1 else ("are", "them")
            tell(
                f"{pluralize(count, 'label')} of the validation part {are} not in the training part ({names}, first "
                f"{summary.first_validation_only}): no record teaches {them}"
            )
        classes = f", {len(summary.classes)} classes" if summary.classes else ""
        empty = (
            f"; {summary.empty:,} with an empty text left out, the first at {summary.first_empty}"
            if summary.empty
            else ""
        )
        return f"{pluralize(summary.records, 'record')}, {summary.bytes / 1e6:,.1f} MB{classes}{empty}"

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
            **self.reader_settings(),
        }

    def texts(self) -> Iterator[str]:
        return (text for example in self.examples() for text in example.written())

    def jobs(self, tokenizer: Tokenizer) -> Jobs:
        described, labels = self.described, self.labels
        jobs = record_jobs(self.examples(), RecordStats(self.share, labels, described.below))
        count = record_workers(self.data.workers, tokenizer, described.bytes, self.chat)
        return Jobs(records_encoder(labels, described.classes, self.chat), jobs, count, described.bytes)

    def tokenize(
        self,
        directory: Path,
        tokenizer: Tokenizer,
        tell: Tell,
        provenance: Provenance | None = None,
        encoded: InOrder = in_order,
    ) -> tuple[Store, list[str]]:
        with _counting(tell, self.described.bytes) as count:
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
                encoded,
            )
        self.check(provenance)
        return store, describe_records(store)

    def examples(self) -> Iterator[Example]:
        """All records, each with its part if there are validation sources."""
        reader = self.reader()

        def read(sources: list[str | Path]) -> Iterator[Example]:
            return read_examples(sources, self.fields, self.data.columns(), self.labels, self.data.separator, reader)

        return for_parts(read(self.sources), read(self.validation) if self.validation else None)


def _counting(tell: Tell, total: int) -> AbstractContextManager[Callable[[int, int], None]]:
    """Tell every few seconds how much of the text has been tokenised."""
    return counting(tell, lambda done: f"{done / 1e6:,.1f} of {total / 1e6:,.1f} MB tokenised")
