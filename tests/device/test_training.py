"""Training on the imitated GPU: every task and family gives the CPU's losses, gradients, weights and scores."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import heddle
from heddle.data import Batch, next_token_batch
from tests.device.compare import assert_same, distance
from tests.device.imitated import imitated
from tests.device.imitation import Imitation
from tests.device.trainings import outcome, store_of, training
from tests.models import tokens_of
from tests.prove.tasks import RUNS

FAMILIES = list(RUNS)
# Norms, losses, rotations and mixtures add in another order on a device. All learn by SGD: of what is rounding alone, Adam would
# make steps of full size.
ROUNDING = 3e-6  # in fp32


def five_steps(name: str, precision: str, **settings: Any) -> None:
    """Five steps and a score."""
    store, rounding = store_of(name), ROUNDING
    expected = outcome(training(name, store, "cpu", precision, optimizer="sgd", **settings))
    if precision == "bf16":  # the device may be as far from fp32 as the CPU is, on the other side
        exact = outcome(training(name, store, "cpu", "fp32", optimizer="sgd", **settings))
        rounding = 2 * distance(exact, expected)
    with Imitation():
        assert_same(expected, outcome(training(name, store, "cuda", precision, optimizer="sgd", **settings)), rounding)


@imitated
@pytest.mark.parametrize("name", FAMILIES)
def test_every_task_and_family_learns_as_on_the_cpu(name: str) -> None:
    five_steps(name, "fp32")


@imitated
@pytest.mark.parametrize("name", FAMILIES[1::4])
def test_in_bf16(name: str) -> None:
    five_steps(name, "bf16", checkpoint_activations=True, accumulate=2, ema=0.9)


@imitated
def test_a_users_iterator_is_read_in_the_thread_that_trains_and_no_further() -> None:
    """What is read only once is not read ahead."""
    readers = list[str]()

    def batches() -> Iterator[Batch]:
        while True:
            readers.append(threading.current_thread().name)
            yield next_token_batch(tokens_of(2, 9).numpy())

    with Imitation():
        model = heddle.build(heddle.sized(1, vocab_size=64, context=8, dim=16)).to("cuda")
        heddle.fit(model, None, batches(), steps=3, progress=False)
    assert readers == [threading.current_thread().name] * 3
