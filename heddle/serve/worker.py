"""One thread for one model: it steps the engine, and runs jobs of other threads between the steps."""

import contextlib
import itertools
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal

from heddle.config.decoding import EngineConfig, SamplingConfig
from heddle.errors import HeddleError, OutOfMemory, pluralize
from heddle.generate.constrain import Guides
from heddle.generate.engine import Engine, QueueFull
from heddle.generate.logprobs import Event
from heddle.generate.processors import Ends
from heddle.generate.speculative import DraftSource
from heddle.generate.stream import check_generates
from heddle.model.device import release_threads
from heddle.model.head import LanguageHead
from heddle.model.transformer import Transformer
from heddle.text.stream import TextStream
from heddle.text.tokenizer import Tokenizer


class ShuttingDown(HeddleError):
    """The worker accepts no more requests."""


class Broken(HeddleError):
    """The worker's thread has failed."""


@dataclass(frozen=True)
class GenerationRequest:
    """A text to continue.

    Attributes:
        prompt: ids.
        sampling: how to sample, with the seed.
        on_event: called with each token and its text, in the worker's thread. It must return at once.
        source: ids for the encoder.
        echo: whether to return the prompt's log probabilities.
    """

    prompt: Sequence[int]
    sampling: SamplingConfig
    on_event: Callable[[Event], None]
    source: Sequence[int] | None = None
    echo: bool = False


State = Literal["ready", "draining", "broken", "ended"]
Job = Callable[[], bool | None]
LOG = logging.getLogger(__name__)


class Worker:
    """A thread that continues texts with one model.

    Args:
        model: the model. No other thread may use it while the worker runs.
        tokenizer: its tokenizer.
        config: limits of the engine.
        end_of_text: see `DecodingRules`.
        draft_source: see `Engine`.
    """

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer,
        config: EngineConfig,
        end_of_text: Ends = None,
        draft_source: DraftSource | None = None,
    ) -> None:
        self.model, self.tokenizer, self.config = model, tokenizer, config
        self.engine = None
        if model.decoder is not None and isinstance(model.head, LanguageHead):  # others classify or embed
            self.engine = Engine(model, end_of_text, tokenizer.vocab_size, config, draft_source, Guides(tokenizer))
        self.state: State = "ready"
        self.running, self.waiting = 0, 0  # texts, for other threads to read
        self._inbox: queue.SimpleQueue[Job | None] = queue.SimpleQueue()  # quick jobs: texts to admit, texts to end
        self._calls: queue.SimpleQueue[Job | None] = queue.SimpleQueue()  # longer jobs, one before each step
        self._requests: dict[int, GenerationRequest] = {}  # by the numbers of the engine's rows
        self._keys = itertools.count()
        self._numbers: dict[int, int] = {}  # of the engine's rows, by the keys that `submit` returned
        self._thread = threading.Thread(target=self._run, name="heddle worker", daemon=True)
        release_threads()  # of the thread that loaded the model
        self._thread.start()

    def submit(self, requests: Sequence[GenerationRequest]) -> "tuple[list[int], Future[None]]":
        """Continue texts, all or none. Return their keys for `cancel`, and a future that is done when they are admitted.

        The future raises `QueueFull` if the queue is full, `ShuttingDown` after `drain`, `Broken` if the thread has failed, and
        `HeddleError` as `Engine.submit` does.
        """
        keys = [next(self._keys) for _ in requests]
        return keys, self._post(lambda: self._admit(keys, requests), self._inbox)

    def cancel(self, keys: Sequence[int]) -> None:
        """End these texts without another event. Keys of texts that have ended are ignored."""

        def end() -> None:
            numbers = {self._numbers.pop(key) for key in keys if key in self._numbers}
            for number in numbers:
                del self._requests[number]
            if self.engine is not None:
                self.engine.leave(numbers)

        self._inbox.put(end)

    def call(self, function: Callable[[], Any]) -> "Future[Any]":
        """Call a function in the worker's thread, between two steps. One function is called between each two steps.

        The future raises the function's error, and otherwise like that of `submit`. Cancel it to withdraw the call.
        """
        future = self._post(function, self._calls)
        self._inbox.put(None)  # wakes the thread if it waits there
        return future

    def check_calls(self) -> None:
        """Raise if the queue of calls is full.

        Raises:
            QueueFull: it is.
        """
        limit = self.config.queue
        if limit is not None and (waiting := self._calls.qsize()) >= limit:
            raise QueueFull(f"{pluralize(waiting, 'request')} waiting; try again later")

    def _post(self, function: Callable[[], Any], inbox: "queue.SimpleQueue[Job | None]") -> "Future[Any]":
        future: Future[Any] = Future()

        def run() -> bool:
            if not future.set_running_or_notify_cancel():
                return False
            try:
                if self.state == "broken":
                    raise Broken("the thread of this model has failed; restart the server")
                future.set_result(function())
            except StopIteration as error:
                # A coroutine that awaits the future could not raise a StopIteration, and would wait forever.
                future.set_exception(RuntimeError(f"a function raised {error!r}"))
            except BaseException as error:
                future.set_exception(error)
            return True

        if self.state in ("draining", "ended"):
            future.set_exception(ShuttingDown("the server is shutting down"))
            return future
        inbox.put(run)
        if self.state == "broken":  # perhaps just now, after the thread read its inbox for the last time
            self._run_leftovers()
        return future

    def drain(self) -> None:
        """Accept no more requests, and end the thread when all texts have ended."""
        self.state = "ended" if self.state == "broken" else "draining"
        self._inbox.put(None)

    def join(self, seconds: float | None = None) -> bool:
        """Wait for the thread to end. Return whether it has."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _admit(self, keys: Sequence[int], requests: Sequence[GenerationRequest]) -> None:
        if self.engine is None:
            check_generates(self.model)
        assert self.engine is not None
        limit = self.config.queue
        if limit is not None and len(requests) > limit:
            raise HeddleError(f"{len(requests)} texts in one request exceed the queue of {limit}; ask for fewer")
        if limit is not None and len(requests) > limit - len(self.engine.waiting):
            raise QueueFull(f"{pluralize(len(self.engine.waiting), 'text')} waiting; try again later")
        numbers: list[int] = []
        try:
            for request in requests:
                numbers.append(self.engine.submit(request.prompt, request.sampling, None, request.source, request.echo))
                last_id = request.prompt[-1] if request.prompt else None
                self.engine.waiting[-1].text = TextStream(self.tokenizer, last_id, request.sampling.stop)
        except BaseException:
            self.engine.leave(set(numbers))
            raise
        for key, number, request in zip(keys, numbers, requests, strict=True):
            self._requests[number], self._numbers[key] = request, number

    def _run(self) -> None:
        try:
            while self._run_once():
                pass
            self.state = "ended"
        except BaseException:
            LOG.exception("the thread of a model failed; the model accepts no more requests")
            self.state, self.running, self.waiting = "broken", 0, 0
            self._end_all("the model failed; restart the server")
            self._run_leftovers()

    def _run_once(self) -> bool:
        """Run the jobs since the last step, then make a step. Return whether to continue."""
        idle = self._calls.empty() and not self.engine
        if self.state == "draining" and idle and self._inbox.empty():
            return False
        self._handle_inbox(wait=idle)
        while not self._calls.empty() and (call := self._calls.get()) is not None:
            if call():  # False if it was cancelled
                break
        if self.engine:
            self._step(self.engine)
        return True

    def _handle_inbox(self, wait: bool) -> None:
        """Admit and end texts. With `wait`, wait for a job."""
        if wait and self._inbox.empty():
            release_threads()  # so that the workers of other models can use the cores
        while wait or not self._inbox.empty():
            job = self._inbox.get()
            wait = False
            if job is not None:
                job()
        self._count()

    def _run_leftovers(self) -> None:
        """Run the remaining jobs after the thread has failed: their futures raise `Broken`."""
        for inbox in (self._inbox, self._calls):
            with contextlib.suppress(queue.Empty):
                while True:
                    if (job := inbox.get_nowait()) is not None:
                        job()

    def _step(self, engine: Engine) -> None:
        try:
            events = engine.step()
        except Exception as error:  # concerns all rows
            LOG.exception("a step of the model failed; all its texts end")
            full = f"the server ran {error}; started with a lower --rows, it has more room for each text"
            self._end_all(full if isinstance(error, OutOfMemory) else "the model failed; see the server's log")
            self._count()
            return
        for event in events:
            self._deliver(event)
        self._count()

    def _deliver(self, event: Event) -> None:
        request = self._requests[event.row]
        if event.finish is not None:
            del self._requests[event.row]
            self._numbers = {key: row for key, row in self._numbers.items() if row != event.row}
        request.on_event(event)

    def _end_all(self, error: str) -> None:
        """End all texts with this error."""
        requests, self._requests, self._numbers = self._requests, {}, {}
        for number, request in requests.items():
            request.on_event(Event(number, 0, 0.0, "broken", error=error))

    def _count(self) -> None:
        if self.engine is not None:
            waiting = len(self.engine.waiting) + (0 if self.engine.prefill is None else len(self.engine.prefill.rows))
            self.running, self.waiting = len(self.engine.active), waiting
