"""Laws of data coverage: deterministic batches, every target and every example exactly once."""

import copy
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heddle.data.batch import Batch
from heddle.data.record_store import Store
from heddle.data.store import TokenStore
from heddle.errors import pluralize
from heddle.prove.arrangement import CUTS
from heddle.prove.rows import content
from heddle.prove.training import TrainingSubject
from heddle.prove.verdict import Comparison, NotApplicable, expect_none
from heddle.tasks.task import Task
from heddle.train.evaluate import evaluate

STEPS = (0, 1, 17)  # steps whose batches are reread
MAX_STEPS = 20_000  # of an epoch
SCORED = 1 << 22  # most targets of a full evaluation
ROWS = 16  # of a held-out batch
STRETCH = 64  # consecutive tokens whose repetition is not a coincidence
SEARCHED_TOKENS = 1 << 23  # of a part, for repeated stretches
# Lossless tokenizers, for which equal ids are equal texts.
LOSSLESS = ("bytes", "characters", "bpe", "unigram")

Places = npt.NDArray[np.int64]


def same_batches(training: TrainingSubject) -> Iterator[Comparison | str]:
    """A step's batch is a function of (seed, step): rereading it, in another process or in parts, gives the same batch."""
    first, second, remarks = training.task, training.make(), []
    for number in STEPS:
        examples = first.examples(number)
        rows = len(examples.places)
        uneven = rows % first.spec.multiple if first.spec.batch_tokens is not None else 0
        yield expect_none(f"rows of step {number + 1} that {first.spec.multiple} do not divide", uneven)
        remarks.append(f"{rows} rows of step {number + 1}")
        expected = content([first.batch(examples)])
        rereads = {"read again": [examples], "in another process": [second.examples(number)]}
        for ranks in (count for count in CUTS if rows % count == 0):
            rereads[f"among {ranks} ranks"] = [first.examples(number).part(rank, ranks) for rank in range(ranks)]
        rereads["row by row"] = [examples.take(np.array([row])) for row in range(rows)]
        for label, parts in rereads.items():
            task = second if label == "in another process" else first
            batches = [task.batch(part) for part in reversed(parts)]
            yield Comparison(f"step {number + 1} {label}", content(batches[::-1]), expected, exact=True)
    yield ", ".join(remarks)


def targets_scored_once(training: TrainingSubject) -> Iterator[Comparison | str]:
    """An evaluation scores every held-out target exactly once, and reports their count (L1-24)."""
    task = training.task
    held_out = task.held_out(ROWS)
    places = [task.places(examples) for examples in held_out.batches]
    visited = _visited(places)
    yield expect_none("targets scored more than once", visited.twice)
    size = task.size(held_out=True)
    if size is not None:
        yield expect_none("targets never scored", size - visited.distinct)
    # A task may leave out texts that are too short to score; its size does not count them.
    missing = max(0.0, 1 - held_out.share - (0.0 if size is None else 1 / size))
    yield Comparison("share", {"share": torch.tensor([missing])}, {"share": torch.zeros(1)}, exact=True)
    limit = None if sum(batch_places.size for batch_places in places) <= SCORED else SCORED
    scored_batches = task.held_out(ROWS, limit)
    counted = 0
    for examples in scored_batches.batches:
        scored = task.batch(examples).weights > 0
        counted += int(scored.sum())
        numbers = task.places(examples)
        if numbers.ndim > 1 and not task.partial_targets:  # one for each target
            case = f"numbered places without a target, and partial_targets is not set, in {task.describe(examples)}"
            yield expect_none(case, int((~scored).sum()))
    reported = evaluate(training.model, _without_objective(task), ROWS, most=limit).tokens
    yield Comparison("targets reported", _count_trace(reported), _count_trace(counted), exact=True)
    part = "" if limit is None else f"; {reported:,} of them read and reported"
    yield f"{_count_text(task, visited.distinct, places)}, each once{part}"


def _without_objective(task: Task) -> Task:
    """The task with a trivial objective, to test what an evaluation counts."""

    def by_row(batch: Batch) -> dict[str, Tensor]:
        return {"loss": batch.weights.flatten(1).sum(1) if batch.weights.dim() > 1 else batch.weights}

    light = copy.copy(task)
    light.objective = lambda model, *terms: SimpleNamespace(by_row=by_row)  # type: ignore[method-assign,assignment]
    light.metrics = lambda means, share: {}  # type: ignore[method-assign]
    return light


def epoch(training: TrainingSubject) -> Iterator[Comparison | str]:
    """Each epoch reads every example once, no target twice, and leaves out less than two windows of a text."""
    task, remark = training.task, ""
    size = task.size(held_out=False)
    for number in (0, 1):
        steps = [*islice(task.epoch(number), MAX_STEPS + 1)]
        if not steps:
            raise NotApplicable("this task has no epochs")
        is_complete = len(steps) <= MAX_STEPS
        places = [task.places(examples) for examples in steps]
        visited = _visited(places)
        yield expect_none(f"read twice in epoch {number + 1}", visited.twice)
        cut = "" if is_complete else f", in its first {MAX_STEPS:,} steps"
        remark = f"{_count_text(task, visited.distinct, places)}, each once an epoch{cut}"
        if size is not None and is_complete:
            unread, allowed = size - visited.distinct, 2 * places[0].shape[1] if places[0].ndim > 1 else 0
            yield expect_none(f"more than {allowed} left out of epoch {number + 1}", max(0, unread - allowed))
            remark += f"; {unread:,} left out, different ones in each epoch" if unread else ""
    yield remark


@dataclass(frozen=True)
class Visited:
    """The number of distinct places, and of places that occur more than once."""

    distinct: int
    twice: int


def _visited(places: list[Places]) -> Visited:
    _, counts = np.unique(np.concatenate([batch_places.ravel() for batch_places in places]), return_counts=True)
    return Visited(len(counts), int((counts > 1).sum()))


def _count_text(task: Task, number: int, places: list[Places]) -> str:
    unit = "token" if task.partial_targets else "target"
    return pluralize(number, unit if places[0].ndim > 1 else "example")


def _count_trace(value: int) -> dict[str, Tensor]:
    return {"count": torch.tensor([value])}


def parts(training: TrainingSubject) -> Iterator[Comparison | str]:
    """The training and validation parts share no document or record, and their lengths sum to that of the text.

    A hash of its content assigns each document, and so all of its copies, to one part. Other overlaps, from repetitive text or the
    user's choice of validation data, are reported.
    """
    store = training.store
    if store is None:
        raise NotApplicable("the run has no stored text")
    remarks = []
    if isinstance(store, TokenStore):
        total_bytes = store.train.bytes + store.validation.bytes
        yield Comparison("bytes of both parts", _count_trace(total_bytes), _count_trace(store.bytes), exact=True)
    if isinstance(store, TokenStore) and (store.separator is None or store.split["by"] == "characters"):
        single = store.split["by"] == "characters"
        remarks.append("one text, cut once" if single else "documents without marks between them")
    else:
        train, validation = (set(_digests(store, part)) for part in ("train", "validation"))
        shared, unit = len(train & validation), "document" if isinstance(store, TokenStore) else "record"
        if _is_lossless(training.task) and store.split["by"] != "sources":
            yield expect_none(f"{unit}s in both parts", shared)
            yield from _held_out_share(store, len(train), len(validation))
            remarks.append(f"{len(train):,} and {len(validation):,} different {unit}s, none in both")
        else:
            note = "; the user chose them" if store.split["by"] == "sources" else ""
            remarks.append(f"{shared:,} of {pluralize(len(validation), unit)} have the ids of one in training{note}")
    share = _repeated_share(store) if isinstance(store, TokenStore) else 0.0
    if share:
        remarks.append(
            f"the text repeats itself: {share:.1%} of validation's stretches of {STRETCH} tokens are in training"
        )
    yield "; ".join(remarks)


def _held_out_share(store: Store, train: int, held_out: int) -> Iterator[Comparison]:
    """Check that the number of distinct held-out records fits the configured share, within five standard deviations.

    At least one record is always held out, with its copies.
    """
    share = store.split["validation"]
    if store.split["by"] != "content" or not share:
        return
    expected, total = share * (train + held_out), train + held_out
    excess = max(0.0, abs(held_out - expected) - 5 * (expected * (1 - share)) ** 0.5 - 1)
    yield expect_none(
        f"records held out are {held_out:,} of {total:,}, not about {expected:.0f}: too many or few by", round(excess)
    )


def _is_lossless(task: Task) -> bool:
    """Whether the tokenizer is lossless, so that equal ids are equal texts."""
    tokenizer = task.spec.tokenizer
    return tokenizer is not None and tokenizer.kind in LOSSLESS and getattr(tokenizer, "unknown", None) is None


def _digests(store: Store, name: str) -> Iterator[bytes]:
    """A digest of the ids of each document, or of all texts of each record."""
    part = getattr(store, name)
    if isinstance(store, TokenStore):
        start = 0
        for end in [*np.flatnonzero(part.tokens == store.separator).tolist(), len(part.tokens)]:
            if end > start:
                yield hashlib.sha256(part.tokens[start:end].tobytes()).digest()
            start = end + 1
        return
    texts = list(part.texts.values())
    for record in range(len(part)):
        ids_by_text = [text[record] for text in texts]
        yield hashlib.sha256(b"".join([*(len(ids).to_bytes(8, "big") + ids.tobytes() for ids in ids_by_text)])).digest()


def _repeated_share(store: TokenStore) -> float:
    """The share of distinct validation stretches that also occur in training."""
    train, validation = (
        np.asarray(part.tokens[:SEARCHED_TOKENS], dtype=np.uint64) for part in (store.train, store.validation)
    )
    if min(len(train), len(validation)) < STRETCH:
        return 0.0
    validation_hashes, train_hashes = np.unique(_hashes(validation)[::STRETCH]), _hashes(train)
    places = np.searchsorted(validation_hashes, train_hashes).clip(max=len(validation_hashes) - 1)
    return len(np.unique(places[validation_hashes[places] == train_hashes])) / len(validation_hashes)


def _hashes(tokens: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Rolling hashes of all stretches, Σ_i token_{t+i} · odd^i in 64 bits, computed by doubling."""
    hashes, factor, length = tokens + np.uint64(1), np.uint64(0x9E3779B97F4A7C15), 1
    while length < STRETCH:
        hashes = hashes[:-length] + hashes[length:] * factor
        factor, length = np.uint64(int(factor) ** 2 & (1 << 64) - 1), 2 * length
    return hashes * np.uint64(0xBF58476D1CE4E5B9)
