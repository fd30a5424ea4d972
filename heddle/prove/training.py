"""The laws of training, on a run's own data, task and model: a step's loss and gradient, however its rows are arranged.

They compute in fp64, like `learning`: the code is that of fp32, rounding hides nothing there and is blamed for nothing, and no
token is sent to another expert for a last bit. What is allowed is 8 times the model's own error in fp32, and at most 2e-5.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from heddle.config.layers import MoEConfig
from heddle.data.batch import Batch
from heddle.data.store import TokenStore
from heddle.errors import pluralize
from heddle.model.head import LanguageHead
from heddle.model.transformer import Transformer
from heddle.prove.rows import by_token, documents, narrowed, packed, targeted, widened
from heddle.prove.verdict import ALLOWED, Comparison, NotApplicable, Trace
from heddle.train import step
from heddle.train.objective import CrossEntropy
from heddle.train.optimizer import Optimizer
from heddle.train.task import Examples, Task

CEILING = 2e-5  # of the largest number: more than this is no rounding
SMALLEST = 1e-6  # of the largest gradient: a parameter whose own is smaller may be all rounding, as a bias of keys is
LEAST = 2.0**-22  # two units in the last place of the largest number in fp32
MOST_ROWS = 8
ROOM = 8e9  # parameters times tokens: how much of a batch is looked at
SHORTEST = 64  # tokens of a row, below which it is not cut, however large the model
STEPS = 256  # tokens that are read one by one
CUTS = (2, 4, 8)
SIDES: tuple[Literal["right", "left"], ...] = ("right", "left")


class Training:
    """A task and a model that was trained on it, in fp64 and without dropout.

    Args:
        make: makes the task, anew with each call, as every process of a run does.
        model: the model; it stays as it is.
        rounding: the model's own relative rounding error in fp32.
        store: the texts, where they are on the disk.
        seed: of what is drawn to try it.
    """

    def __init__(
        self,
        make: Callable[[], Task],
        model: Transformer,
        rounding: float,
        store: TokenStore | None = None,
        seed: int = 0,
    ) -> None:
        self.make, self.task, self.store = make, make(), store
        self.config = model.config
        self.single = copy.deepcopy(model).float().eval()
        self.model = copy.deepcopy(model).double().eval()
        self.objective = self.task.objective(self.model)
        self.generator = torch.Generator().manual_seed(seed)
        self.bounds = {"output": min(rounding, CEILING / ALLOWED)}
        self.scales: dict[str, float] = {}
        # An expert's product has as many rows as tokens chose it, so their last bits may depend on the neighbours.
        blocks = [block for stack in self.config.stacks().values() for block in stack.blocks]
        self.bitwise = not any(isinstance(block.ffn, MoEConfig) for block in blocks)

    @cached_property
    def examples(self) -> Examples:
        """The first examples of the first step: a power of two of them, as many as are affordable."""
        found = self.task.examples(0)
        there = len(found.places)
        affordable = max(2, min(MOST_ROWS, there, int(ROOM / self._cost(self.task.batch(found.take(np.arange(1)))))))
        rows = next(rows for rows in (8, 4, 2, 1) if rows <= min(affordable, there))
        return found.take(np.arange(rows))

    @cached_property
    def batch(self) -> Batch:
        """What these examples hold."""
        return self.read(self.examples)

    @cached_property
    def width(self) -> int:
        """Tokens of each row that are looked at; fewer than there are only in large models."""
        whole = self.task.batch(self.examples)
        there = whole.tokens.shape[1]
        if not by_token(whole) or self._cost(whole) <= 2 * ROOM:
            return there
        return min(there, max(SHORTEST, int(there * 2 * ROOM / self._cost(whole))))

    def read(self, examples: Examples) -> Batch:
        """A batch, as far as it is looked at."""
        batch = self.task.batch(examples)
        return narrowed(batch, self.width) if self.width < batch.tokens.shape[1] else batch

    def looked_at(self) -> str:
        """How much of a batch that is, in words."""
        rows, there = len(self.examples.places), len(self.task.examples(0).places)
        cut = (
            f", their first {self.width:,} tokens"
            if self.width < self.task.batch(self.examples).tokens.shape[1]
            else ""
        )
        return f"{rows} of {pluralize(there, 'row')} of step 1{cut}"

    def losses(self, batch: Batch) -> Tensor:
        """The sum of each row's losses, Float[B]."""
        with torch.no_grad():
            return self.objective.by_row(batch)["loss"]

    def others(self, tokens: Tensor) -> Tensor:
        """Ids that differ from these everywhere."""
        return (tokens + 1) % self.config.vocab_size

    def _cost(self, batch: Batch) -> float:
        tokens = batch.tokens.numel() + (0 if batch.source is None else batch.source.numel())
        return float(tokens * sum(prod(each.shape) for each in self.model.parameters()))


Law = Callable[[Training], Iterator[Comparison | str]]
"""What a law compares, and remarks on what was looked at."""


class Recorder(Optimizer):
    """Keeps the gradients of a step and the routers' loads, and updates nothing."""

    def __init__(self, model: Transformer) -> None:
        self.masters, self.copies = dict(model.named_parameters()), []
        self.gradients: Trace = {}
        self.loads: list[Tensor] = []

    def step(self, factor: float, clip: float) -> float:
        """Take the gradients away; return their norm."""
        for name, master in self.masters.items():
            self.gradients[name] = torch.zeros_like(master) if master.grad is None else master.grad
            master.grad = None
        return float(torch.nn.utils.get_total_norm(list(self.gradients.values())))

    def balance(self, loads: Sequence[Tensor]) -> None:
        """Keep the loads."""
        self.loads = list(loads)


def gradients(objective: CrossEntropy, ranks: Sequence[Batch], accumulate: int = 1) -> Trace:
    """What a training step computes of a batch: its mean loss, every gradient, and the loads of the routers.

    Args:
        objective: what is minimised.
        ranks: the batch, or the part of each process; they are computed one after another.
        accumulate: micro-batches of each part.
    """
    counted = sum(part.weights.sum() for part in ranks)
    found: Trace = {}
    for part in ranks:
        recorder, asked = Recorder(objective.model), list[Tensor]()

        def reduce(tensor: Tensor, asked: list[Tensor] = asked) -> Tensor:
            """Other ranks are asked first for their count of targets; their losses and loads are added up below."""
            asked.append(tensor)
            return (
                torch.stack((tensor.new_tensor(float(counted)), tensor.new_tensor(len(ranks))))
                if len(asked) == 1
                else tensor
            )

        loss, _ = step.train_step(objective, recorder, part, accumulate, 1.0, 0.0, reduce)
        mine = {"loss": torch.tensor(loss, dtype=torch.float64)}
        mine |= {f"load of router {number}": load for number, load in enumerate(recorder.loads)}
        # Wrappers leave the mean of the ranks' gradients.
        mine |= {f"gradient of {name}": each / len(ranks) for name, each in recorder.gradients.items()}
        found = {name: found[name] + each for name, each in mine.items()} if found else mine
    return found


def largest_gradient(trace: Trace) -> float:
    """The largest number in any gradient."""
    return max((float(each.abs().max()) for name, each in trace.items() if name.startswith("gradient")), default=0.0)


def _same_step(what: str, found: Trace, wanted: Trace) -> Comparison:
    return Comparison(what, found, wanted, least=SMALLEST * max(largest_gradient(wanted), 1e-30))


def cut_of_a_batch(training: Training) -> Iterator[Comparison | str]:
    """A step's loss and gradient do not depend on how its rows are cut into micro-batches or among ranks.

    The loss is one sum over the whole batch divided by one count, routers' terms included, which are sums over documents; and
    their loads add up.
    """
    rows = len(training.examples.places)
    if rows < 2:
        raise NotApplicable("a step reads a single row")
    read, objective = training.read, training.objective
    wanted = gradients(objective, [training.batch])
    cuts = [cut for cut in CUTS if cut <= rows]
    for cut in cuts:
        yield _same_step(f"{cut} micro-batches", gradients(objective, [training.batch], cut), wanted)
        ranks = [read(training.examples.part(rank, cut)) for rank in range(cut)]
        yield _same_step(f"{cut} ranks", gradients(objective, ranks), wanted)
        if 2 * cut <= rows:
            yield _same_step(f"{cut} ranks of 2 micro-batches", gradients(objective, ranks, 2), wanted)
    if training.bitwise:
        yield _in_single_precision(training, wanted)
    terms = "" if training.bitwise else ", routers' terms and loads included"
    yield f"{training.looked_at()}, cut into {', '.join(map(str, cuts))}{terms}"


def _in_single_precision(training: Training, exact: Trace) -> Comparison:
    """The same in fp32, all gradients as one, beside their own rounding error."""
    objective = training.task.objective(training.single)
    whole, pieces = (_as_one(gradients(objective, [training.batch], cut)) for cut in (1, len(training.examples.places)))
    scale = max(largest_gradient(exact), 1e-30)
    rounding = max(float((whole["gradients"].double() - _as_one(exact)["gradients"]).abs().max()) / scale, LEAST)
    return Comparison("fp32, row by row", pieces, whole, rounding=min(rounding, CEILING / ALLOWED))


def _as_one(trace: Trace) -> Trace:
    return {"gradients": torch.cat([each.flatten() for name, each in trace.items() if name.startswith("gradient")])}


def order_of_rows(training: Training) -> Iterator[Comparison | str]:
    """A step's loss and gradient do not depend on the order of its rows, and a row's loss not on its place among them."""
    rows = len(training.examples.places)
    if rows < 2:
        raise NotApplicable("a step reads a single row")
    order = torch.arange(rows - 1, -1, -1)
    turned = training.read(training.examples.take(order.numpy()))
    wanted = gradients(training.objective, [training.batch])
    yield _same_step("backwards", gradients(training.objective, [turned]), wanted)
    yield Comparison(
        "each row's loss", {"loss": training.losses(turned)}, {"loss": training.losses(training.batch)[order]}
    )
    yield training.looked_at()


def padding_of_rows(training: Training) -> Iterator[Comparison | str]:
    """Wider rows, filled up with padding after their end or before their start, have the same losses and gradients."""
    batch, by = training.batch, max(3, training.width // 8)
    wanted, losses = gradients(training.objective, [batch]), training.losses(batch)
    for side in SIDES:
        wider = widened(batch, by, side)
        yield Comparison(f"each row's loss, padded on the {side}", {"loss": training.losses(wider)}, {"loss": losses})
        yield _same_step(f"padded on the {side}", gradients(training.objective, [wider]), wanted)
    yield f"{training.looked_at()}, {by} tokens wider"


def packing_of_rows(training: Training) -> Iterator[Comparison | str]:
    """Documents that share a row have the losses that each has alone, and another document beside changes no bit of them."""
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
    mine, rest = targeted(batch, inside[-1]), inside[-1]
    others = replace(mine, tokens=torch.where(rest, batch.tokens, training.others(batch.tokens)))
    yield Comparison(
        "other documents beside",
        {"loss": training.losses(others).sum()},
        {"loss": training.losses(mine).sum()},
        training.bitwise,
    )
    yield f"{len(found)} documents, {'as the task packs them' if packs else 'packed into one row'}"


def future_of_targets(training: Training) -> Iterator[Comparison | str]:
    """A target's loss does not depend on its own token or on what comes after it (L0-87, L1-24).

    A decoder reads the target's token one place to the right of where it is predicted; changed there, with all that follows, it
    leaves the target's loss unchanged. Hidden tokens of an encoder are not in its input, except as often as the task means it.
    """
    batch = training.batch
    if training.task.shown() is not None:
        yield from _hidden_ids(training)
        return
    if not by_token(batch):
        raise NotApplicable("the target is not one of the tokens")
    scored = batch.weights > 0
    if not any(training.task.after(batch, _last(scored) * 0).any(1)):
        raise NotApplicable("every target may be read off all tokens")
    if isinstance(training.model.head, LanguageHead):
        follows = (
            scored[:, :-1] & batch.layout.real[:, 1:] & (batch.layout.segment[:, 1:] == batch.layout.segment[:, :-1])
        )
        yield Comparison(
            "the token after is the target",
            {"targets": batch.tokens[:, 1:][follows]}, {"targets": batch.targets[:, :-1][follows]}, exactly=True,
        )  # fmt: skip
    tried = 0
    for place in _some(scored, training.generator):
        here = torch.zeros_like(scored).scatter(1, place[:, None], True)
        mine = targeted(batch, here)
        after = training.task.after(batch, place)
        changed = replace(mine, tokens=torch.where(after, training.others(batch.tokens), batch.tokens))
        tried += len(place)
        yield Comparison(
            "all after a target changed",
            {"loss": training.losses(changed)},
            {"loss": training.losses(mine)},
            training.bitwise,
        )
    yield f"{tried} targets of {training.looked_at()}"


def _last(scored: Tensor) -> Tensor:
    """The last target of each row."""
    return scored.shape[1] - 1 - scored.flip(1).int().argmax(1)


def _some(scored: Tensor, generator: torch.Generator) -> list[Tensor]:
    """The first target of each row, the last one, and two drawn between them."""
    drawn = [(torch.rand(scored.shape, generator=generator) * scored).argmax(1) for _ in range(2)]
    return [scored.int().argmax(1), *drawn, _last(scored)]


def _hidden_ids(training: Training) -> Iterator[Comparison | str]:
    """How often the input has a target's own id at its place, beside how often it is meant to."""
    meant, shown, count = training.task.shown(), 0, 0
    assert meant is not None
    for number in range(32):
        batch = training.task.batch(training.task.examples(number))
        scored = batch.weights > 0
        shown += int((batch.tokens == batch.targets)[scored].sum())
        count += int(scored.sum())
    # Five standard deviations of as many draws.
    far = 5 * (max(meant * (1 - meant), 0.0) / max(count, 1)) ** 0.5
    outside = max(0.0, abs(shown / max(count, 1) - meant) - far)
    yield Comparison(
        "targets whose own id is read", {"share": torch.tensor([outside])}, {"share": torch.zeros(1)}, exactly=True
    )
    yield f"{count - shown:,} of {count:,} targets are hidden; the others are shown on purpose, {meant:.1%} of all are meant to be"


def stepwise_losses(training: Training) -> Iterator[Comparison | str]:
    """The losses of one pass over a text are those of decoding it token by token with a cache (L2-08)."""
    model, batch = training.model, training.batch
    if model.decoder is None or not isinstance(model.head, LanguageHead):
        raise NotApplicable("this model does not write token by token")
    if not by_token(batch):
        raise NotApplicable("this task does not score tokens")
    read = 0
    for number, document in enumerate(documents(batch, 2)):
        text = narrowed(document.alone, STEPS)
        read += text.tokens.shape[1]
        stepped = _nats(model, _stepped(model, text), text)
        yield Comparison(
            f"document {number}", {"losses": stepped}, {"losses": _nats(model, _at_once(model, text), text)}
        )
        yield Comparison(f"document {number}, in all", {"loss": stepped.sum()}, {"loss": training.losses(text).sum()})
    yield f"{read:,} tokens, one by one"


@torch.no_grad()
def _at_once(model: Transformer, text: Batch) -> Tensor:
    source = (text.source, text.source_layout, text.types, text.source_types)
    out: Tensor = model(text.tokens, text.layout, *source).hidden
    return out


@torch.no_grad()
def _stepped(model: Transformer, text: Batch) -> Tensor:
    cache, pieces = model.new_cache(1), []
    for place in range(text.tokens.shape[1]):
        here = slice(place, place + 1)
        given = {"types": None if text.types is None else text.types[:, here]}
        if place == 0 and text.source is not None:
            given |= {"source": text.source, "source_types": text.source_types}
        pieces.append(model(text.tokens[:, here], cache=cache, **given).hidden)
    return torch.cat(pieces, dim=1)


@torch.no_grad()
def _nats(model: Transformer, hidden: Tensor, text: Batch) -> Tensor:
    """Weighted -log p of each target, from all the scores that prediction gives."""
    probable = model.logits(hidden).log_softmax(-1).gather(-1, text.targets.clamp(min=0)[..., None])[..., 0]
    return torch.where(text.weights > 0, -probable * text.weights, 0.0)
