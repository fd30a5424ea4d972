"""The law of started texts: generation without a prompt starts from ids that training also starts texts with (D-24)."""

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
from heddle.prove.verdict import Comparison, NotApplicable, expect_none

READ = 1 << 22  # training tokens searched for text starts


def started_texts(training: TrainingSubject) -> Iterator[Comparison | str]:
    """Generation, with and without a prompt, starts from the ids that training rows start from.

    For an encoder-decoder, every row starts like its decoder. For a decoder, each document's first id is a target after the start
    ids; a model that never learned this refuses an empty prompt. Prompts are placed where rows start.
    """
    task, model = training.task, training.model
    if model.decoder is None or not isinstance(model.head, LanguageHead):
        raise NotApplicable("this model does not generate text")
    tokenizer, config = task.spec.tokenizer, model.config
    end = None if tokenizer is None or config.ids is not None else tokenizer.end_of_text
    decoding = DecodingRules(model, SamplingConfig(), end)
    if model.encoder is not None:
        yield from _answers(training, decoding.new_sequence(0, [], source=[0]).ids)
        return
    if isinstance(task.config, TaskSettings):
        expected_prompts = task.config.prompts(task.spec.layout, tuple(config.stacks()))
        yield expect_none(
            f"prompts = {config.prompts!r}, but training rows need {expected_prompts!r}",
            int(config.prompts != expected_prompts),
        )
    try:
        start_ids = decoding.new_sequence(0, [] if tokenizer is None else bos_prefix(model, tokenizer, "")).ids
    except HeddleError as error:
        if decoding.begin is not None and config.prompts != "needed":
            raise
        yield f"a prompt is needed: {error}"
        return
    yield expect_none("empty prompts that are accepted", int(config.prompts == "needed"))
    if config.prompts == "beginning" and tokenizer is not None:
        prompt_ids = decoding.new_sequence(0, [*bos_prefix(model, tokenizer, "x"), *tokenizer.encode("x")]).ids
        prefix = torch.tensor(prompt_ids[: len(start_ids)])
        yield Comparison(
            "a prompt starts as a text does", {"ids": prefix}, {"ids": torch.tensor(start_ids)}, exact=True
        )
    yield from _beginnings(training, start_ids)


def _beginnings(training: TrainingSubject, start_ids: list[int]) -> Iterator[Comparison | str]:
    """The first ids of documents are targets after the start ids."""
    task, part = training.task, training.task.spec.part(held_out=False)
    target_counts, places_read, read, is_complete = Counter[int](), set[int](), 0, True
    for examples in islice(task.epoch(0), 1 << 20):
        if read > READ:
            is_complete = False
            break
        batch = task.batch(examples)
        read += batch.tokens.numel()
        places_read |= set(task.places(examples).ravel().tolist())
        target_counts.update(batch.targets[_starts(batch, start_ids, task.spec.layout != "concatenate")].tolist())
    first_id_counts = _first_ids(part)
    missing = (first_id_counts - target_counts).total()
    if task.partial_targets or not is_complete:  # targets are sampled, or not all documents were read
        yield expect_none("no first id of a text is a target", int(missing == first_id_counts.total()))
    else:
        size = task.size(held_out=False) if task.spec.layout == "concatenate" else None
        allowed = 0 if size is None else max(0, size - len(places_read))
        yield expect_none(f"more than {allowed} documents whose first id is not a target", max(0, missing - allowed))
    beginnings, of = pluralize(target_counts.total(), "beginning"), pluralize(first_id_counts.total(), "document")
    yield f"{beginnings} of {of} are targets in an epoch"


def _starts(batch: Batch, start_ids: list[int], at_start: bool) -> Tensor:
    """Bool[B T], the targets after these ids, only at the start of a segment if `at_start`."""
    tokens, is_start = batch.tokens, batch.weights > 0
    for offset, id in enumerate(reversed(start_ids)):
        is_start = is_start & (tokens.roll(offset, 1) == id) & (batch.layout.position >= offset)
    return is_start & (batch.layout.position == len(start_ids) - 1) if at_start else is_start


def _first_ids(part: Part) -> Counter[int]:
    """Counts of the first ids of the part's documents."""
    starts, empty = part.starts[:-1], np.diff(part.starts) <= (part.separator is not None)
    empty[-1] = part.starts[-1] == part.starts[-2]
    return Counter(np.asarray(part.tokens)[starts[~empty]].tolist())


def _answers(training: TrainingSubject, start_ids: list[int]) -> Iterator[Comparison | str]:
    """Check that every row of an encoder-decoder starts like its decoder, and predicts from there."""
    rows = training.batch
    first = rows.tokens[:, : len(start_ids)]
    expected = torch.tensor(start_ids).expand_as(first)
    yield Comparison("rows begin as answers do", {"ids": first}, {"ids": expected}, exact=True)
    unscored = int((rows.weights[rows.layout.real.any(1), len(start_ids) - 1] == 0).sum())
    yield expect_none("rows that do not predict how an answer begins", unscored)
    yield f"{pluralize(len(first), 'row')} of step 1"
