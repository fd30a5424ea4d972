"""The data that `heddle eval` scores: files in the format of the run's task, or its held-out data."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from heddle.config.data import DataConfig
from heddle.config.model import ClassifierHeadConfig
from heddle.config.saved import SavedConfig
from heddle.config.tasks import (
    ClassificationConfig,
    MaskedConfig,
    MultiLabelConfig,
    NextTokenConfig,
    RegressionConfig,
    TaskConfig,
    TokenClassificationConfig,
    TranslationConfig,
)
from heddle.data.corpus import Part
from heddle.data.encode import records_of
from heddle.data.memory import part_of
from heddle.data.raw import TEXT
from heddle.data.record_store import open_store
from heddle.data.records import MISSED, Column, Records
from heddle.data.sources.documents import read_documents
from heddle.data.sources.examples import Example, example_files, read_examples
from heddle.data.sources.files import TABLES, kind_of, standard_input
from heddle.data.sources.notes import Notes, Reader
from heddle.data.sources.tables import read_rows
from heddle.data.unseen import describe_unseen, scorable_records
from heddle.errors import HeddleError, pluralize
from heddle.predict.classify import class_names
from heddle.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class EvaluationData:
    """The data to score, and what is left out of it.

    Attributes:
        part: the data.
        examples: the same data as text, if it was read from files as records.
        notes: notes from reading the files.
        malformed: number of unreadable items, by problem.
        unseen: count of each label that the run has not learned. Its examples are not scored; for multi-label runs, it counts as
            missed.
        several: whether texts have several labels.
    """

    part: Part | Records
    examples: list[Example] | None = None
    notes: Notes = field(default_factory=Notes)
    malformed: Mapping[str, int] = field(default_factory=dict)
    unseen: Mapping[str, int] = field(default_factory=dict)
    several: bool = False

    def to_dict(self) -> dict[str, Any]:
        """What is left out, as JSON data."""
        others = {"other_files": dict(self.notes.extensions)}
        return {"malformed": dict(self.malformed), "unseen_labels": dict(self.unseen), **others}

    def lines(self) -> list[str]:
        """What is left out, one line each."""
        lines = self.notes.lines()
        if self.unseen:
            lines.append(describe_unseen(self.unseen, self.several, "the run"))
        if self.malformed and not self.notes.malformed:
            kinds = ", ".join(f"{kind}: {count:,}" for kind, count in self.malformed.items())
            count = pluralize(sum(self.malformed.values()), "item")
            lines.append(f"{count} of the run's sources were malformed and left out ({kinds})")
        return lines


def held_out(run: Path) -> EvaluationData:
    """The held-out data of a run."""
    if not (run / "data").is_dir():
        raise HeddleError(f"{run} has no held-out data; give files to score: heddle eval {run} FILE")
    store = open_store(run / "data")
    store.verify("validation")
    return EvaluationData(store.validation, malformed=store.left_out)


def read_files(
    files: tuple[str, ...],
    run: Path,
    config: SavedConfig,
    tokenizer: Tokenizer | None,
    column_overrides: Mapping[str, str],
    reader: Reader,
) -> EvaluationData:
    """Read files in the format of the run's task, from its columns or the given ones.

    Raises:
        HeddleError: the run has no tokenizer, or the files cannot be read.
    """
    if tokenizer is None:
        raise HeddleError(f"{run} has no tokenizer.json")
    task = task_of(config)
    _check_columns(column_overrides, task, config, run)
    data = (config.data or DataConfig()).override(column_overrides)
    reader = replace(reader, unlabelled=data.unlabelled)
    columns, records = data.columns(), task.fields != TEXT
    with standard_input(files, ".jsonl" if records else ".txt") as sources:
        if not records:
            text = part_of(read_documents(sources, data.text, reader), tokenizer)
            return EvaluationData(text, None, reader.notes, reader.notes.left_out)
        fields = task.reads(columns)
        if config.data is None and "pair" in task.optional and "pair" not in (*fields, *columns.values()):
            _refuse_unread(example_files(sources, fields, columns, task.labels), reader.encoding)
        examples = list(read_examples(sources, fields, columns, task.labels, data.separator, reader))
        classes = class_names(config.model) if task.has_classes else ()
        several, unseen = task.labels == "several", dict[str, int]()
        if classes:
            scorable = scorable_records(examples, classes, str(run), several)
            examples, unseen = scorable.examples, dict(scorable.unseen)
        part = records_of(examples, tokenizer, task.labels, classes, task.chat(config.model.chat))
        if several and unseen:
            counts = [[count] for count, each in zip(scorable.missed, examples, strict=True) if not each.empty]
            part = replace(part, columns={**part.columns, MISSED: Column.of(counts)})
        return EvaluationData(part, examples, reader.notes, reader.notes.left_out, unseen, several)


def _check_columns(column_overrides: Collection[str], task: TaskConfig, config: SavedConfig, run: Path) -> None:
    """Refuse columns of fields that a run does not read."""
    reads = (*task.fields, *task.optional)
    unread = next((field for field in column_overrides if field not in reads), None)
    if unread is not None:
        raise HeddleError(f"--{unread}-column does not apply to {run}, which reads {', '.join(reads)}: leave it out")
    reads_single = config.data is not None and "pair" not in task.reads(config.data.columns())
    if "pair" in column_overrides and reads_single:
        raise HeddleError(f"{run} reads single texts: leave out --pair-column")


def _refuse_unread(files: Sequence[Path], encoding: str) -> None:
    """Refuse tables with an unread `pair` column: an imported model does not record whether it reads pairs."""
    rows = (row for file in files if kind_of(file) in TABLES for row in read_rows(file, Reader(encoding, "all")))
    origin = next((row.origin for row in rows if "pair" in row.values), None)
    if origin is not None:
        raise HeddleError(
            f"{origin}: the column 'pair' would not be read: add --pair-column pair, or remove the column"
        )


def task_of(config: SavedConfig) -> TaskConfig:
    """The task of a run, or for an imported model the task of its head."""
    head = config.model.head
    if config.task is not None:
        return config.task
    if isinstance(head, ClassifierHeadConfig):
        if head.pooling == "none":
            return TokenClassificationConfig()
        if head.several:
            return MultiLabelConfig()
        return RegressionConfig() if head.classes == 1 else ClassificationConfig()
    stacks = tuple(config.model.stacks())
    if stacks == ("encoder", "decoder"):
        return TranslationConfig()
    return MaskedConfig() if stacks == ("encoder",) else NextTokenConfig()
