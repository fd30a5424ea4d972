"""Laws of a step's rows: loss and gradient do not depend on how they are split, ordered, padded or packed."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import torch

from heddle.data.batch import Batch
from heddle.prove.rows import by_token, documents, mask_outside, pack_rows, pad_rows, select_targets
from heddle.prove.training import CEILING, LEAST, TrainingSubject, gradients, largest_gradient, same_step
from heddle.prove.verdict import ALLOWED, Comparison, NotApplicable, Trace

CUTS = (2, 4, 8)
SIDES: tuple[Literal["right", "left"], ...] = ("right", "left")


def cut_of_a_batch(training: TrainingSubject) -> Iterator[Comparison | str]:
    """A step's loss and gradient do not depend on the split into micro-batches or among ranks.

    The loss is one sum over the batch divided by one count, including router losses, which are sums over documents; expert loads
    add up.
    """
    rows = len(training.examples.places)
    if rows < 2:
        raise NotApplicable("a step has a single row")
    make_batch, objective = training.make_batch, training.objective
    expected = training.gradient
    cuts = [cut for cut in CUTS if cut <= rows]
    for cut in cuts:
        yield same_step(f"{cut} micro-batches", gradients(objective, [training.batch], cut), expected)
        ranks = [make_batch(training.examples.part(rank, cut)) for rank in range(cut)]
        yield same_step(f"{cut} ranks", gradients(objective, ranks), expected)
        if cut == 2 < rows:
            yield same_step("2 ranks of 2 micro-batches", gradients(objective, ranks, 2), expected)
    uneven = _uneven_targets(training.batch, training.generator)
    if uneven.weights.any():
        expected = gradients(objective, [uneven])
        yield same_step(f"{rows} micro-batches, uneven targets", gradients(objective, [uneven], rows), expected)
        yield same_step(f"{rows} ranks, uneven targets", gradients(objective, uneven.split(rows)), expected)
    if training.bitwise:
        yield _in_single_precision(training, training.gradient)
    terms = "" if training.bitwise else ", routers' terms and loads included"
    yield f"{training.describe_batch()}, cut into {', '.join(map(str, cuts))}{terms}"


def _uneven_targets(batch: Batch, generator: torch.Generator) -> Batch:
    """The batch with fewer targets in its first rows: with equal rows, averaging per row would go unnoticed."""
    shares = torch.linspace(0.1, 0.9, len(batch.weights)).view(-1, *[1] * (batch.weights.dim() - 1))
    return select_targets(batch, torch.rand(batch.weights.shape, generator=generator) < shares)


def _in_single_precision(training: TrainingSubject, exact: Trace) -> Comparison:
    """The same in fp32, with all gradients concatenated and their measured rounding error."""
    objective = training.objective_in_fp32
    full, pieces = (
        _concatenated_gradients(gradients(objective, [training.batch], cut))
        for cut in (1, len(training.examples.places))
    )
    scale = max(largest_gradient(exact), 1e-30)
    rounding = max(
        float((full["gradients"].double() - _concatenated_gradients(exact)["gradients"]).abs().max()) / scale, LEAST
    )
    return Comparison("fp32, row by row", pieces, full, rounding=min(rounding, CEILING / ALLOWED))


def _concatenated_gradients(trace: Trace) -> Trace:
    return {
        "gradients": torch.cat([gradient.flatten() for name, gradient in trace.items() if name.startswith("gradient")])
    }


def order_of_rows(training: TrainingSubject) -> Iterator[Comparison | str]:
    """A step's loss and gradient do not depend on the order of its rows, nor does the loss of each row."""
    rows = len(training.examples.places)
    if rows < 2:
        raise NotApplicable("a step has a single row")
    order = torch.arange(rows - 1, -1, -1)
    reversed_batch = training.make_batch(training.examples.take(order.numpy()))
    yield same_step("backwards", gradients(training.objective, [reversed_batch]), training.gradient)
    yield Comparison(
        "each row's loss", {"loss": training.losses(reversed_batch)}, {"loss": training.losses(training.batch)[order]}
    )
    yield training.describe_batch()


def padding_of_rows(training: TrainingSubject) -> Iterator[Comparison | str]:
    """Padding on the right or on the left does not change losses and gradients."""
    batch, padding = training.batch, max(3, training.width // 8)
    losses = training.losses(batch)
    for side in SIDES:
        padded = pad_rows(batch, padding, side)
        yield Comparison(f"each row's loss, padded on the {side}", {"loss": training.losses(padded)}, {"loss": losses})
        yield same_step(f"padded on the {side}", gradients(training.objective, [padded]), training.gradient)
    yield f"{training.describe_batch()}, {padding} tokens wider"


def packing_of_rows(training: TrainingSubject) -> Iterator[Comparison | str]:
    """Packed documents have the same losses and gradient as separate rows, and do not change any bit of each other.

    This includes router losses and expert loads.
    """
    batch = training.batch
    if not by_token(batch):
        raise NotApplicable("this task scores rows, which cannot be packed")
    is_packed = batch.layout.documents > 1
    found_documents = documents(batch, 4)
    if batch.source is not None and not is_packed:
        raise NotApplicable("in this task, every row has its own source")
    if len(found_documents) < 2:
        raise NotApplicable("a step has a single document")
    alone = [document.alone for document in found_documents]
    inside = [document.inside for document in found_documents]
    if not is_packed:
        batch, inside = pack_rows(alone)
    expected = [training.losses(text).sum() for text in alone]
    for number, (mask, loss) in enumerate(zip(inside, expected, strict=True)):
        together = training.losses(select_targets(batch, mask)).sum()
        yield Comparison(f"document {number}", {"loss": together}, {"loss": loss})
    shared = mask_outside(batch, torch.stack(inside).any(0))
    yield same_step("rows of their own", gradients(training.objective, [shared]), gradients(training.objective, alone))
    last_document, last_inside = select_targets(batch, inside[-1]), inside[-1]
    other_documents = replace(
        last_document, tokens=torch.where(last_inside, batch.tokens, training.changed_ids(batch.tokens))
    )
    yield Comparison(
        "other documents changed",
        {"loss": training.losses(other_documents).sum()},
        {"loss": training.losses(last_document).sum()},
        training.bitwise,
    )
    yield f"{len(found_documents)} documents, {'as the task packed them' if is_packed else 'packed into one row'}"
