"""The subject of the laws of training: a run's data, task and model, and the loss and gradient of a training step.

The laws run in fp64, like `learning`: the code is the same as in fp32, rounding hides nothing, and last bits do not route tokens to
other experts. The tolerance is 8 times the model's fp32 error, and at most 2e-5.
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
from heddle.prove.rows import by_token, truncate
from heddle.prove.verdict import ALLOWED, Comparison, Trace
from heddle.tasks.objective import CrossEntropy
from heddle.tasks.task import ExampleIndices, Task
from heddle.train import step
from heddle.train.optimizer import Optimizer

CEILING = 2e-5  # of the largest number; larger errors are not rounding
SMALLEST = 1e-6  # of the largest gradient; smaller gradients may be pure rounding, such as those of key biases
LEAST = 2.0**-22  # two units in the last place of the largest number in fp32
POWERS = (8, 4, 2, 1)
ROOM = 3e9  # parameters times tokens of the tested batch
SHORTEST = 64  # fewest tokens per row, however large the model


class TrainingSubject:
    """A task and a model trained on it, in fp64 and without dropout.

    Args:
        make: creates the task anew on each call, like every process of a run.
        model: is not changed.
        rounding: the model's relative fp32 rounding error.
        store: the stored texts, if any.
        seed: of random test inputs.
        train: the training settings, which define the objective.
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
        # The matmuls of an expert have one row per routed token, so last bits may depend on other rows.
        blocks = [block for stack in self.config.stacks().values() for block in stack.blocks]
        self.bitwise = not any(isinstance(block.ffn, MoEConfig) for block in blocks)

    @cached_property
    def examples(self) -> ExampleIndices:
        """The first examples of the first step: as many as affordable, a power of two."""
        step_examples = self.task.examples(0)
        available = len(step_examples.places)
        for rows in (power for power in POWERS if power <= available):
            selected = step_examples.take(np.arange(rows))
            batch = self.task.batch(selected)
            shortened = self._affordable_width(batch) < batch.tokens.shape[1] and (
                rows <= 4 or rows * SHORTEST <= 2 * self.max_tokens
            )
            if rows <= 2 or shortened or self._token_count(batch) <= self.max_tokens:
                break
        return selected

    @cached_property
    def max_tokens(self) -> int:
        """The affordable number of tokens per batch."""
        return int(ROOM / sum(prod(parameter.shape) for parameter in self.model.parameters()))

    @cached_property
    def width(self) -> int:
        """Tokens per row to test: fewer than available only if needed, and if every row keeps targets."""
        return self._affordable_width(self.task.batch(self.examples))

    @cached_property
    def batch(self) -> Batch:
        """The batch of these examples."""
        return self.make_batch(self.examples)

    @cached_property
    def gradient(self) -> Trace:
        """The loss and the gradient of this batch, in one piece."""
        return gradients(self.objective, [self.batch])

    def make_batch(self, examples: ExampleIndices) -> Batch:
        """Make a batch, truncated to the tested width."""
        batch = self.task.batch(examples)
        return truncate(batch, self.width) if self.width < batch.tokens.shape[1] else batch

    def _affordable_width(self, batch: Batch) -> int:
        full_width = batch.tokens.shape[1]
        if not by_token(batch) or self._token_count(batch) <= self.max_tokens:
            return full_width
        width = min(full_width, max(SHORTEST, self.max_tokens // len(batch.tokens)))
        has_targets = truncate(batch, width).weights.any(1)
        return width if bool((has_targets | ~batch.weights.any(1)).all()) else full_width

    def describe_batch(self) -> str:
        """Describe the tested part of the batch."""
        rows, total = len(self.examples.places), len(self.task.examples(0).places)
        note = (
            f", their first {self.width:,} tokens"
            if self.width < self.task.batch(self.examples).tokens.shape[1]
            else ""
        )
        return f"{rows} of {pluralize(total, 'row')} of step 1{note}"

    def losses(self, batch: Batch) -> Tensor:
        """The sum of each row's losses, Float[B]."""
        with torch.no_grad():
            return self.objective.by_row(batch)["loss"]

    def changed_ids(self, tokens: Tensor) -> Tensor:
        """Ids that differ from these at every position."""
        return (tokens + 1) % self.config.vocab_size

    def _token_count(self, batch: Batch) -> int:
        return batch.tokens.numel() + (0 if batch.source is None else batch.source.numel())


Law = Callable[[TrainingSubject], Iterator[Comparison | str]]
"""Yields comparisons, and remarks on what was covered."""


class Recorder(Optimizer):
    """An optimizer that records gradients and expert loads, and updates nothing."""

    def __init__(self, model: Transformer) -> None:
        self.masters, self.copies, self.parts = dict(model.named_parameters()), [], None
        self.gradients: Trace = {}
        self.loads: list[Tensor] = []

    def measure(self, *others: Tensor) -> list[Tensor]:
        """Record and clear the gradients."""
        read = super().measure(*others)
        for name, master in self.masters.items():
            self.gradients[name] = torch.zeros_like(master) if master.grad is None else master.grad
            master.grad = None
        return read

    def update(self, factor: float, clip: float) -> None:
        """Nothing is updated."""

    def balance(self, loads: Sequence[Tensor]) -> None:
        """Record expert loads."""
        self.loads = list(loads)


def gradients(objective: CrossEntropy, ranks: Sequence[Batch], accumulate: int = 1) -> Trace:
    """Run a training step on a batch; return its mean loss, all gradients and expert loads.

    Args:
        objective: the training objective.
        ranks: the batch, or its part for each rank; parts run one after another.
        accumulate: micro-batches per part.
    """
    target_count = sum(part.weights.sum() for part in ranks)
    total: Trace = {}
    for part in ranks:
        recorder, reduced = Recorder(objective.model), list[Tensor]()

        def reduce(tensor: Tensor, reduced: list[Tensor] = reduced) -> Tensor:
            """The first reduction is the target count; losses and loads are summed below."""
            reduced.append(tensor)
            return (
                torch.stack((tensor.new_tensor(float(target_count)), tensor.new_tensor(len(ranks))))
                if len(reduced) == 1
                else tensor
            )

        loss, _ = step.train_step(objective, recorder, part, accumulate, 1.0, 0.0, reduce)
        part_trace = {"loss": torch.tensor(loss, dtype=torch.float64)}
        part_trace |= {f"load of router {number}": load for number, load in enumerate(recorder.loads)}
        # Data-parallel wrappers average gradients over ranks.
        part_trace |= {f"gradient of {name}": gradient / len(ranks) for name, gradient in recorder.gradients.items()}
        total = {name: total[name] + gradient for name, gradient in part_trace.items()} if total else part_trace
    return total


def largest_gradient(trace: Trace) -> float:
    """The largest number in any gradient."""
    return max(
        (float(gradient.abs().max()) for name, gradient in trace.items() if name.startswith("gradient")), default=0.0
    )


def same_step(case: str, actual: Trace, expected: Trace) -> Comparison:
    return Comparison(case, actual, expected, min_scale=SMALLEST * max(largest_gradient(expected), 1e-30))
