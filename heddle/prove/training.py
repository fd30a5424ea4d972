"""The laws of training, on a run's own data, task and model: a step's loss and gradient, however its rows are arranged.

They compute in fp64, like `learning`: the code is that of fp32, rounding hides nothing there and is blamed for nothing, and no
token is sent to another expert for a last bit. What is allowed is 8 times the model's own error in fp32, and at most 2e-5.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from math import prod

import numpy as np
import torch
from torch import Tensor

from heddle.config.layers import MoEConfig
from heddle.config.train import TrainConfig
from heddle.data.batch import Batch
from heddle.data.record_store import Store
from heddle.errors import pluralize
from heddle.model.transformer import Transformer
from heddle.prove.rows import by_token, narrowed
from heddle.prove.verdict import ALLOWED, Comparison, Trace
from heddle.tasks.objective import CrossEntropy
from heddle.tasks.task import ExampleIndices, Task
from heddle.train import step
from heddle.train.optimizer import Optimizer

CEILING = 2e-5  # of the largest number: more than this is no rounding
SMALLEST = 1e-6  # of the largest gradient: a parameter whose own is smaller may be all rounding, as a bias of keys is
LEAST = 2.0**-22  # two units in the last place of the largest number in fp32
POWERS = (8, 4, 2, 1)
ROOM = 3e9  # parameters times tokens: how much of a batch is looked at
SHORTEST = 64  # tokens of a row that are looked at, however large the model


class TrainingSubject:
    """A task and a model that was trained on it, in fp64 and without dropout.

    Args:
        make: makes the task, anew with each call, as every process of a run does.
        model: the model; it stays as it is.
        rounding: the model's own relative rounding error in fp32.
        store: the texts, where they are on the disk.
        seed: of what is drawn to try it.
        train: the settings of the training, which say what it minimises.
    """

    def __init__(
        self,
        make: Callable[[], Task],
        model: Transformer,
        rounding: float,
        store: Store | None = None,
        seed: int = 0,
        train: TrainConfig | None = None,
    ) -> None:
        self.make, self.task, self.store = make, make(), store
        self.config = model.config
        single = copy.deepcopy(model).float().eval()
        self.model = copy.deepcopy(model).double().eval()
        train = train or TrainConfig()
        self.objective = self.task.minimised(self.model, train)
        self.objective_in_fp32 = self.task.minimised(single, train)
        self.generator = torch.Generator().manual_seed(seed)
        self.bounds = {"output": min(rounding, CEILING / ALLOWED)}
        self.scales: dict[str, float] = {}
        # An expert's product has as many rows as tokens chose it, so their last bits may depend on the neighbours.
        blocks = [block for stack in self.config.stacks().values() for block in stack.blocks]
        self.bitwise = not any(isinstance(block.ffn, MoEConfig) for block in blocks)

    @cached_property
    def examples(self) -> ExampleIndices:
        """The first examples of the first step: a power of two of them, as many as are affordable."""
        found = self.task.examples(0)
        there = len(found.places)
        for rows in (each for each in POWERS if each <= there):
            chosen = found.take(np.arange(rows))
            batch = self.task.batch(chosen)
            shortened = self._width(batch) < batch.tokens.shape[1] and (rows <= 4 or rows * SHORTEST <= 2 * self.most)
            if rows <= 2 or shortened or self._tokens(batch) <= self.most:
                break
        return chosen

    @cached_property
    def most(self) -> int:
        """How many tokens of a batch are affordable."""
        return int(ROOM / sum(prod(each.shape) for each in self.model.parameters()))

    @cached_property
    def width(self) -> int:
        """Tokens of each row that are looked at; fewer than there are only where that is affordable and leaves targets."""
        return self._width(self.task.batch(self.examples))

    @cached_property
    def batch(self) -> Batch:
        """What these examples hold."""
        return self.read(self.examples)

    @cached_property
    def gradient(self) -> Trace:
        """The loss and the gradient of this batch, in one piece."""
        return gradients(self.objective, [self.batch])

    def read(self, examples: ExampleIndices) -> Batch:
        """A batch, as far as it is looked at."""
        batch = self.task.batch(examples)
        return narrowed(batch, self.width) if self.width < batch.tokens.shape[1] else batch

    def _width(self, batch: Batch) -> int:
        there = batch.tokens.shape[1]
        if not by_token(batch) or self._tokens(batch) <= self.most:
            return there
        width = min(there, max(SHORTEST, self.most // len(batch.tokens)))
        kept = narrowed(batch, width).weights.any(1)
        return width if bool((kept | ~batch.weights.any(1)).all()) else there

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

    def _tokens(self, batch: Batch) -> int:
        return batch.tokens.numel() + (0 if batch.source is None else batch.source.numel())


Law = Callable[[TrainingSubject], Iterator[Comparison | str]]
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


def same_step(what: str, found: Trace, wanted: Trace) -> Comparison:
    return Comparison(what, found, wanted, least=SMALLEST * max(largest_gradient(wanted), 1e-30))
