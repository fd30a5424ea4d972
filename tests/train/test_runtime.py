"""The process of a run: what a step draws depends on the seed and the step, and on nothing else."""

import pytest
import torch

from heddle.nn import Dropout
from heddle.train.runtime import seed_step


def mask(seed: int, step: int) -> tuple[float, ...]:
    """What dropout leaves of 64 ones at a step."""
    seed_step(seed, step)
    return tuple(Dropout(0.5).train()(torch.ones(64)).tolist())


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
def test_every_step_draws_other_numbers(seed: int) -> None:
    """Two of a hundred masks of 64 places that agree by chance have odds of about 1 to 10^15."""
    assert len({mask(seed, step) for step in range(100)}) == 100


def test_every_seed_draws_other_numbers() -> None:
    assert len({mask(seed, step) for seed in range(10) for step in range(10)}) == 100


def test_a_step_draws_the_same_whatever_was_drawn_before() -> None:
    first = mask(3, 7)
    torch.rand(1000)
    assert mask(3, 7) == first
