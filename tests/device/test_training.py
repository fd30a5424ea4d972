"""Training on the imitated GPU: every task and family gives the CPU's losses, gradients, weights and scores."""

from typing import Any

import pytest

from tests.device.compare import assert_same
from tests.device.imitated import imitated
from tests.device.imitation import Imitation
from tests.device.trainings import outcome, store_of, training
from tests.prove.tasks import RUNS

FAMILIES = list(RUNS)
# Norms, losses, rotations and mixtures add in another order on a device. All learn by SGD: of what is rounding alone, Adam would
# make steps of full size. In bf16 the CPU's own losses are up to 0.034 from those in fp32.
ROUNDING = {"fp32": 3e-6, "bf16": 4e-2}


def check(name: str, precision: str, **settings: Any) -> None:
    """Five steps and a score."""
    store = store_of(name)
    expected = outcome(training(name, store, "cpu", precision, optimizer="sgd", **settings))
    with Imitation():
        assert_same(
            expected,
            outcome(training(name, store, "cuda", precision, optimizer="sgd", **settings)),
            ROUNDING[precision],
        )


@imitated
@pytest.mark.parametrize("name", FAMILIES)
def test_every_task_and_family_learns_as_on_the_cpu(name: str) -> None:
    check(name, "fp32")


@imitated
@pytest.mark.parametrize("name", FAMILIES[1::4])
def test_in_bf16(name: str) -> None:
    check(name, "bf16", checkpoint_activations=True, accumulate=2, ema=0.9)
