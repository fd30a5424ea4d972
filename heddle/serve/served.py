"""A run that is served: what its kind of model can do, as ids and texts."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from heddle.config.decoding import EngineConfig, SamplingConfig
from heddle.config.tasks import TaskSettings
from heddle.errors import HeddleError, TextError, pluralize
from heddle.generate.chat import chat_template, ends_of
from heddle.generate.engine import QueueFull
from heddle.generate.logprobs import NoValidToken
from heddle.generate.text import opening
from heddle.generate.translate import Marks, learned_sources, sentinels, source_ids
from heddle.model.transformer import Transformer
from heddle.serve.errors import ApiError
from heddle.serve.worker import Broken, Chunk, GenerationRequest, ShuttingDown, Worker
from heddle.text.chat_template import ChatTemplate
from heddle.text.tokenizer import Tokenizer

Prompt = tuple[list[int], list[int] | None]
"""Ids of a prompt, and of the source that an encoder reads, if there is one."""


TOGETHER = 16  # texts to translate, classify or embed before others of the same model go on


def size(prompt: Prompt) -> int:
    """Its tokens, the source's included."""
    return len(prompt[0]) + len(prompt[1] or ())


@dataclass(frozen=True)
class ServedRun:
    """A run to serve.

    Attributes:
        name: what clients call it.
        model: the model, in the precision that it computes in.
        tokenizer: its tokenizer.
        created: Unix time of the run, which clients are told.
        task: what it was trained for; None: that is not known, as of an imported model.
        pairs: whether it was trained to classify pairs of texts; None: that is not known.
    """

    name: str
    model: Transformer
    tokenizer: Tokenizer
    created: int = 0
    task: TaskSettings | None = None
    pairs: bool | None = None


class ServedModel:
    """A run with the thread that answers for it.

    Args:
        run: the run.
        engine: how much to do at once.
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
        starts = bool(ends) or (ids is not None and ids.begin is not None)
        self.starts = starts and run.model.config.prompts != "needed"
        self.worker = Worker(run.model, run.tokenizer, engine, ends)

    def prompt(self, given: str | list[int]) -> Prompt:
        """What the model reads for a text to complete; ids are taken as they are. An encoder-decoder reads it as its source.

        Raises:
            ApiError: the text has characters that the tokenizer does not know, or is too long.
        """
        with as_api_error("prompt"):
            if self.model.encoder is not None:
                if isinstance(given, list):
                    return [], given
                marks = Marks.of(self.model.config, self.tokenizer)
                return [], source_ids(self.model.config, self.tokenizer, marks, {0: given}, special=self.sentinels)[0]
            own = self.tokenizer.encode(given) if isinstance(given, str) else given
            return [*opening(self.model, self.tokenizer, given), *own], None

    def bos_prefix(self, given: str | list[int]) -> tuple[int, ...]:
        """The ids before a text to complete that are no part of it; those before given ids are."""
        return opening(self.model, self.tokenizer, given)

    def conversation(self, messages: Sequence[dict[str, str]]) -> Prompt:
        """What the model reads before its answer in a conversation.

        Raises:
            ApiError: the model has no chat template, or the template refuses the conversation.
        """
        if self.template is None:
            said = f"{self.run.name} has no chat template; use /v1/completions, or train it with task=chat"
            raise ApiError(400, said, "no_chat_template", "model")
        with as_api_error("messages"):
            return self.template.render(messages, add_generation_prompt=True), None

    def room(self, prompt: Prompt) -> int:
        """How many tokens can follow a prompt."""
        return max(1, self.context + 1 - len(prompt[0]))

    def check(self, prompt: Prompt, param: str) -> None:
        """Refuse ids that the model does not have, prompts that do not fit, and empty ones that the model cannot start from.

        `param` is the field that the prompt came in.

        Raises:
            ApiError: the prompt is one of these.
        """
        if not prompt[0] and prompt[1] is None and not self.starts:
            raise ApiError(
                400, "the prompt is empty, and this model cannot start a text without one", "invalid_value", param
            )
        for ids, count in ((prompt[0], self.model.vocab_size), (prompt[1] or (), self.model.config.source_vocab_size)):
            largest = max(ids, default=0)
            if largest >= (count or self.model.vocab_size):
                said = f"the prompt has the id {largest}; ids must be below {count or self.model.vocab_size}"
                raise ApiError(400, said, "invalid_value", param)
            if len(ids) > self.context:
                said = f"the prompt has {len(ids)} tokens, but the model's context is {self.context}; shorten it"
                raise ApiError(400, said, "context_length_exceeded", param)

    @contextlib.asynccontextmanager
    async def parts(
        self, prompts: Sequence[Prompt], samplings: Sequence[SamplingConfig], echo: bool = False, param: str = "prompt"
    ) -> AsyncIterator[AsyncIterator[tuple[int, Chunk]]]:
        """Continue prompts: parts as they come, with the number of their prompt. Leaving the context ends all texts.

        `param` is the field that the prompts came in.

        Raises:
            ApiError: a prompt is impossible, too many texts wait, or a text broke.
        """
        loop, heard = asyncio.get_running_loop(), asyncio.Queue[tuple[int, Chunk]]()

        def listener(number: int) -> Callable[[Chunk], None]:
            def deliver(part: Chunk) -> None:
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
                    loop.call_soon_threadsafe(heard.put_nowait, (number, part))

            return deliver

        asked = [
            GenerationRequest(ids, sampling, listener(number), source, echo)
            for number, ((ids, source), sampling) in enumerate(zip(prompts, samplings, strict=True))
        ]
        keys, admitted = self.worker.ask(asked)
        try:
            with as_api_error(param):
                await asyncio.wrap_future(admitted)
            yield _until_finished(heard, len(asked))
        finally:
            self.worker.cancel(keys)

    def check_translates(self) -> None:
        """Refuse a run that learned another task than to answer a source.

        Raises:
            ApiError: it did.
        """
        if not learned_sources(self.run.task):
            raise ApiError(400, f"{self.run.name} was not trained to translate", "invalid_value", "model")

    def pairs(self, texts: Sequence[str], seconds: Sequence[str] | None) -> list[Any]:
        """The texts, or the pairs of texts, to classify.

        Raises:
            ApiError: the run was trained on the other ones, or there are more of one than of the other.
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
        """Call a function of items, a few of them at a time, between the steps of texts; it may use the model. Returns its results.

        Raises:
            ApiError: it raises a `HeddleError`, which is about this field.
        """
        found: list[Any] = []
        with as_api_error(param):
            self.worker.check_calls()  # once: what has begun is not refused half-way
        for start in range(0, len(items), TOGETHER):
            some = partial(function, items[start : start + TOGETHER])
            with as_api_error(param):
                try:
                    found += await asyncio.wrap_future(self.worker.call(some))
                except TextError as error:
                    raise TextError(error.name, start + error.number, error.fault) from None
        return found


async def _until_finished(heard: "asyncio.Queue[tuple[int, Chunk]]", texts: int) -> AsyncIterator[tuple[int, Chunk]]:
    """The parts of so many texts, until all have ended."""
    while texts:
        number, part = await heard.get()
        if part.error is not None:
            asked = isinstance(part.error, NoValidToken)
            raise ApiError(400, part.error, "invalid_value") if asked else ApiError(500, part.error, "broken")
        texts -= part.finish is not None
        yield number, part


@contextlib.contextmanager
def as_api_error(param: str) -> Any:
    """What the library refuses inside, as an error of the API."""
    try:
        yield
    except QueueFull as error:
        raise ApiError(429, str(error), "queue_full", headers={"Retry-After": "1"}) from None
    except ShuttingDown as error:
        raise ApiError(503, str(error), "shutting_down", headers={"Retry-After": "1"}) from None
    except Broken as error:
        raise ApiError(500, str(error), "broken") from None
    except HeddleError as error:
        raise ApiError(400, str(error), "invalid_value", param) from None
