"""The laws of what training and evaluation read: the same batch every time, every target and every example once."""

import copy
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heddle.data.batch import Batch
from heddle.data.examples import LABEL
from heddle.data.record_store import RecordStore
from heddle.data.store import Part, TokenStore
from heddle.errors import pluralize
from heddle.prove.arrangement import CUTS
from heddle.prove.rows import content
from heddle.prove.training import Training
from heddle.prove.verdict import Comparison, NotApplicable
from heddle.train.evaluate import evaluate
from heddle.train.task import Task

STEPS = (0, 1, 17)  # steps whose batches are read again
MOST_STEPS = 20_000  # of an epoch
SCORED = 1 << 22  # targets up to which an evaluation is made in full
ROWS = 16  # of a held-out batch
STRETCH = 64  # tokens in a row that are no coincidence
LOOKED_AT = 1 << 23  # tokens of a part that are searched for stretches
# Kinds whose ids give their text back, so that equal ids are equal texts.
FAITHFUL = ("bytes", "characters", "bpe", "unigram")

Places = npt.NDArray[np.int64]


def batches(training: Training) -> Iterator[Comparison | str]:
    """A step's batch is a function of (seed, step): read again, by another process or in parts, it is the same."""
    first, second = training.task, training.make()
    counts = []
    for number in STEPS:
        examples = first.examples(number)
        rows = len(examples.places)
        counts.append(pluralize(rows, "row"))
        wanted = content([first.batch(examples)])
        yield Comparison(f"step {number + 1} read again", content([first.batch(examples)]), wanted, exactly=True)
        yield Comparison(
            f"step {number + 1} in another process",
            content([second.batch(second.examples(number))]),
            wanted,
            exactly=True,
        )
        for ranks in (each for each in CUTS if rows % each == 0):
            parts = [first.batch(first.examples(number).part(rank, ranks)) for rank in range(ranks)]
            yield Comparison(f"step {number + 1} among {ranks} ranks", content(parts), wanted, exactly=True)
        order = np.arange(rows)[::-1]
        alone = [first.batch(examples.take(np.array([row]))) for row in order]
        yield Comparison(f"step {number + 1} row by row", content(alone[::-1]), wanted, exactly=True)
    each = f"{counts[0]} each" if len(set(counts)) == 1 else " and ".join(counts)
    yield f"steps {', '.join(str(number + 1) for number in STEPS)}, {each}"


def targets_scored_once(training: Training) -> Iterator[Comparison | str]:
    """An evaluation scores every held-out target once, and reports that many (L1-24)."""
    task = training.task
    held = task.held_out(ROWS)
    places = [task.places(examples) for examples in held.batches]
    seen = _visited(places)
    yield _none("targets scored more than once", seen.twice)
    size = task.size(held_out=True)
    if size is not None:
        yield _none("targets never scored", size - seen.distinct)
    yield Comparison("share", {"share": torch.tensor([held.share])}, {"share": torch.ones(1)}, exactly=True)
    most = None if sum(each.size for each in places) <= SCORED else SCORED
    chosen = task.held_out(ROWS, most)
    counted = 0
    for examples in chosen.batches:
        scored = task.batch(examples).weights > 0
        counted += int(scored.sum())
        numbers = task.places(examples)
        if numbers.ndim > 1 and task.shown() is None:  # one for each target
            yield _none(f"places without a target in {task.describe(examples)}", int((~scored).sum()))
    reported = evaluate(training.model, _counting(task), ROWS, most=most).tokens
    yield Comparison("targets reported", _number(reported), _number(counted), exactly=True)
    part = "" if most is None else f"; {reported:,} of them read and reported"
    yield f"{_counted(task, seen.distinct, places)}, each once{part}"


def _counting(task: Task) -> Task:
    """The task with an objective that costs nothing, to hear what an evaluation counts."""

    def by_row(batch: Batch) -> dict[str, Tensor]:
        return {"loss": batch.weights.flatten(1).sum(1) if batch.weights.dim() > 1 else batch.weights}

    light = copy.copy(task)
    light.objective = lambda model, *terms: SimpleNamespace(by_row=by_row)  # type: ignore[method-assign,assignment]
    light.metrics = lambda means, share: {}  # type: ignore[method-assign]
    return light


def epoch(training: Training) -> Iterator[Comparison | str]:
    """Each epoch reads every example once, none of its targets twice, and leaves out fewer than two examples' worth."""
    task, said = training.task, ""
    count = task.epoch()
    if count is None:
        raise NotApplicable("this task has no epochs")
    rows, size = len(task.examples(0).places), task.size(held_out=False)
    number = min(count, MOST_STEPS * rows)
    left = 0
    for which in (0, 1):
        places = list(_stream(task, which * count, number, rows))
        seen = _visited(places)
        yield _none(f"read twice in epoch {which + 1}", seen.twice)
        if size is not None and number == count:
            left = size - seen.distinct
            most = 2 * (places[0][0].size if places[0].ndim > 1 else 1)
            yield _none(f"more than {most} left out of epoch {which + 1}", max(0, left - most))
        of = "" if number == count else f" of {count:,}"
        said = f"{pluralize(number, 'example')}{of}: {_counted(task, seen.distinct, places)}, each once"
    yield said + (f"; {left:,} are left out of an epoch, others of each" if left else "")


def _stream(task: Task, first: int, number: int, rows: int) -> Iterator[Places]:
    """The places of `number` consecutive examples, from the first on, step by step."""
    for step in range(first // rows, -(-(first + number) // rows)):
        there = np.arange(step * rows, (step + 1) * rows)
        mine = np.flatnonzero((there >= first) & (there < first + number))
        yield task.places(task.examples(step).take(mine))


@dataclass(frozen=True)
class Visited:
    """How many distinct places there are among some, and how many come more than once."""

    distinct: int
    twice: int


def _visited(places: list[Places]) -> Visited:
    _, counts = np.unique(np.concatenate([each.ravel() for each in places]), return_counts=True)
    return Visited(len(counts), int((counts > 1).sum()))


def _counted(task: Task, number: int, places: list[Places]) -> str:
    each = "target" if task.shown() is None else "token"
    return pluralize(number, each if places[0].ndim > 1 else "example")


def _number(value: int) -> dict[str, Tensor]:
    return {"count": torch.tensor([value])}


def _none(what: str, found: int) -> Comparison:
    return Comparison(f"{what}: {found:,}", _number(found), _number(0), exactly=True)


def parts(training: Training) -> Iterator[Comparison | str]:
    """The training and the validation part share no document, and are together as long as the text.

    Each document goes to one part by a hash of its content, and so do its copies. Stretches that both parts contain for another
    reason, since the text repeats itself, are reported.
    """
    store = training.store
    if store is None:
        raise NotApplicable("there is no text on the disk")
    if isinstance(store, RecordStore):
        yield from _records(store, _faithful(training.task))
        return
    yield Comparison(
        "bytes of both parts", _number(store.train.bytes + store.validation.bytes), _number(store.bytes), exactly=True
    )
    remarks = []
    if store.separator is not None and store.split["by"] != "characters":
        mine, theirs = (set(_digests(part, store)) for part in (store.train, store.validation))
        shared = len(mine & theirs)
        if _faithful(training.task):
            yield _none("documents in both parts", shared)
            remarks.append(f"{len(mine):,} and {len(theirs):,} different documents, none in both")
        else:
            remarks.append(f"{shared:,} of {pluralize(len(theirs), 'document')} have the ids of one in training")
    else:
        remarks.append(
            "one text, cut once" if store.split["by"] == "characters" else "documents without marks between them"
        )
    share = _stretches(store)
    if share:
        remarks.append(
            f"the text repeats itself: {share:.1%} of validation's stretches of {STRETCH} tokens are in training"
        )
    yield "; ".join(remarks)


def _records(store: RecordStore, faithful: bool) -> Iterator[Comparison | str]:
    """The same for records: none of the validation part has the texts of one in training."""
    mine, theirs = (
        {hashlib.sha256(b"".join(column[i].tobytes() + b"|" for column in columns)).digest() for i in range(len(part))}
        for part in (store.train, store.validation)
        for columns in [[column for name, column in sorted(part.columns.items()) if name != LABEL]]
    )
    shared = len(mine & theirs)
    if faithful and store.split["by"] == "content":
        yield _none("records in both parts", shared)
    yield f"{len(mine):,} and {len(theirs):,} different records, {shared:,} in both"


def _faithful(task: Task) -> bool:
    """Whether equal ids are equal texts: a tokenizer that gives every text back."""
    tokenizer = task.reading.tokenizer
    return tokenizer is not None and tokenizer.kind in FAITHFUL and getattr(tokenizer, "unknown", None) is None


def _digests(part: Part, store: TokenStore) -> Iterator[bytes]:
    """The ids of each document, as bytes."""
    start = 0
    for end in [*np.flatnonzero(part.tokens == store.separator).tolist(), len(part.tokens)]:
        if end > start:
            yield hashlib.sha256(part.tokens[start:end].tobytes()).digest()
        start = end + 1


def _stretches(store: TokenStore) -> float:
    """The share of validation's different stretches, one after another, that are somewhere in training."""
    mine, theirs = (np.asarray(part.tokens[:LOOKED_AT], dtype=np.uint64) for part in (store.train, store.validation))
    if min(len(mine), len(theirs)) < STRETCH:
        return 0.0
    wanted, sought = np.unique(_hashes(theirs)[::STRETCH]), _hashes(mine)
    at = np.searchsorted(wanted, sought).clip(max=len(wanted) - 1)
    return len(np.unique(at[wanted[at] == sought])) / len(wanted)


def _hashes(tokens: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """A hash of the stretch that starts at each token: Σ_i token_{t+i} · odd^i in 64 bits, doubled from stretches half as long."""
    found, factor, length = tokens + np.uint64(1), np.uint64(0x9E3779B97F4A7C15), 1
    while length < STRETCH:
        found = found[:-length] + found[length:] * factor
        factor, length = np.uint64(int(factor) ** 2 & (1 << 64) - 1), 2 * length
    return found * np.uint64(0xBF58476D1CE4E5B9)
