"""What homework is graded on: inputs and weights, and what the definition computes of them, right or with mistakes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from heddle.lessons.definition import RIGHT, Steps, Weights, attention, block, loss, model
from heddle.lessons.homework import CONTEXT, DIM, HEADS, HOMEWORK, VOCABULARY

BATCH, LENGTH = 2, 6
SHARP = 1e4  # what queries are multiplied with for large scores


@dataclass(frozen=True)
class Case:
    """One call of a submission.

    Attributes:
        name: what it tries.
        step: which step of grading it belongs to.
        input: Float[B T D] of vectors, or Int[B T] of ids.
        weights: by the homework's names.
        method: what is called: `forward` or `loss`.
        gradients: whether its gradients are compared too.
    """

    name: str
    step: str
    input: Tensor
    weights: Weights
    method: str = "forward"
    gradients: bool = False


def cases(part: str, seed: int = 0) -> tuple[Case, ...]:
    """The cases of a part, drawn from a seed, in the order in which they are reported."""
    generator = torch.Generator().manual_seed(seed)

    def random(batch: int, length: int) -> Tensor:
        if part == "model":
            return torch.randint(VOCABULARY, (batch, length), generator=generator)
        return torch.randn(batch, length, DIM, dtype=torch.float64, generator=generator)

    usual = _weights(part, generator)
    rows = [
        Case("one token", "one token", random(BATCH, 1), usual),
        Case("six tokens", "six tokens", random(BATCH, LENGTH), usual, gradients=True),
        Case(f"{CONTEXT} tokens", "more cases", random(BATCH, CONTEXT), usual),
        Case("a batch of one", "more cases", random(1, LENGTH), usual),
        Case("scores of exactly 0", "more cases", random(BATCH, LENGTH), _without_keys(usual)),
        Case("scores of thousands", "more cases", random(BATCH, LENGTH), _sharp(usual)),
    ]
    if part == "model":
        rows.append(Case("loss", "loss", random(BATCH, LENGTH), usual, "loss"))
    return tuple(rows)


def computed(case: Case, part: str, steps: Steps = RIGHT) -> Tensor | None:
    """What the definition computes of a case; None where a mistake makes it impossible."""
    try:
        if part == "attention":
            return attention(case.input, case.weights, HEADS, steps.attention)
        if part == "block":
            return block(case.input, case.weights, HEADS, steps)
        function = loss if case.method == "loss" else model
        return function(case.input, case.weights, HEADS, steps)
    except (
        IndexError,
        ValueError,
    ):  # positions that start at 1 end after the table; a loss of one row has too many targets
        return None


def computed_gradients(case: Case, part: str) -> dict[str, Tensor]:
    """The gradients of the sum of squares of what the right definition computes."""
    weights = {name: tensor.clone().requires_grad_() for name, tensor in case.weights.items()}
    output = computed(replace(case, weights=weights), part)
    assert output is not None
    return dict(zip(weights, torch.autograd.grad(output.square().sum(), list(weights.values())), strict=True))


def _weights(part: str, generator: torch.Generator) -> dict[str, Tensor]:
    """Large enough that each of them matters, small enough that scores differ by about one."""
    tensors = {}
    for name, shape in HOMEWORK[part].shapes.items():
        tensor = torch.randn(shape, dtype=torch.float64, generator=generator) * (0.3 if len(shape) == 2 else 0.5)
        tensors[name] = tensor + ("norm" in name and name.endswith("weight"))
    return tensors


def _without_keys(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The first head's keys are 0, so all of its scores are."""
    width, changed = DIM // HEADS, dict(weights)
    for name, tensor in weights.items():
        if ".k." in f".{name}":
            changed[name] = tensor.clone()
            changed[name][:width] = 0.0
    return changed


def _sharp(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor * SHARP if ".q." in f".{name}" else tensor for name, tensor in weights.items()}
