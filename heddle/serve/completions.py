"""Completions and chat completions of OpenAI's API, streamed or in one answer."""

import asyncio
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

from fastapi import Request

from heddle.config.decoding import SamplingConfig
from heddle.config.serve import ServeConfig
from heddle.errors import HeddleError
from heddle.generate.logprobs import Event
from heddle.serve.answers import ByteDecoder, Choice, DecodedToken, chat_logprobs, completion_logprobs, decode, usage
from heddle.serve.errors import ApiError
from heddle.serve.metrics import Clock
from heddle.serve.requests import ChatRequest, CompletionRequest, Sampled, prompts_of
from heddle.serve.served import Prompt, ServedModel, size
from heddle.serve.streaming import Limits, Stream, while_connected

DEFAULT_TOKENS = 16  # of a completion, as in OpenAI's API
MOST_PROMPTS = 2048
Document = dict[str, Any]


class Generation(ABC):
    """The texts that one request asks for: `submit` starts them, then `stream` or `collect` makes the answer.

    Args:
        body: the request.
        served: the model that it names.
        config: limits of the server.
        limits: how long the answer may take.
        clock: times the tokens.
    """

    def __init__(self, body: Sampled, served: ServedModel, config: ServeConfig, limits: Limits, clock: Clock) -> None:
        self.served, self.config, self.limits, self.clock = served, config, limits, clock
        self.model, self.streams = body.model, bool(body.stream)
        self.include_usage = body.stream_options is not None and body.stream_options.include_usage
        self.choices: list[Choice] = []
        self._stack = AsyncExitStack()  # ends the texts when it is closed
        self._generated: AsyncIterator[tuple[int, Event]]

    async def answer(self, request: Request) -> Stream | Document:
        """The answer, as a stream if the request asks for one."""
        await self.submit(request)
        return self.stream() if self.streams else await self.collect(request)

    @abstractmethod
    async def submit(self, request: Request) -> None:
        """Check the request and start its texts. Afterwards `stream` or `collect` must follow, which end the texts.

        Raises:
            ApiError: the request is invalid, or too many texts wait.
            ClientLeft: the client has left.
        """

    def stream(self) -> Stream:
        """The answer as server-sent events."""
        return Stream(self._events(), self._stack, self.limits)

    async def collect(self, request: Request) -> Document:
        """The answer as one document.

        Raises:
            ApiError: a text cannot go on, or the answer took too long.
            ClientLeft: the client has left.
        """

        async def collect_events() -> None:
            async for number, event in self._generated:
                self.choices[number].add(event)

        async with self._stack:
            await while_connected(request, collect_events(), self.limits)
        return self._document()

    @abstractmethod
    def _events(self) -> AsyncIterator[Document]:
        """The documents of the stream."""

    @abstractmethod
    def _document(self) -> Document:
        """The answer, once all texts have ended."""

    async def _start(
        self, request: Request, prompts: Sequence[Prompt], samplings: Sequence[SamplingConfig], echo: bool, param: str
    ) -> None:
        """Admit the texts, unless the client leaves first."""
        admitted = self._stack.enter_async_context(self.served.generate(prompts, samplings, echo, param))
        self._generated = self._timed(await while_connected(request, admitted, self.limits), prompts)

    async def _timed(
        self, events: AsyncIterator[tuple[int, Event]], prompts: Sequence[Prompt]
    ) -> AsyncIterator[tuple[int, Event]]:
        self.clock.prompt(sum(map(size, prompts)))
        async for number, event in events:
            self.clock.token(number)
            yield number, event
        self.clock.end()


class Completion(Generation):
    """`POST /v1/completions`. The arguments are those of `Generation`."""

    def __init__(
        self, body: CompletionRequest, served: ServedModel, config: ServeConfig, limits: Limits, clock: Clock
    ) -> None:
        super().__init__(body, served, config, limits, clock)
        self.body, self.n, self.echo = body, body.n or 1, bool(body.echo)
        self.max_tokens = DEFAULT_TOKENS if body.max_tokens is None else body.max_tokens
        self.scores_prompt = self.echo and body.logprobs is not None
        self.prompts: list[Prompt] = []
        self._prefixes: list[tuple[int, ...]] = []  # ids before each prompt that are not part of it
        self._echoed: list[str] = []  # text before each choice

    async def submit(self, request: Request) -> None:
        body, served, n = self.body, self.served, self.n
        raw_prompts = prompts_of(body.prompt)
        if len(raw_prompts) * n > MOST_PROMPTS:
            raise ApiError(
                400, f"{len(raw_prompts)} prompts times n = {n} are more than {MOST_PROMPTS}", param="prompt"
            )
        # In a thread: prompts may be megabytes of text, and other requests go on meanwhile.
        self.prompts = await asyncio.to_thread(lambda: [served.prompt(prompt) for prompt in raw_prompts])
        if self.max_tokens == 0 and not self.echo:
            raise ApiError(400, "max_tokens = 0 leaves nothing to answer, unless echo is set", param="max_tokens")
        for prompt in self.prompts:
            served.check(prompt, "prompt")
        self._prefixes = [served.bos_prefix(prompt) for prompt in raw_prompts]
        echoed = [""] * len(raw_prompts)
        if self.echo:
            echoed = [
                decode(served.tokenizer, prompt) if isinstance(prompt, list) else prompt for prompt in raw_prompts
            ]
        self._echoed = [text for text in echoed for _ in range(n)]
        every = [prompt for prompt in self.prompts for _ in range(n)]
        # The engine samples at least one token; with max_tokens = 0 it is left out of the answer.
        samplings = sampling_configs(body, served, self.config, len(every), max(1, self.max_tokens), body.logprobs)
        self.head = _head("cmpl", "text_completion", self.model)
        await self._start(request, every, samplings, self.scores_prompt, "prompt")
        self.choices = [
            Choice.start(index, ids, served, len(self._echoed[index])) for index, (ids, _) in enumerate(every)
        ]

    async def _events(self) -> AsyncIterator[Document]:
        async for number, event in self._generated:
            choice = self.choices[number]
            choice.add(event)
            first = len(choice.tokens) == 1
            yield self.head | {"choices": [self._choice(choice, event.text, choice.tokens[-1:], first and self.echo)]}
        if self.include_usage:
            yield self.head | {"choices": [], "usage": self._usage()}

    def _document(self) -> Document:
        choices = [self._choice(choice, choice.text, choice.tokens, self.echo) for choice in self.choices]
        return self.head | {"choices": choices, "usage": self._usage()}

    def _choice(self, choice: Choice, text: str, tokens: Sequence[DecodedToken], echo: bool) -> Document:
        """A choice with its new text and tokens, preceded by its prompt if `echo`."""
        if self.max_tokens == 0:
            text, tokens = "", ()
        first = None
        if echo and self.scores_prompt:
            decoder = ByteDecoder(self.served.tokenizer, bos_prefix=self._prefixes[choice.index // self.n])
            first = next(map(decoder.push, choice.prompt[:1]), None)
            scored = [decoder.push(each.token, each.logprob, each.top) for each in choice.prompt_tokens]
            tokens = (*scored, *tokens)
        return {
            "index": choice.index,
            "text": self._echoed[choice.index] + text if echo else text,
            "logprobs": completion_logprobs(tokens, self.body.logprobs, first),
            "finish_reason": choice.finish,
        }

    def _usage(self) -> Document:
        return usage(self.prompts, self.choices if self.max_tokens else ())


class ChatCompletion(Generation):
    """`POST /v1/chat/completions`. The arguments are those of `Generation`."""

    def __init__(
        self, body: ChatRequest, served: ServedModel, config: ServeConfig, limits: Limits, clock: Clock
    ) -> None:
        super().__init__(body, served, config, limits, clock)
        self.body = body
        self.prompt: Prompt = [], None

    async def submit(self, request: Request) -> None:
        body, served = self.body, self.served
        messages = [{"role": message.role, "content": message.content} for message in body.messages]
        # In a thread: a template may take a second, and other requests go on meanwhile.
        self.prompt = await asyncio.to_thread(served.conversation, messages)
        served.check(self.prompt, "messages")
        max_tokens = body.max_completion_tokens or body.max_tokens or served.room(self.prompt)
        if body.top_logprobs is not None and not body.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs = true", param="top_logprobs")
        alternatives = (body.top_logprobs or 0) if body.logprobs else None
        prompts = [self.prompt] * (body.n or 1)
        samplings = sampling_configs(body, served, self.config, len(prompts), max_tokens, alternatives)
        await self._start(request, prompts, samplings, False, "messages")
        self.choices = [Choice.start(index, self.prompt[0], served) for index in range(len(prompts))]

    async def _events(self) -> AsyncIterator[Document]:
        head = _head("chatcmpl", "chat.completion.chunk", self.model)
        for choice in self.choices:
            yield head | {"choices": [_delta(choice.index, {"role": "assistant", "content": ""})]}
        async for number, event in self._generated:
            choice = self.choices[number]
            choice.add(event)
            if event.text or self.body.logprobs:
                logprobs = self._logprobs(choice.tokens[-1:])
                yield head | {"choices": [_delta(number, {"content": event.text}, logprobs)]}
            if event.finish is not None:
                yield head | {"choices": [_delta(number, {}, finish=choice.finish)]}
        if self.include_usage:
            yield head | {"choices": [], "usage": usage([self.prompt], self.choices)}

    def _document(self) -> Document:
        choices = [
            {
                "index": choice.index,
                "message": {"role": "assistant", "content": choice.text, "refusal": None},
                "logprobs": self._logprobs(choice.tokens),
                "finish_reason": choice.finish,
            }
            for choice in self.choices
        ]
        head = _head("chatcmpl", "chat.completion", self.model)
        return head | {"choices": choices, "usage": usage([self.prompt], self.choices)}

    def _logprobs(self, tokens: Sequence[DecodedToken]) -> Document | None:
        return chat_logprobs(tokens, bool(self.body.logprobs))


def sampling_configs(
    body: Sampled, served: ServedModel, config: ServeConfig, count: int, max_tokens: int, alternatives: int | None
) -> list[SamplingConfig]:
    """One sampling per text, each with a seed of its own. Without a seed in the request, every request draws new ones.

    Args:
        body: the request.
        served: its model, whose config has the defaults.
        config: the server's, which may limit the number of tokens.
        count: how many texts.
        max_tokens: what the request asks for.
        alternatives: how many tokens to report with each sampled one; None: no log probabilities.

    Raises:
        ApiError: a value is impossible.
    """
    tokens = min(max_tokens, config.max_tokens or max_tokens)
    seed = secrets.randbits(62) if body.seed is None else body.seed % (1 << 62)
    try:
        first = body.sampling(tokens, alternatives, seed, served.model.config.decoding)
    except HeddleError as error:
        raise ApiError(400, str(error)) from None
    return [first.model_copy(update={"seed": seed + number}) for number in range(count)]


def _head(prefix: str, kind: str, model: str) -> Document:
    """The fields that all documents of an answer share."""
    return {"id": f"{prefix}-{secrets.token_hex(12)}", "object": kind, "created": int(time.time()), "model": model}


def _delta(index: int, delta: Document, logprobs: Document | None = None, finish: str | None = None) -> Document:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
