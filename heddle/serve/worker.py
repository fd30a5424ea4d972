"""One thread for one model: it steps the engine, and answers what other threads ask between its steps."""

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
from heddle.errors import HeddleError, pluralize
from heddle.generate.constrain import Guides
from heddle.generate.engine import Engine, Event, QueueFull
from heddle.generate.logprobs import SampledToken
from heddle.generate.processors import Ends
from heddle.generate.speculative import DraftSource
from heddle.generate.stream import Finish, check_generates
from heddle.generate.text import RowText
from heddle.model.device import release_threads
from heddle.model.head import LanguageHead
from heddle.model.transformer import Transformer
from heddle.text.tokenizer import Tokenizer


class ShuttingDown(HeddleError):
    """The worker admits nothing more."""


class Broken(HeddleError):
    """The worker's thread has failed, so it answers nothing more."""


@dataclass(frozen=True)
class Chunk:
    """The next piece of one text, with the token that it came with.

    Attributes:
        text: whole characters, possibly none.
        token: the drawn id and its probability.
        finish: why the text ends here, or None.
        prompt: with the first part, the probabilities of the prompt's tokens, if asked for.
        error: why no token could be drawn.
    """

    text: str
    token: SampledToken
    finish: Finish | None
    prompt: tuple[SampledToken, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class GenerationRequest:
    """A text to continue.

    Attributes:
        prompt: ids.
        sampling: how, with its seed.
        source: what an encoder reads.
        echo: whether the prompt's log probabilities are wanted.
        deliver: hears each part, in the worker's thread; it must return at once.
        end: an id that ends the text, besides those of the model.
    """

    prompt: Sequence[int]
    sampling: SamplingConfig
    deliver: Callable[[Chunk], None]
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
        config: how much to do at once.
        end_of_text: see `Decoding`.
        proposer: see `Engine`.
    """

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer,
        config: EngineConfig,
        end_of_text: Ends = None,
        proposer: DraftSource | None = None,
    ) -> None:
        self.model, self.tokenizer, self.config = model, tokenizer, config
        self.engine = None
        if model.decoder is not None and isinstance(model.head, LanguageHead):  # others classify or embed
            self.engine = Engine(model, end_of_text, tokenizer.vocab_size, config, proposer, Guides(tokenizer))
        self.state: State = "ready"
        self.growing, self.waiting = 0, 0  # texts, for other threads to read
        self._inbox: queue.SimpleQueue[Job | None] = queue.SimpleQueue()  # quick things: texts to admit, texts to end
        self._calls: queue.SimpleQueue[Job | None] = queue.SimpleQueue()  # longer things, one of them before each step
        self._rows: dict[int, tuple[GenerationRequest, RowText]] = {}
        self._keys = itertools.count()
        self._numbers: dict[int, int] = {}  # of the engine's row, by the key that the asker has
        self._thread = threading.Thread(target=self._run, name="heddle worker", daemon=True)
        release_threads()  # of the thread that has loaded the model
        self._thread.start()

    def ask(self, asked: Sequence[GenerationRequest]) -> "tuple[list[int], Future[None]]":
        """Continue texts, all or none. Returns their keys for `cancel`, and a future that is done when they are admitted.

        The future raises `QueueFull` if too many texts wait, `ShuttingDown` after `drain`, `Broken` if the thread has failed, and
        `HeddleError` as `Engine.submit` does.
        """
        keys = [next(self._keys) for _ in asked]
        return keys, self._post(lambda: self._admit(keys, asked), self._inbox)

    def cancel(self, keys: Sequence[int]) -> None:
        """End these texts, without another part. Keys of texts that have ended are ignored."""

        def end() -> None:
            numbers = {self._numbers.pop(key) for key in keys if key in self._numbers}
            for number in numbers:
                del self._rows[number]
            if self.engine is not None:
                self.engine.leave(numbers)

        self._inbox.put(end)

    def call(self, function: Callable[[], Any]) -> "Future[Any]":
        """Call a function between two steps, in the worker's thread; of several functions, one between each two steps.

        The future raises what the function does, and otherwise as that of `ask`. Who gives it up cancels it.
        """
        future = self._post(function, self._calls)
        self._inbox.put(None)  # which wakes a thread that waits there
        return future

    def check_calls(self) -> None:
        """Refuse a request that needs calls, if as many wait as may wait.

        Raises:
            QueueFull: so many wait.
        """
        most = self.config.queue
        if most is not None and (waiting := self._calls.qsize()) >= most:
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
                # A coroutine that waits for the future could not raise this one, and would wait forever.
                future.set_exception(RuntimeError(f"a function raised {error!r}"))
            except BaseException as error:
                future.set_exception(error)
            return True

        if self.state in ("draining", "ended"):
            future.set_exception(ShuttingDown("the server is shutting down"))
            return future
        inbox.put(run)
        if self.state == "broken":  # perhaps since a moment ago, so that nobody reads it
            self._refuse()
        return future

    def drain(self) -> None:
        """Admit nothing more, and end when all texts have ended."""
        self.state = "ended" if self.state == "broken" else "draining"
        self._inbox.put(None)

    def join(self, seconds: float | None = None) -> bool:
        """Wait for the thread to end; whether it has."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _admit(self, keys: Sequence[int], asked: Sequence[GenerationRequest]) -> None:
        if self.engine is None:
            check_generates(self.model)
        assert self.engine is not None
        most = self.config.queue
        if most is not None and len(asked) > most:
            raise HeddleError(f"{len(asked)} texts in one request are more than may wait here, {most}; ask for fewer")
        if most is not None and len(asked) > most - len(self.engine.waiting):
            raise QueueFull(f"{pluralize(len(self.engine.waiting), 'text')} waiting; try again later")
        numbers: list[int] = []
        try:
            for each in asked:
                numbers.append(self.engine.submit(each.prompt, each.sampling, None, each.source, each.echo))
        except BaseException:
            self.engine.leave(set(numbers))
            raise
        for key, number, each in zip(keys, numbers, asked, strict=True):
            last = each.prompt[-1] if each.prompt else None
            forced = None if each.prompt or self.model.config.ids is None else self.model.config.ids.forced_begin
            self._rows[number] = (each, RowText(self.tokenizer, each.sampling.stop, last, forced))
            self._numbers[key] = number

    def _run(self) -> None:
        try:
            while self._go_on():
                pass
            self.state = "ended"
        except BaseException:
            LOG.exception("the thread of a model failed, so the model answers nothing more")
            self.state, self.growing, self.waiting = "broken", 0, 0
            self._tell_all("the model failed; restart the server")
            self._refuse()

    def _go_on(self) -> bool:
        """Do what was asked for since the last step, then make a step; whether there is or may come more to do."""
        idle = self._calls.empty() and not self.engine
        if self.state == "draining" and idle and self._inbox.empty():
            return False
        self._listen(wait=idle)
        while not self._calls.empty() and (call := self._calls.get()) is not None:
            if call():  # not one that was given up
                break
        if self.engine:
            self._step(self.engine)
        return True

    def _listen(self, wait: bool) -> None:
        """Admit and end texts; with `wait`, wait for something to do."""
        if wait and self._inbox.empty():
            release_threads()  # so that other models' workers keep theirs awake
        while wait or not self._inbox.empty():
            wanted = self._inbox.get()
            wait = False
            if wanted is not None:
                wanted()
        self._count()

    def _refuse(self) -> None:
        """Do what still waits, now that the thread has failed: all of it raises `Broken`."""
        for inbox in (self._inbox, self._calls):
            with contextlib.suppress(queue.Empty):
                while True:
                    if (wanted := inbox.get_nowait()) is not None:
                        wanted()

    def _step(self, engine: Engine) -> None:
        try:
            events = engine.step()
        except Exception:  # one that concerns all rows, such as memory that is used up
            LOG.exception("a step of the model failed, which ends all its texts")
            self._break(engine, "the model failed; the server's log says more")
            return
        for event in events:
            if event.row in self._rows:  # not after a stop text within the same step
                self._deliver(engine, event)
        self._count()

    def _deliver(self, engine: Engine, event: Event) -> None:
        asked, text = self._rows[event.row]
        token = SampledToken(event.token, event.logprob, event.top)
        piece = "" if event.error else text.push(event.token, event.finish)
        finish = event.finish if event.error else text.finish
        if finish is not None:
            del self._rows[event.row]
            self._numbers = {key: row for key, row in self._numbers.items() if row != event.row}
        if finish == "stop":
            engine.leave({event.row})
        asked.deliver(Chunk(piece, token, finish, event.prompt, event.error))

    def _break(self, engine: Engine, error: str) -> None:
        numbers = set(self._rows)
        self._tell_all(error)
        engine.leave(numbers)
        self._count()

    def _tell_all(self, error: str) -> None:
        """End all texts with this error."""
        rows, self._rows, self._numbers = self._rows, {}, {}
        for asked, _ in rows.values():
            asked.deliver(Chunk("", SampledToken(0, 0.0), "broken", error=error))

    def _count(self) -> None:
        if self.engine is not None:
            waiting = len(self.engine.waiting) + (0 if self.engine.opening is None else len(self.engine.opening.rows))
            self.growing, self.waiting = len(self.engine.active), waiting
