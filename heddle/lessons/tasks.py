"""Tiny tasks that a small model learns in seconds, each a function of a generator."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

NOT_SCORED = -100  # the target of a place whose prediction does not count

Batch = tuple[Int[Tensor, "B T"], Int[Tensor, "B T"]]


@dataclass(frozen=True)
class Task:
    """Inputs and targets, drawn anew for each step.

    Attributes:
        vocabulary: number V of ids.
        length: tokens T of a row.
        draw: makes inputs and targets for a number of rows; a target of `NOT_SCORED` does not count.
        guess: the loss of an even guess, in nats, or the least that an honest model can reach.
    """

    vocabulary: int
    length: int
    draw: Callable[[int, torch.Generator], Batch]
    guess: float | None = None


def next_tokens(rows: Int[Tensor, "B N"], first_scored: int = 0) -> Batch:
    """Inputs and targets of a decoder: each token's target is the next; those before `first_scored` are not scored."""
    targets = rows[:, 1:].clone()
    targets[:, :first_scored] = NOT_SCORED
    return rows[:, :-1], targets
