"""The law of started texts: what a text without a prompt starts from was read in training, and predicts how texts begin (D-24)."""

from collections import Counter
from collections.abc import Iterator
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from heddle.config.decoding import SamplingConfig
from heddle.config.tasks import TaskSettings
from heddle.data.batch import Batch
from heddle.data.corpus import Part
from heddle.errors import HeddleError, pluralize
from heddle.generate.stream import DecodingRules
from heddle.generate.text import bos_prefix
from heddle.model.head import LanguageHead
from heddle.prove.training import TrainingSubject
from heddle.prove.verdict import Comparison, NotApplicable

READ = 1 << 22  # tokens of the training text that are searched for beginnings


def started_texts(training: TrainingSubject) -> Iterator[Comparison | str]:
    """A text without a prompt, and one with, start from ids with which training's rows predict; no other start is accepted.

    Of an encoder-decoder, every row begins as its decoder does. Of a decoder alone, each document's first id is a target at what a
    text starts from; a model that never learned that refuses an empty prompt. Prompts stand where the rows begin.
    """
    task, model = training.task, training.model
    if model.decoder is None or not isinstance(model.head, LanguageHead):
        raise NotApplicable("this model writes no text")
    tokenizer, config = task.spec.tokenizer, model.config
    end = None if tokenizer is None or config.ids is not None else tokenizer.end_of_text
    decoding = DecodingRules(model, SamplingConfig(), end)
    if model.encoder is not None:
        yield from _answers(training, decoding.new_sequence(0, [], source=[0]).ids)
        return
    if isinstance(task.config, TaskSettings):
        meant = task.config.prompts(task.spec.layout, tuple(config.stacks()))
        yield _none(f"prompts = {config.prompts!r}, but training's rows need {meant!r}", int(config.prompts != meant))
    try:
        opened = decoding.new_sequence(0, [] if tokenizer is None else bos_prefix(model, tokenizer, "")).ids
    except HeddleError as error:
        if decoding.begin is not None and config.prompts != "needed":
            raise
        yield f"a prompt is needed: {error}"
        return
    yield _none("empty prompts that are accepted", int(config.prompts == "needed"))
    if config.prompts == "beginning" and tokenizer is not None:
        asked = decoding.new_sequence(0, [*bos_prefix(model, tokenizer, "x"), *tokenizer.encode("x")]).ids
        same = torch.tensor(asked[: len(opened)])
        yield Comparison("a prompt starts as a text does", {"ids": same}, {"ids": torch.tensor(opened)}, exactly=True)
    yield from _beginnings(training, opened)


def _beginnings(training: TrainingSubject, opened: list[int]) -> Iterator[Comparison | str]:
    """The first ids of documents are targets where a text starts."""
    task, part = training.task, training.task.spec.part(held_out=False)
    found, seen, read, whole = Counter[int](), set[int](), 0, True
    for examples in islice(task.epoch(0), 1 << 20):
        if read > READ:
            whole = False
            break
        batch = task.batch(examples)
        read += batch.tokens.numel()
        seen |= set(task.places(examples).ravel().tolist())
        found.update(batch.targets[_starts(batch, opened, task.spec.layout != "concatenate")].tolist())
    wanted = _first_ids(part)
    missing = (wanted - found).total()
    if task.partial_targets or not whole:  # which beginnings are targets is drawn, or not all was read
        yield _none("texts begin, but none of their first ids is a target", int(missing == wanted.total()))
    else:
        left = task.size(held_out=False) if task.spec.layout == "concatenate" else None
        most = 0 if left is None else max(0, left - len(seen))
        yield _none(f"more than {most} documents whose first id is no target", max(0, missing - most))
    yield f"{found.total():,} beginnings of {pluralize(wanted.total(), 'document')} are targets in an epoch"


def _starts(batch: Batch, opened: list[int], at_start: bool) -> Tensor:
    """Bool[B T], the targets after these ids, which stand at the start of a segment if `at_start`."""
    tokens, there = batch.tokens, batch.weights > 0
    for back, id in enumerate(reversed(opened)):
        there = there & (tokens.roll(back, 1) == id) & (batch.layout.position >= back)
    return there & (batch.layout.position == len(opened) - 1) if at_start else there


def _first_ids(part: Part) -> Counter[int]:
    """How often each id begins a document of the part."""
    starts, empty = part.starts[:-1], np.diff(part.starts) <= (part.separator is not None)
    empty[-1] = part.starts[-1] == part.starts[-2]
    return Counter(np.asarray(part.tokens)[starts[~empty]].tolist())


def _answers(training: TrainingSubject, opened: list[int]) -> Iterator[Comparison | str]:
    """Every row of an encoder-decoder begins as its decoder does, and predicts from there."""
    rows = training.batch
    first = rows.tokens[:, : len(opened)]
    wanted = torch.tensor(opened).expand_as(first)
    yield Comparison("rows begin as answers do", {"ids": first}, {"ids": wanted}, exactly=True)
    unscored = int((rows.weights[rows.layout.real.any(1), len(opened) - 1] == 0).sum())
    yield _none("rows that do not predict how an answer begins", unscored)
    yield f"{pluralize(len(first), 'row')} of step 1"


def _none(what: str, count: int) -> Comparison:
    return Comparison(
        f"{what}: {count:,}", {"count": torch.tensor([count])}, {"count": torch.tensor([0])}, exactly=True
    )
