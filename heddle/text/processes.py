"""Encodes texts in several processes: jobs are handed out one by one, and results come back in order.

Each process is a new Python that loads the tokenizer from its file (`heddle.text.worker`), so nothing is forked while
threads of torch or `tokenizers` run, nothing is pickled, and a script that calls this needs no `if __name__ == "__main__"`.
Threads that call the tokenizer for one text each were measured to gain little or nothing.
"""

import os
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar, runtime_checkable

from heddle.errors import HeddleError
from heddle.text.base import Base
from heddle.text.worker import ENCODED, ENCODING, IDS, READY, REFUSED, receive, send

# UTF-8 bytes of text that make starting another process pay off. Kinds that are not listed are as fast in one process.
MIN_BYTES_PER_PROCESS = {
    "characters": 16_000_000,
    "bpe": 8_000_000,
    "words": 2_000_000,
    "wordpiece": 2_000_000,
    "unigram": 2_000_000,
}

_ROOT = str(Path(__file__).parents[2])
# Import heddle from where this module lies, not from the current directory.
_START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from heddle.text.worker import main; main()"

Job = TypeVar("Job")
Result = TypeVar("Result")


@runtime_checkable
class Encodes(Protocol):
    """The methods of a tokenizer that jobs use. A tokenizer in another process returns ids as arrays."""

    @property
    def vocab_size(self) -> int: ...
    def encode_batch(self, texts: Sequence[str], /) -> Sequence[Sequence[int]]: ...
    def token_bytes(self, id: int, /) -> bytes: ...


@runtime_checkable
class InOrder(Protocol):
    """What yields each job with its result, in order: `in_order`, or `heddle.runs.pieces.Pieces.in_order`, which keeps results."""

    def __call__(
        self, work: Callable[[Encodes, Job], Result], jobs: Iterable[Job], tokenizer: Encodes, workers: int, /
    ) -> Generator[tuple[Job, Result], None, None]: ...


@dataclass(frozen=True, slots=True)
class Encoded:
    """A tokenizer whose texts another process encodes."""

    tokenizer: Encodes
    process: "Process"

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.vocab_size

    def encode_batch(self, texts: Sequence[str], /) -> list[memoryview]:
        return self.process.encode(texts)

    def token_bytes(self, id: int, /) -> bytes:
        return self.tokenizer.token_bytes(id)


class Process:
    """A subprocess that encodes texts.

    Args:
        path: the tokenizer's file.
        fingerprint: the tokenizer's fingerprint.
    """

    def __init__(self, path: Path, fingerprint: str) -> None:
        self.fingerprint, self._ready = fingerprint, False
        command = [sys.executable, "-P", "-c", _START, _ROOT, str(path)]
        pipe = subprocess.PIPE
        # In a group of its own, so that Ctrl-C reaches only this process, which then ends the others.
        environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
        try:
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, process_group=0)
        except OSError as error:
            raise HeddleError(
                f"a process that tokenises cannot be started ({error.strerror}); set fewer workers"
            ) from None

    def encode(self, texts: Sequence[str]) -> list[memoryview]:
        """The ids of texts.

        Raises:
            HeddleError: the tokenizer cannot encode one, or the process has ended.
        """
        kind, *parts = self._request([text.encode(*ENCODING) for text in texts])
        if kind == ENCODED:
            return [memoryview(part).cast(IDS) for part in parts]
        message = parts[0].decode(*ENCODING)
        raise HeddleError(message) if kind == REFUSED else RuntimeError(f"in a process that tokenises: {message}")

    def _request(self, request: Sequence[bytes]) -> list[bytes]:
        """Send a request and return the answer; check on the first one that the process has the same tokenizer."""
        requests, answers = self._process.stdin, self._process.stdout
        assert requests is not None
        assert answers is not None
        try:
            if not self._ready:
                greeting = receive(answers)
                if greeting != [READY, self.fingerprint.encode()]:
                    raise HeddleError("a process that tokenises has loaded another tokenizer; set data.workers=1")
                self._ready = True
            send(requests, request)
            return receive(answers)
        except (EOFError, BrokenPipeError):
            status = self._process.wait()
            raise HeddleError(
                f"a process that tokenises has ended (exit status {status}), perhaps for lack of memory; set data.workers=1"
            ) from None

    def end(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(OSError):  # unsent data
                if stream is not None:
                    stream.close()


def in_order(
    work: Callable[[Encodes, Job], Result], jobs: Iterable[Job], tokenizer: Encodes, workers: int
) -> Generator[tuple[Job, Result], None, None]:
    """Yield each job with `work(tokenizer, job)`, in order, computed by `workers` processes; 0 or 1: by this one.

    Only encoding happens in the other processes; the rest of `work` runs in threads of this one. At most two jobs per process are
    in flight. The caller must close the iterator (`contextlib.closing`), which ends the processes. Errors are raised in the order
    of a single process, whether they come from the jobs or from the work.

    Raises:
        HeddleError: there are several workers, but the tokenizer cannot be saved and loaded by them.
    """
    if workers < 2:
        yield from ((job, work(tokenizer, job)) for job in jobs)
        return
    if not isinstance(tokenizer, Base):
        raise HeddleError(
            f"workers = {workers}: only tokenizers of heddle can be loaded in other processes; set workers=1"
        )
    pending: deque[tuple[Job, Future[Result]]] = deque()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="heddle-")))
        tokenizer.save(folder)
        free: SimpleQueue[Process] = SimpleQueue()
        pool = stack.enter_context(ThreadPoolExecutor(workers))
        for _ in range(workers):
            process = Process(folder / "tokenizer.json", tokenizer.fingerprint())
            stack.callback(process.end)  # before the pool ends, so that no thread waits for an answer
            free.put(process)
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)

        def run(job: Job) -> Result:
            process = free.get()
            try:
                return work(Encoded(tokenizer, process), job)
            finally:
                free.put(process)

        remaining, exhausted = iter(jobs), False
        failure: Exception | None = None
        while True:
            while not exhausted and len(pending) < 2 * workers:
                try:
                    job = next(remaining)
                except StopIteration:
                    exhausted = True
                except Exception as error:  # raised after the jobs before it, whose errors come first
                    exhausted, failure = True, error
                else:
                    pending.append((job, pool.submit(run, job)))
            if not pending:
                break
            job, future = pending.popleft()
            yield job, future.result()
        if failure is not None:
            raise failure


def suitable_workers(tokenizer: Any, size: int) -> int:
    """The number of processes that tokenise a text fastest: up to one per core, if each has enough text to pay off.

    Args:
        tokenizer: the tokenizer.
        size: UTF-8 bytes of the text.
    """
    min_bytes = MIN_BYTES_PER_PROCESS.get(tokenizer.kind) if isinstance(tokenizer, Base) else None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 0 if min_bytes is None else min(cores, size // min_bytes)
