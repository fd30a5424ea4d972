"""The process of a run: what a step draws depends on the seed and the step alone; memory is flat."""

import sys

import pytest
import torch

from heddle.nn import Dropout
from heddle.train import runtime
from heddle.train.runtime import Heap, give_back, keep_memory, resident, seed_step


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


@pytest.fixture
def given_back(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """A machine whose memory and clock the test sets, and how often memory was given back."""
    there = {"held": 1000.0, "now": 0.0, "count": 0.0}

    def trim() -> bool:
        there["count"] += 1
        return True

    monkeypatch.setattr(runtime, "resident", lambda: int(there["held"]) << 20)
    monkeypatch.setattr(runtime, "give_back", trim)
    monkeypatch.setattr(runtime.time, "monotonic", lambda: there["now"])  # type: ignore[attr-defined]
    return there


def test_memory_is_given_back_where_it_grows(given_back: dict[str, float]) -> None:
    heap = Heap()
    assert given_back["count"] == 1, "what was there before"
    assert all(heap.step() for _ in range(Heap.SETTLED)), "each of the first steps shows what it needs alone"
    given_back["held"] = 1049

    def done() -> list[int]:
        """Of 40 steps of a second each, those after which memory was given back."""
        return [step for step in range(40) if given_back.update(now=given_back["now"] + 1) is None and heap.step()]

    assert done() == []
    given_back["held"] = 1200
    assert done() == [0, 8, 16, 24, 32], "1,200 MiB are worth 7.2 s"


def test_memory_of_steps_that_follow_fast_is_left_alone(given_back: dict[str, float]) -> None:
    """To give back 200 MiB and take them again costs 60 ms: at most once in 1.2 s."""
    heap = Heap()
    for step in range(2000):
        given_back["now"] += 0.01
        given_back["held"] = 100 if step < 20 else 200
        heap.step()
    assert 10 <= given_back["count"] - 1 - Heap.SETTLED <= 20 / 1.2


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc gives memory back")
def test_free_memory_between_what_is_held_is_given_back() -> None:
    assert keep_memory()
    blocks = [torch.ones(1 << 18) for _ in range(200)]  # a MiB each
    held = [blocks.pop(number) for number in range(len(blocks) - 1, -1, -20)]
    full = resident()
    del blocks
    give_back()
    assert full - resident() > 120 << 20
    assert all(bool((each == 1).all()) for each in held)
