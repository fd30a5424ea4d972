"""A tokenizer in several processes: what comes back is what one process gives, in order, and so is what goes wrong."""

import io
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import heddle.text.processes
from heddle.errors import HeddleError
from heddle.text import train_tokenizer
from heddle.text.processes import Encodes, Process, in_order, suitable_workers
from heddle.text.worker import receive, send
from tests.processes import InThread
from tests.refusing import refusal

TEXT = "the loom weaves the weft, and the weaver is gone — 12345 é\n" * 40
TOKENIZERS = {kind: train_tokenizer(kind, TEXT, size) for kind, size in (("bytes", None), ("bpe", 280), ("words", 60))}


def ids(tokenizer: Encodes, texts: Sequence[str]) -> list[list[int]]:
    return [list(each) for each in tokenizer.encode_batch(texts)]


def collected(tokenizer: Any, jobs: Any, workers: int, work: Callable[..., Any] = ids) -> list[Any]:
    with closing(in_order(work, jobs, tokenizer, workers)) as results:
        return [result for _, result in results]


@given(parts=st.lists(st.binary(max_size=9), max_size=4))
def test_a_message_comes_back(parts: list[bytes]) -> None:
    stream = io.BytesIO()
    send(stream, parts)
    send(stream, [b"next"])
    stream.seek(0)
    assert receive(stream) == parts
    assert receive(stream) == [b"next"]
    with pytest.raises(EOFError):
        receive(stream)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(jobs=st.lists(st.lists(st.text(max_size=12), max_size=3), max_size=9), workers=st.integers(0, 4))
def test_any_number_of_processes_gives_the_same_in_the_same_order(
    monkeypatch: pytest.MonkeyPatch, jobs: list[list[str]], workers: int
) -> None:
    monkeypatch.setattr(heddle.text.processes, "subprocess", InThread)
    tokenizer = TOKENIZERS["bytes"]
    with closing(in_order(ids, iter(jobs), tokenizer, workers)) as results:
        assert list(results) == [(job, tokenizer.encode_batch(job)) for job in jobs]


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_another_process_encodes_as_this_one(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    jobs = [[TEXT[start : start + 100], "", "éß 漢"] for start in range(0, 900, 100)]
    assert collected(tokenizer, jobs, 2) == [tokenizer.encode_batch(job) for job in jobs]


def failing(jobs: Sequence[list[str]]) -> Iterator[list[str]]:
    yield from jobs
    raise HeddleError("b.txt: cannot be read")


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        ([["abc"], ["ab", "a!b", "a?b"], ["a?b"]], "character '!' at position 1"),
        ([["abc"], ["abc"]], "b.txt: cannot be read"),
        ([["\ud800"]], "lone surrogate"),
    ],
)
def test_the_first_error_is_that_of_one_process(jobs: list[list[str]], message: str) -> None:
    """Also if a later text cannot be read: one process would not have come so far."""
    tokenizer = train_tokenizer("characters", "abc", special=())
    errors = [refusal(lambda workers=workers: collected(tokenizer, failing(jobs), workers)) for workers in (1, 2)]  # type: ignore[misc]
    assert errors[0] == errors[1]
    assert message in errors[0]


def test_a_process_that_ends_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def start(*args: Any, **settings: Any) -> Any:
        made.append(subprocess.Popen(*args, **settings))
        return made[-1]

    class Watched:
        PIPE, Popen = subprocess.PIPE, staticmethod(start)

    monkeypatch.setattr(heddle.text.processes, "subprocess", Watched)

    def jobs() -> Iterator[list[str]]:
        yield ["the"]
        for process in made:
            os.kill(process.pid, signal.SIGKILL)
        yield ["loom"]

    message = refusal(lambda: collected(TOKENIZERS["bytes"], jobs(), 2))
    assert message.startswith("a process that tokenises has ended (exit status -9)")
    assert all(process.poll() is not None for process in made)


def test_processes_end_with_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """However it ends: Ctrl-C, here; none is left, nor a thread that waits for one."""
    ended: list[Process] = []
    end = Process.end
    monkeypatch.setattr(Process, "end", lambda self: (end(self), ended.append(self)))
    before = threading.active_count()

    def interrupted() -> None:
        with closing(in_order(ids, (["text"] for _ in range(99)), TOKENIZERS["bytes"], 2)) as results:
            next(results)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [process._process.poll() for process in ended] == [-signal.SIGKILL] * 2
    assert threading.active_count() == before


def test_only_a_tokenizer_with_a_file_can_be_elsewhere() -> None:
    class Own:
        vocab_size, end_of_text = 256, None

        def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
            return [list(text.encode()) for text in texts]

        def token_bytes(self, id: int) -> bytes:
            return bytes([id])

    assert collected(Own(), [["a"]], 1) == [[[97]]]
    assert "set workers=1" in refusal(lambda: collected(Own(), [["a"]], 2))
    assert suitable_workers(Own(), 10**12) == 0


def test_a_short_text_stays_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3}, raising=False)
    words = TOKENIZERS["words"]
    assert [suitable_workers(words, size) for size in (10**3, 5 * 10**6, 10**9)] == [0, 2, 4]
    assert suitable_workers(TOKENIZERS["bytes"], 10**12) == 0
