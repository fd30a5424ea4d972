"""Batches made one step ahead: the right one at each step, whoever asks, and an error at the step that it belongs to."""

import gc
import threading
import weakref
from typing import Any

import pytest
import torch

from heddle.data import Batch, next_token_batch
from heddle.train.ahead import Ahead


def numbered(step: int) -> Batch:
    return next_token_batch(torch.full((1, 3), step).numpy())


def number_of(batch: Batch) -> int:
    return int(batch.tokens[0, 0])


def test_the_next_batch_is_made_while_the_caller_computes() -> None:
    made = threading.Semaphore(0)
    threads = list[str]()

    def make(step: int) -> Batch:
        threads.append(threading.current_thread().name)
        made.release()
        return numbered(step)

    ahead = Ahead(make, 3)
    assert number_of(ahead.get(0)) == 0
    for _ in range(2):
        assert made.acquire(timeout=60)  # step 0, and step 1 without asking for it
    assert threads[0] == threading.current_thread().name != threads[1]
    assert [number_of(ahead.get(step)) for step in (1, 2)] == [1, 2]
    assert len(threads) == 3  # after the last step, no batch is made


@pytest.mark.parametrize("steps", [[0, 1, 2, 3], [0, 0, 1, 1, 2], [5, 6, 2, 3], [7, 7]])
def test_every_step_gets_its_own_batch(steps: list[int]) -> None:
    ahead = Ahead(numbered, 8)
    assert [number_of(ahead.get(step)) for step in steps] == steps


def test_an_error_is_raised_at_its_step_and_not_before() -> None:
    def make(step: int) -> Batch:
        if step == 2:
            raise ValueError("row 7 is damaged")
        return numbered(step)

    ahead = Ahead(make, 5)
    assert [number_of(ahead.get(step)) for step in (0, 1)] == [0, 1]
    for _ in range(2):
        with pytest.raises(ValueError, match="row 7"):
            ahead.get(2)
    assert number_of(ahead.get(3)) == 3


def test_the_thread_ends_with_its_object() -> None:
    ahead = Ahead(numbered, 9)
    ahead.get(0)
    threads = [weakref.ref(each) for each in ahead.thread._threads]
    assert len(threads) == 1
    thread: Any = threads[0]()
    del ahead
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()
