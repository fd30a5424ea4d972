"""The laws of what training and evaluation read: the same batch every time, every target and every example once."""

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
from heddle.prove.verdict import Comparison, NotApplicable
from heddle.tasks.task import Task
from heddle.train.evaluate import evaluate

STEPS = (0, 1, 17)  # steps whose batches are read again
MOST_STEPS = 20_000  # of an epoch
SCORED = 1 << 22  # targets up to which an evaluation is made in full
ROWS = 16  # of a held-out batch
STRETCH = 64  # tokens in a row that are no coincidence
LOOKED_AT = 1 << 23  # tokens of a part that are searched for stretches
# Kinds whose ids give their text back, so that equal ids are equal texts.
FAITHFUL = ("bytes", "characters", "bpe", "unigram")

Places = npt.NDArray[np.int64]


def same_batches(training: TrainingSubject) -> Iterator[Comparison | str]:
    """A step's batch is a function of (seed, step): read again, by another process or in parts, it is the same."""
    first, second, read = training.task, training.make(), []
    for number in STEPS:
        examples = first.examples(number)
        rows = len(examples.places)
        uneven = rows % first.spec.multiple if first.spec.batch_tokens is not None else 0
        yield _none(f"rows of step {number + 1} that {first.spec.multiple} do not divide", uneven)
        read.append(f"{rows} rows of step {number + 1}")
        wanted = content([first.batch(examples)])
        found = {"read again": [examples], "in another process": [second.examples(number)]}
        for ranks in (each for each in CUTS if rows % each == 0):
            found[f"among {ranks} ranks"] = [first.examples(number).part(rank, ranks) for rank in range(ranks)]
        found["row by row"] = [examples.take(np.array([row])) for row in range(rows)]
        for how, each in found.items():
            task = second if how == "in another process" else first
            batches = [task.batch(part) for part in reversed(each)]
            yield Comparison(f"step {number + 1} {how}", content(batches[::-1]), wanted, exactly=True)
    yield ", ".join(read)


def targets_scored_once(training: TrainingSubject) -> Iterator[Comparison | str]:
    """An evaluation scores every held-out target once, and reports that many (L1-24)."""
    task = training.task
    held = task.held_out(ROWS)
    places = [task.places(examples) for examples in held.batches]
    seen = _visited(places)
    yield _none("targets scored more than once", seen.twice)
    size = task.size(held_out=True)
    if size is not None:
        yield _none("targets never scored", size - seen.distinct)
    # A task may leave out what is too short to score, which its size then does not count.
    missing = max(0.0, 1 - held.share - (0.0 if size is None else 1 / size))
    yield Comparison("share", {"share": torch.tensor([missing])}, {"share": torch.zeros(1)}, exactly=True)
    most = None if sum(each.size for each in places) <= SCORED else SCORED
    chosen = task.held_out(ROWS, most)
    counted = 0
    for examples in chosen.batches:
        scored = task.batch(examples).weights > 0
        counted += int(scored.sum())
        numbers = task.places(examples)
        if numbers.ndim > 1 and not task.partial_targets:  # one for each target
            what = f"numbered places without a target, and partial_targets is not set, in {task.describe(examples)}"
            yield _none(what, int((~scored).sum()))
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


def epoch(training: TrainingSubject) -> Iterator[Comparison | str]:
    """Each epoch reads every example once, none of its targets twice, and leaves out less than two windows of a text."""
    task, said = training.task, ""
    size = task.size(held_out=False)
    for number in (0, 1):
        steps = [*islice(task.epoch(number), MOST_STEPS + 1)]
        if not steps:
            raise NotApplicable("this task has no epochs")
        whole = len(steps) <= MOST_STEPS
        places = [task.places(examples) for examples in steps]
        seen = _visited(places)
        yield _none(f"read twice in epoch {number + 1}", seen.twice)
        cut = "" if whole else f", in its first {MOST_STEPS:,} steps"
        said = f"{_counted(task, seen.distinct, places)}, each once an epoch{cut}"
        if size is not None and whole:
            left, most = size - seen.distinct, 2 * places[0].shape[1] if places[0].ndim > 1 else 0
            yield _none(f"more than {most} left out of epoch {number + 1}", max(0, left - most))
            said += f"; {left:,} left out, different ones in each epoch" if left else ""
    yield said


@dataclass(frozen=True)
class Visited:
    """How many distinct places there are among some, and how many come more than once."""

    distinct: int
    twice: int


def _visited(places: list[Places]) -> Visited:
    _, counts = np.unique(np.concatenate([each.ravel() for each in places]), return_counts=True)
    return Visited(len(counts), int((counts > 1).sum()))


def _counted(task: Task, number: int, places: list[Places]) -> str:
    each = "token" if task.partial_targets else "target"
    return pluralize(number, each if places[0].ndim > 1 else "example")


def _number(value: int) -> dict[str, Tensor]:
    return {"count": torch.tensor([value])}


def _none(what: str, found: int) -> Comparison:
    return Comparison(f"{what}: {found:,}", _number(found), _number(0), exactly=True)


def parts(training: TrainingSubject) -> Iterator[Comparison | str]:
    """The training and the validation part share no document or record; the parts of a text are together as long as it.

    Each document goes to one part by a hash of its content, and so do its copies. What both parts contain for another reason, since
    a text repeats itself or the user chose what to evaluate on, is reported.
    """
    store = training.store
    if store is None:
        raise NotApplicable("there is no text on the disk")
    remarks = []
    if isinstance(store, TokenStore):
        together = store.train.bytes + store.validation.bytes
        yield Comparison("bytes of both parts", _number(together), _number(store.bytes), exactly=True)
    if isinstance(store, TokenStore) and (store.separator is None or store.split["by"] == "characters"):
        single = store.split["by"] == "characters"
        remarks.append("one text, cut once" if single else "documents without marks between them")
    else:
        mine, theirs = (set(_digests(store, part)) for part in ("train", "validation"))
        shared, thing = len(mine & theirs), "document" if isinstance(store, TokenStore) else "record"
        if _faithful(training.task) and store.split["by"] != "sources":
            yield _none(f"{thing}s in both parts", shared)
            yield from _drawn_share(store, len(mine), len(theirs))
            remarks.append(f"{len(mine):,} and {len(theirs):,} different {thing}s, none in both")
        else:
            chosen = "; the user chose them" if store.split["by"] == "sources" else ""
            remarks.append(f"{shared:,} of {pluralize(len(theirs), thing)} have the ids of one in training{chosen}")
    share = _stretches(store) if isinstance(store, TokenStore) else 0.0
    if share:
        remarks.append(
            f"the text repeats itself: {share:.1%} of validation's stretches of {STRETCH} tokens are in training"
        )
    yield "; ".join(remarks)


def _drawn_share(store: Store, train: int, held: int) -> Iterator[Comparison]:
    """That as many different records are held out as their contents' hashes would: the share asked for, within five standard
    deviations. If none would be, one is, with its copies."""
    share = store.split["validation"]
    if store.split["by"] != "content" or not share:
        return
    expected, there = share * (train + held), train + held
    far = max(0.0, abs(held - expected) - 5 * (expected * (1 - share)) ** 0.5 - 1)
    yield _none(f"records held out are {held:,} of {there:,}, not about {expected:.0f}: too many or few by", round(far))


def _faithful(task: Task) -> bool:
    """Whether equal ids are equal texts: a tokenizer that gives every text back."""
    tokenizer = task.spec.tokenizer
    return tokenizer is not None and tokenizer.kind in FAITHFUL and getattr(tokenizer, "unknown", None) is None


def _digests(store: Store, name: str) -> Iterator[bytes]:
    """A hash of the ids of each document, or of all texts of each record."""
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
        found = [text[record] for text in texts]
        yield hashlib.sha256(b"".join([*(len(ids).to_bytes(8, "big") + ids.tobytes() for ids in found)])).digest()


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
