"""Training on the imitated GPU: every task and family gives the CPU's losses, gradients, weights and scores."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import heddle
from heddle.config import TransformerConfig
from heddle.data import Batch, next_token_batch
from heddle.prove.subject import awaken
from tests.device.compare import assert_same, distance
from tests.device.generated import generated
from tests.device.imitated import imitated
from tests.device.imitation import Imitation
from tests.device.trainings import outcome, store_of, training
from tests.models import tokens_of
from tests.prove.tasks import RUNS
from tests.thorough import thorough

FAMILIES = list(RUNS)
# Norms, losses, rotations and mixtures add in another order on a device. All learn by SGD: of what is rounding alone, Adam would
# make steps of full size.
ROUNDING = 1e-6  # in fp32


def learned(name: str, precision: str, **settings: Any) -> None:
    """A few steps and a score."""
    store, rounding = store_of(name), ROUNDING
    expected = outcome(training(name, store, "cpu", precision, optimizer="sgd", **settings))
    if precision == "bf16":  # the device may be as far from fp32 as the CPU is, on the other side
        exact = outcome(training(name, store, "cpu", "fp32", optimizer="sgd", **settings))
        rounding = 2 * distance(exact, expected)
    with Imitation():
        assert_same(expected, outcome(training(name, store, "cuda", precision, optimizer="sgd", **settings)), rounding)


@imitated
@pytest.mark.parametrize("name", [*FAMILIES[::2], *thorough(*FAMILIES[1::2])])
def test_every_task_and_family_learns_as_on_the_cpu(name: str) -> None:
    learned(name, "fp32")


@pytest.mark.thorough
@imitated
@pytest.mark.parametrize("name", FAMILIES[1::4])
def test_in_bf16(name: str) -> None:
    learned(name, "bf16", checkpoint_activations=True, accumulate=2, ema=0.9)


GENERATED = [name for name in FAMILIES if "packed" in name or "prefix" in name] + [
    "classes, encoder",
    "translation, both",
]


@imitated
@pytest.mark.parametrize("name", thorough(*GENERATED))
def test_generated_attention_learns_as_on_the_cpu(name: str) -> None:
    """Packed rows, prefixes and padding by FlexAttention where torch can generate it, without a mask of all scores."""
    store = store_of(name)
    expected = outcome(training(name, store, "cpu", optimizer="sgd"))
    with Imitation() as gpu, generated() as kinds:
        assert_same(expected, outcome(training(name, store, "cuda", optimizer="sgd")), ROUNDING)
    biased = "distances" in name  # a learned bias stays with torch's own kernel
    assert bool(kinds) != biased
    assert any(", mask" in inputs for inputs in gpu.attention) == biased


SCORED: dict[str, dict[str, Any]] = {
    "window": {"window": 5},
    "caps": {"cap": 2.0},
    "sinks": {"sinks": True, "kv_heads": 1},
    "caps in a window": {"cap": 2.0, "window": 3},
}


@imitated
@pytest.mark.parametrize("case", SCORED)
def test_scores_of_generated_attention(case: str) -> None:
    """Losses, gradients and weights with capped scores, sinks and windows."""
    block = {"kind": "attention", "heads": 2, "relative": {"kind": "rotary"}, **SCORED[case]}
    config = TransformerConfig.of(
        {"vocab_size": 64, "dim": 16, "context": 24, "decoder": {"depth": 2, "block": {"mixer": block}}}
    )
    batch = next_token_batch(tokens_of(3, 25).numpy() % 64)

    def weights(device: str) -> dict[str, Any]:
        model = awaken(heddle.build(config, seed=1), 1).to(device)
        history = heddle.fit(model, None, [batch], steps=3, optimizer="sgd", learning_rate=0.1, progress=False)
        return {"losses": history.losses, "weights": model.state_dict()}

    expected = weights("cpu")
    with Imitation() as gpu, generated() as kinds:
        assert_same(expected, weights("cuda"), ROUNDING)
    assert kinds
    assert not gpu.attention


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
