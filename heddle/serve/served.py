"""A run with the thread that serves it: prompts from texts, events with text from the worker."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from heddle.config.decoding import EngineConfig, SamplingConfig
from heddle.config.tasks import TaskSettings
from heddle.errors import HeddleError, OutOfMemory, TextError, pluralize
from heddle.generate.chat import chat_template, ends_of
from heddle.generate.engine import QueueFull
from heddle.generate.logprobs import Event, NoValidToken
from heddle.generate.text import bos_prefix
from heddle.generate.translate import Marks, learned_sources, sentinels, source_ids
from heddle.model.transformer import Transformer
from heddle.serve.errors import ApiError
from heddle.serve.worker import Broken, GenerationRequest, ShuttingDown, Worker
from heddle.text.chat_template import ChatTemplate
from heddle.text.tokenizer import Tokenizer

Prompt = tuple[list[int], list[int] | None]
"""Ids of a prompt, and of the encoder's source, if any."""


BATCH = 16  # texts to translate, classify or embed in one call, between which other requests to the model go on


def size(prompt: Prompt) -> int:
    """Number of tokens, including the source's."""
    return len(prompt[0]) + len(prompt[1] or ())


@dataclass(frozen=True)
class ServedRun:
    """A run to serve.

    Attributes:
        name: the model's name for clients.
        model: the model, in the precision that it computes in.
        tokenizer: its tokenizer.
        created: Unix time of the run, for clients.
        task: its training task; None: unknown, as for an imported model.
        pairs: whether it was trained to classify pairs of texts; None: unknown.
    """

    name: str
    model: Transformer
    tokenizer: Tokenizer
    created: int = 0
    task: TaskSettings | None = None
    pairs: bool | None = None


class ServedModel:
    """A run with its worker thread.

    Args:
        run: the run.
        engine: limits of the engine.
    """

    def __init__(self, run: ServedRun, engine: EngineConfig) -> None:
        self.run, self.model, self.tokenizer = run, run.model, run.tokenizer
        self.context = run.model.config.context
        self.template: ChatTemplate | None = None
        if run.model.config.chat is not None:
            self.template = chat_template(run.model, run.tokenizer)
        ends = ends_of(run.model, run.tokenizer, self.template)
        ids = run.model.config.ids
        self.sentinels = sentinels(run.task, run.tokenizer)
        self.forced = () if ids is None or ids.forced_begin is None else (ids.forced_begin,)
        has_start = bool(ends) or (ids is not None and ids.begin is not None)
        self.allows_empty = has_start and run.model.config.prompts != "needed"
        self.worker = Worker(run.model, run.tokenizer, engine, ends)

    def prompt(self, text: str | list[int]) -> Prompt:
        """The model's input for a text to complete, or for ids, which are used as they are. An encoder-decoder reads it as source.

        Raises:
            ApiError: the tokenizer cannot encode the text, or it is too long.
        """
        with as_api_error("prompt"):
            if self.model.encoder is not None:
                if isinstance(text, list):
                    return [], text
                marks = Marks.of(self.model.config, self.tokenizer)
                return [], source_ids(self.model.config, self.tokenizer, marks, {0: text}, special=self.sentinels)[0]
            ids = self.tokenizer.encode(text) if isinstance(text, str) else text
            return [*bos_prefix(self.model, self.tokenizer, text), *ids], None

    def bos_prefix(self, text: str | list[int]) -> tuple[int, ...]:
        """The ids that the model reads before a text or ids to complete. They are not part of the answer."""
        return bos_prefix(self.model, self.tokenizer, text)

    def conversation(self, messages: Sequence[dict[str, str]]) -> Prompt:
        """The model's input for the next message of a conversation.

        Raises:
            ApiError: the model has no chat template, or the template refuses the conversation.
        """
        if self.template is None:
            message = f"{self.run.name} has no chat template; use /v1/completions, or train it with task=chat"
            raise ApiError(400, message, "no_chat_template", "model")
        with as_api_error("messages"):
            return self.template.render(messages, add_generation_prompt=True), None

    def room(self, prompt: Prompt) -> int:
        """How many tokens can follow a prompt."""
        return max(1, self.context + 1 - len(prompt[0]))

    def check(self, prompt: Prompt, param: str) -> None:
        """Raise if a prompt has ids out of range, is too long, or is empty where the model needs one.

        `param` is the field of the prompt.
        """
        if not prompt[0] and prompt[1] is None and not self.allows_empty:
            raise ApiError(
                400, "the prompt is empty, and this model cannot start a text without one", "invalid_value", param
            )
        for ids, count in ((prompt[0], self.model.vocab_size), (prompt[1] or (), self.model.config.source_vocab_size)):
            largest = max(ids, default=0)
            if largest >= (count or self.model.vocab_size):
                message = f"the prompt has the id {largest}; ids must be below {count or self.model.vocab_size}"
                raise ApiError(400, message, "invalid_value", param)
            if len(ids) > self.context:
                message = f"the prompt has {len(ids)} tokens, but the model's context is {self.context}; shorten it"
                raise ApiError(400, message, "context_length_exceeded", param)

    @contextlib.asynccontextmanager
    async def generate(
        self, prompts: Sequence[Prompt], samplings: Sequence[SamplingConfig], echo: bool = False, param: str = "prompt"
    ) -> AsyncIterator[AsyncIterator[tuple[int, Event]]]:
        """Continue prompts: iterate over the events with the index of their prompt. Leaving the context ends all texts.

        `param` is the field of the prompts.

        Raises:
            ApiError: a prompt is invalid, the queue is full, or a text cannot go on.
        """
        loop, events = asyncio.get_running_loop(), asyncio.Queue[tuple[int, Event]]()

        def receiver(number: int) -> Callable[[Event], None]:
            def receive(event: Event) -> None:
                with contextlib.suppress(RuntimeError):  # the loop is closed, so nobody waits for the event
                    loop.call_soon_threadsafe(events.put_nowait, (number, event))

            return receive

        requests = [
            GenerationRequest(ids, sampling, receiver(number), source, echo)
            for number, ((ids, source), sampling) in enumerate(zip(prompts, samplings, strict=True))
        ]
        keys, admitted = self.worker.submit(requests)
        try:
            with as_api_error(param):
                await asyncio.wrap_future(admitted)
            yield _until_finished(events, len(requests))
        finally:
            self.worker.cancel(keys)

    def check_translates(self) -> None:
        """Raise if the run was not trained to answer a source."""
        if not learned_sources(self.run.task):
            raise ApiError(400, f"{self.run.name} was not trained to translate", "invalid_value", "model")

    def pairs(self, texts: Sequence[str], seconds: Sequence[str] | None) -> list[Any]:
        """The texts or pairs of texts to classify.

        Raises:
            ApiError: the run needs pairs but has single texts, or the other way round; or the numbers of texts differ.
        """
        if seconds is None:
            if self.run.pairs:
                raise ApiError(400, f"{self.run.name} reads pairs of texts: send pair, too", "invalid_value", "pair")
            return list(texts)
        if self.run.pairs is False:
            raise ApiError(400, f"{self.run.name} reads single texts: leave out pair", "invalid_value", "pair")
        if len(texts) != len(seconds):
            raise ApiError(
                400,
                f"{pluralize(len(texts), 'text')} and {pluralize(len(seconds), 'second text')}",
                "invalid_value",
                "pair",
            )
        return list(zip(texts, seconds, strict=True))

    async def call(
        self, function: Callable[[Sequence[Any]], Sequence[Any]], items: Sequence[Any], param: str
    ) -> list[Any]:
        """Call a function on batches of items in the worker's thread, between steps of the engine, and return all results.

        Raises:
            ApiError: the function raises a `HeddleError`, which is about the field `param`.
        """
        results: list[Any] = []
        with as_api_error(param):
            self.worker.check_calls()  # once, so that a request is not refused half-way
        for start in range(0, len(items), BATCH):
            call = partial(function, items[start : start + BATCH])
            with as_api_error(param):
                try:
                    results += await asyncio.wrap_future(self.worker.call(call))
                except TextError as error:
                    raise TextError(error.name, start + error.number, error.fault) from None
        return results


async def _until_finished(events: "asyncio.Queue[tuple[int, Event]]", texts: int) -> AsyncIterator[tuple[int, Event]]:
    """The events of so many texts, until all have ended."""
    while texts:
        number, event = await events.get()
        if event.error is not None:
            invalid = isinstance(event.error, NoValidToken)  # the request's constraints, not the model
            raise ApiError(400, event.error, "invalid_value") if invalid else ApiError(500, event.error, "broken")
        texts -= event.finish is not None
        yield number, event


@contextlib.contextmanager
def as_api_error(param: str) -> Any:
    """Raise the library's errors as errors of the API, about the field `param`."""
    try:
        yield
    except QueueFull as error:
        raise ApiError(429, str(error), "queue_full", headers={"Retry-After": "1"}) from None
    except ShuttingDown as error:
        raise ApiError(503, str(error), "shutting_down", headers={"Retry-After": "1"}) from None
    except Broken as error:
        raise ApiError(500, str(error), "broken") from None
    except OutOfMemory as error:
        raise ApiError(500, f"the server ran {error}", "broken") from None
    except HeddleError as error:
        raise ApiError(400, str(error), "invalid_value", param) from None
