"""Training on the imitated GPU: every task and family gives the CPU's losses, gradients, weights and scores."""

from typing import Any

import pytest

from tests.device.compare import assert_same
from tests.device.imitated import imitated
from tests.device.imitation import Imitation
from tests.device.trainings import outcome, store_of, training
from tests.prove.tasks import RUNS

FAMILIES = list(RUNS)
# A mixture sums the gradients of its inputs in another order on a device; Adam would make steps of full size of what is rounding
# alone, so these learn by SGD. All else is the same bit for bit, since the imitated kernels are the CPU's.
ROUNDING = {"fp32": 3e-6, "bf16": 2e-2}


def check(name: str, precision: str, **settings: Any) -> None:
    """Five steps and a score."""
    mixture = "experts" in name
    if mixture:
        settings["optimizer"] = "sgd"
    store = store_of(name)
    expected = outcome(training(name, store, "cpu", precision, **settings))
    with Imitation():
        result = outcome(training(name, store, "cuda", precision, **settings))
        assert_same(expected, result, ROUNDING[precision] if mixture else 0.0)


@imitated
@pytest.mark.parametrize("name", FAMILIES)
def test_every_task_and_family_learns_as_on_the_cpu(name: str) -> None:
    check(name, "fp32")


@imitated
@pytest.mark.parametrize("name", FAMILIES[1::4])
def test_in_bf16(name: str) -> None:
    check(name, "bf16", optimizer="adamw", checkpoint_activations=True, accumulate=2, ema=0.9)
