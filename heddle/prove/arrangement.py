"""The laws of a step's rows: its loss and gradient are the same however they are cut, ordered, padded or packed."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import torch

from heddle.data.batch import Batch
from heddle.prove.rows import by_token, documents, only, packed, targeted, widened
from heddle.prove.training import CEILING, LEAST, TrainingSubject, gradients, largest_gradient, same_step
from heddle.prove.verdict import ALLOWED, Comparison, NotApplicable, Trace

CUTS = (2, 4, 8)
SIDES: tuple[Literal["right", "left"], ...] = ("right", "left")


def cut_of_a_batch(training: TrainingSubject) -> Iterator[Comparison | str]:
    """A step's loss and gradient do not depend on how its rows are cut into micro-batches or among ranks.

    The loss is one sum over the whole batch divided by one count, routers' terms included, which are sums over documents; and
    their loads add up.
    """
    rows = len(training.examples.places)
    if rows < 2:
        raise NotApplicable("a step reads a single row")
    read, objective = training.read, training.objective
    wanted = training.gradient
    cuts = [cut for cut in CUTS if cut <= rows]
    for cut in cuts:
        yield same_step(f"{cut} micro-batches", gradients(objective, [training.batch], cut), wanted)
        ranks = [read(training.examples.part(rank, cut)) for rank in range(cut)]
        yield same_step(f"{cut} ranks", gradients(objective, ranks), wanted)
        if cut == 2 < rows:
            yield same_step("2 ranks of 2 micro-batches", gradients(objective, ranks, 2), wanted)
    uneven = _uneven(training.batch, training.generator)
    if uneven.weights.any():
        wanted = gradients(objective, [uneven])
        yield same_step(f"{rows} micro-batches, uneven targets", gradients(objective, [uneven], rows), wanted)
        yield same_step(f"{rows} ranks, uneven targets", gradients(objective, uneven.split(rows)), wanted)
    if training.bitwise:
        yield _in_single_precision(training, training.gradient)
    terms = "" if training.bitwise else ", routers' terms and loads included"
    yield f"{training.looked_at()}, cut into {', '.join(map(str, cuts))}{terms}"


def _uneven(batch: Batch, generator: torch.Generator) -> Batch:
    """The batch with fewer targets in its first rows: where all rows have as many, a count of their own would pass for a share."""
    shares = torch.linspace(0.1, 0.9, len(batch.weights)).view(-1, *[1] * (batch.weights.dim() - 1))
    return targeted(batch, torch.rand(batch.weights.shape, generator=generator) < shares)


def _in_single_precision(training: TrainingSubject, exact: Trace) -> Comparison:
    """The same in fp32, all gradients as one, beside their own rounding error."""
    objective = training.objective_in_fp32
    whole, pieces = (_as_one(gradients(objective, [training.batch], cut)) for cut in (1, len(training.examples.places)))
    scale = max(largest_gradient(exact), 1e-30)
    rounding = max(float((whole["gradients"].double() - _as_one(exact)["gradients"]).abs().max()) / scale, LEAST)
    return Comparison("fp32, row by row", pieces, whole, rounding=min(rounding, CEILING / ALLOWED))


def _as_one(trace: Trace) -> Trace:
    return {"gradients": torch.cat([each.flatten() for name, each in trace.items() if name.startswith("gradient")])}


def order_of_rows(training: TrainingSubject) -> Iterator[Comparison | str]:
    """A step's loss and gradient do not depend on the order of its rows, and a row's loss not on its place among them."""
    rows = len(training.examples.places)
    if rows < 2:
        raise NotApplicable("a step reads a single row")
    order = torch.arange(rows - 1, -1, -1)
    turned = training.read(training.examples.take(order.numpy()))
    yield same_step("backwards", gradients(training.objective, [turned]), training.gradient)
    yield Comparison(
        "each row's loss", {"loss": training.losses(turned)}, {"loss": training.losses(training.batch)[order]}
    )
    yield training.looked_at()


def padding_of_rows(training: TrainingSubject) -> Iterator[Comparison | str]:
    """Wider rows, filled up with padding after their end or before their start, have the same losses and gradients."""
    batch, by = training.batch, max(3, training.width // 8)
    losses = training.losses(batch)
    for side in SIDES:
        wider = widened(batch, by, side)
        yield Comparison(f"each row's loss, padded on the {side}", {"loss": training.losses(wider)}, {"loss": losses})
        yield same_step(f"padded on the {side}", gradients(training.objective, [wider]), training.gradient)
    yield f"{training.looked_at()}, {by} tokens wider"


def packing_of_rows(training: TrainingSubject) -> Iterator[Comparison | str]:
    """Documents that share a row have the losses and the gradient of rows of their own; others beside change no bit of them.

    With experts, routers' terms and loads count among these.
    """
    batch = training.batch
    if not by_token(batch):
        raise NotApplicable("this task scores rows, which cannot share one")
    packs = batch.layout.documents > 1
    found = documents(batch, 4)
    if batch.source is not None and not packs:
        raise NotApplicable("this task gives every row a source of its own")
    if len(found) < 2:
        raise NotApplicable("a step reads a single document")
    alone = [each.alone for each in found]
    inside = [each.inside for each in found]
    if not packs:
        batch, inside = packed(alone)
    wanted = [training.losses(text).sum() for text in alone]
    for number, (here, loss) in enumerate(zip(inside, wanted, strict=True)):
        together = training.losses(targeted(batch, here)).sum()
        yield Comparison(f"document {number}", {"loss": together}, {"loss": loss})
    shared = only(batch, torch.stack(inside).any(0))
    yield same_step("rows of their own", gradients(training.objective, [shared]), gradients(training.objective, alone))
    mine, rest = targeted(batch, inside[-1]), inside[-1]
    others = replace(mine, tokens=torch.where(rest, batch.tokens, training.others(batch.tokens)))
    yield Comparison(
        "other documents beside",
        {"loss": training.losses(others).sum()},
        {"loss": training.losses(mine).sum()},
        training.bitwise,
    )
    yield f"{len(found)} documents, {'as the task packs them' if packs else 'packed into one row'}"
