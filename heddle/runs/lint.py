"""Looks for what goes wrong in practice: in the user's files, and in a run's tokens and batches."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from heddle.checks import checked
from heddle.config.run import RunConfig
from heddle.data.base import PARTS
from heddle.data.batch import IGNORED, Batch
from heddle.data.corpus import Part
from heddle.data.pack import Packing
from heddle.data.raw import RawDataset, RawRecords, RawText, open_dataset
from heddle.data.record_stats import RecordStats
from heddle.data.record_store import RecordStore
from heddle.data.records import Records
from heddle.data.sources.examples import Example
from heddle.data.sources.files import STDIN
from heddle.data.sources.lint import MANY, Finding, RecordLint, TextLint, of_notes
from heddle.errors import HeddleError
from heddle.runs.session import OpenedRun, read_run
from heddle.runs.tokenizers import existing_tokenizer, with_needed_tokens
from heddle.tasks.chat import ChatTask
from heddle.tasks.contrastive import ContrastiveTask
from heddle.tasks.records import RecordTask
from heddle.tasks.rows.records import PackedRecords
from heddle.text.tokenizer import END_OF_TEXT

STEPS = 16  # steps whose batches are looked at
PADDED = 0.1  # share of padding in packed rows that is worth a remark


@checked()
def lint_sources(config: RunConfig) -> list[Finding]:
    """What is wrong with a run's sources, before it is tokenised.

    Raises:
        HeddleError: the sources cannot be read.
    """
    tokenizer = with_needed_tokens(existing_tokenizer(config.data, config.model.start), config)
    trained = (END_OF_TEXT, *config.data.special_tokens, *config.task.special_tokens)
    special = trained if tokenizer is None else tokenizer.special
    with open_dataset(config.data, config.task) as dataset:
        dataset.counts_malformed = True
        return list(_in_sources(dataset, special))


def _in_sources(dataset: RawDataset, special: Iterable[str]) -> Iterator[Finding]:
    if isinstance(dataset, RawRecords):
        examples = dataset
        counted = RecordStats(examples.share, examples.labels)
        for example in examples.examples():
            counted.add(example)
        yield from of_notes(examples.notes)
        below = counted.hold_out()

        def read() -> Iterator[tuple[str, Example]]:
            tally = RecordStats(examples.share, examples.labels, below)
            for example in examples.examples():
                yield tally.add(example) or example.part or "train", example

        yield from RecordLint(read, special).findings(examples.labels)
    elif isinstance(dataset, RawText):
        lint = TextLint("document", special)
        for document in dataset.documents():
            lint.add([document.text], document.origin, document.part or "train")
        yield from of_notes(dataset.notes)
        yield from lint.findings()


@checked()
def lint_run(run: str | Path) -> list[Finding]:
    """What is wrong with what a run learns from: its tokens, its batches, and whether its sources are still the same.

    Raises:
        HeddleError: the directory is not a training run, or its files are damaged.
    """
    opened = read_run(Path(run))
    findings: list[Finding] = []
    if isinstance(opened.store, RecordStore):
        findings += _in_records(opened, opened.store)
    else:
        for name in PARTS:
            part: Part = getattr(opened.store, name)
            findings += out_of_range(part.tokens, opened.tokenizer.vocab_size, name)
    return [*findings, *_in_batches(opened), *_in_changed_sources(opened)]


def _in_records(run: OpenedRun, store: RecordStore) -> Iterator[Finding]:
    task = run.task()
    for name in PARTS:
        records: Records = getattr(store, name)
        for field, column in records.texts.items():
            yield from out_of_range(column.values, run.tokenizer.vocab_size, f"{name}.{field}")
        separate = len(run.config.model.stacks()) == 2 or isinstance(task, ContrastiveTask)
        yield from cropped(records, run.config.model.context, separate, name)
    rows = task.rows(held_out=False) if isinstance(task, RecordTask) else None
    if isinstance(rows, PackedRecords):
        yield from padded(rows.packing)
    whole = store.split["repeated"]
    if whole:
        yield Finding(
            "overlap", True, whole, store.split["held_out"], "", "validation records are in the training part too",
            "remove them, or the score is of what was learned by heart",
        )  # fmt: skip


def cropped(records: Records, context: int, separate: bool, part: str) -> Iterator[Finding]:
    """Records that are longer than the model's context.

    Args:
        context: tokens in a row.
        separate: whether each text has a row of its own, as in an encoder-decoder; otherwise they share one.
        part: the part's name.
    """
    lengths = {field: column.lengths for field, column in records.texts.items()}
    rows = lengths if separate else {"text": sum(lengths.values(), np.zeros(len(records), dtype=np.int64))}
    for field, row in rows.items():
        long = np.flatnonzero(row > context)
        if len(long):
            lost = int((row[long] - context).sum()) / int(row.sum())
            yield Finding(
                "cropped", lost > MANY, len(long), len(row), f"{part} record {long[0]}",
                f"records have a {field} longer than context = {context} ({lost:.1%} of its tokens)",
                f"set context={int(row.max())}, or leave them out",
            )  # fmt: skip


def padded(packing: Packing) -> Iterator[Finding]:
    """Padding in packed rows, if there is much."""
    if packing.padding > PADDED:
        places = packing.rows * packing.length
        yield Finding(
            "padding", False, round(packing.padding * places), places, "",
            f"places of packed rows are padding ({packing.padding:.1%})",
            "records longer than half of the context share a row with few others: set another context",
        )  # fmt: skip


def out_of_range(ids: np.ndarray, vocab_size: int, where: str) -> Iterator[Finding]:
    """Ids that the tokenizer does not have."""
    wrong = np.flatnonzero(np.asarray(ids) >= vocab_size)
    if len(wrong):
        yield Finding(
            "ids out of range", True, len(wrong), len(ids), f"{where} token {wrong[0]}",
            f"ids are not below the {vocab_size:,} of the tokenizer", "tokenise the sources again",
        )  # fmt: skip


def _in_batches(run: OpenedRun) -> Iterator[Finding]:
    """What the first steps' batches have, or never have."""
    task = run.task()
    special, end = set(run.tokenizer.special.values()), run.tokenizer.end_of_text
    if isinstance(task, ChatTask):
        end = task.end
    doubled = texts = ends = targets = 0
    where = ""
    steps = min(STEPS, run.chosen.steps)
    for step in range(steps):
        batch = task.batch(task.examples(step))
        in_batch = doubled_beginnings(batch, special)
        if in_batch and not where:
            where = f"step {step + 1}"
        doubled, texts = doubled + in_batch, texts + int(beginnings(batch).sum())
        targets += int((batch.targets != IGNORED).sum())
        ends += 0 if end is None else int((batch.targets == end).sum())
    if doubled:
        yield Finding(
            "doubled beginnings", True, doubled, texts, where,
            f"texts of the first {steps} steps start with the same special id twice",
            "remove it from the text, since the task adds it",
        )  # fmt: skip
    scores = run.config.model.head.kind == "language" and run.config.model.decoder is not None
    if scores and end is not None and targets and not ends:
        yield Finding(
            "no end", not _one_text(run), targets, targets, "",
            f"targets of the first {steps} steps, of which none is an end of text",
            "the model cannot learn when to stop: give each text a document or a record of its own",
        )  # fmt: skip


def doubled_beginnings(batch: Batch, special: set[int]) -> int:
    """RawText that start with the same special id twice."""
    first, second = batch.tokens[:, :-1], batch.tokens[:, 1:]
    segment = batch.layout.segment
    starts = beginnings(batch)[:, :-1] & (segment[:, :-1] == segment[:, 1:])
    return int((starts & torch.isin(first, torch.tensor(sorted(special), dtype=first.dtype)) & (first == second)).sum())


def beginnings(batch: Batch) -> Bool[Tensor, "B T"]:
    """Which tokens are the first of their text."""
    return (batch.layout.position == 0) & batch.layout.real


def _one_text(run: OpenedRun) -> bool:
    """Whether the run learns from one document, which has no end but its own."""
    return not isinstance(run.store, RecordStore) and run.store.split["by"] == "characters"


def _in_changed_sources(run: OpenedRun) -> Iterator[Finding]:
    """Whether the sources are what was tokenised, if they are still there."""
    data, task = run.config.data, run.config.task
    if data is None or task is None or not data.sources or set(STDIN) & {*data.sources, *data.validation_sources}:
        return
    wrong, where = "", ", ".join(data.sources)
    try:
        with open_dataset(data, task) as dataset:
            dataset.read(lambda line: None)
            if isinstance(dataset, RawRecords | RawText) and dataset.described.sha256 != run.store.sources:
                wrong = "sources have changed since they were tokenised"
    except HeddleError as error:
        wrong, where = f"sources cannot be read any more ({error})", ""
    if wrong:
        yield Finding("changed sources", False, 1, 1, where, wrong, "train a new run to learn from what they are now")
