"""The application: OpenAI's endpoints for texts, conversations and vectors, and heddle's own for translations and classes."""

import asyncio
import dataclasses
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.exceptions import HTTPException

from heddle import __version__
from heddle.config.serve import ServeConfig
from heddle.errors import HeddleError
from heddle.generate.logprobs import SampledToken
from heddle.generate.translate import translate
from heddle.predict.classify import check_threshold, classify
from heddle.predict.embed import embed, prompt_of, vector_width
from heddle.predict.rows import check_texts
from heddle.serve.answers import (
    ByteDecoder,
    Choice,
    DecodedToken,
    chat_logprobs,
    completion_logprobs,
    embeddings,
    spell,
    usage,
)
from heddle.serve.errors import ERRORS, ApiError, unreadable
from heddle.serve.guard import Guard
from heddle.serve.metrics import Clock, Counted, Metrics
from heddle.serve.requests import (
    ChatRequest,
    ClassifyRequest,
    CompletionRequest,
    EmbeddingRequest,
    Sampled,
    TranslateRequest,
    prompts_of,
    texts_of,
)
from heddle.serve.served import Prompt, ServedModel, ServedRun, as_api_error, size
from heddle.serve.streaming import ClientLeft, Limits, Stream, while_connected

USED = ("prompt_tokens", "total_tokens")
DEFAULT_TOKENS = 16  # of a completion, as in OpenAI's API
MOST_PROMPTS = 2048
Document = dict[str, Any]


def make_app(runs: Sequence[ServedRun], config: ServeConfig) -> FastAPI:
    """The application that serves these runs. It starts one thread for each, which ends when the application shuts down.

    Raises:
        HeddleError: there is no run, or two have one name.
    """
    names = [run.name for run in runs]
    if not names:
        raise HeddleError("name at least one run to serve")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise HeddleError(f"two runs are called {twice!r}; rename one of their folders")
    service = Service(runs, config)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.loop = asyncio.get_running_loop()
        yield
        service.drain()

    app = FastAPI(title="heddle", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.state.service = service
    app.openapi = partial(_described, app, names)  # type: ignore[method-assign]
    for method, path, endpoint in service.routes():
        kind = PlainTextResponse if endpoint == service.measured else JSONResponse
        told = ERRORS | (STREAMED if endpoint in (service.complete, service.chat) else {})
        app.add_api_route(path, endpoint, methods=[method], response_model=None, responses=told, response_class=kind)
    handlers: list[tuple[Any, Callable[..., Any]]] = [
        (ApiError, lambda request, error: error.answer()),
        (RequestValidationError, lambda request, error: unreadable(error).answer()),
        (
            HTTPException,
            lambda request, error: ApiError(error.status_code, f"{error.detail}: {request.url.path}").answer(),
        ),
        (ClientLeft, lambda request, error: Response(status_code=499)),
        (Exception, lambda request, error: ApiError(500, "an error inside the server; its log says more").answer()),
    ]
    for kind, handler in handlers:
        app.add_exception_handler(kind, handler)
    app.add_middleware(Guard, config=config)
    if config.origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=config.origins, allow_methods=["GET", "POST"], allow_headers=["*"]
        )
    app.add_middleware(Counted, metrics=service.metrics, paths={path for _, path, _ in service.routes()})
    return app


def _described(app: FastAPI, names: Sequence[str]) -> Document:
    """The description of the endpoints, which says what the models are called."""
    if app.openapi_schema is None:
        app.openapi_schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
        for schema in app.openapi_schema["components"]["schemas"].values():
            if "model" in schema.get("properties", {}):
                schema["properties"]["model"]["enum"] = list(names)
    return app.openapi_schema


STREAMED: dict[int | str, dict[str, Any]] = {
    200: {"description": "The answer; with stream, server-sent events.", "content": {"text/event-stream": {}}}
}


class Service:
    """The endpoints.

    Args:
        runs: what to serve.
        config: limits.
    """

    def __init__(self, runs: Sequence[ServedRun], config: ServeConfig) -> None:
        self.config = config
        self.served = {run.name: ServedModel(run, config.engine) for run in runs}
        self.metrics = Metrics(self.served)
        self.limits = Limits(config.seconds)
        self.loop: asyncio.AbstractEventLoop | None = None  # once it is served

    def routes(self) -> list[tuple[str, str, Callable[..., Any]]]:
        """Method, path and function of every endpoint."""
        return [
            ("GET", "/health", self.health),
            ("GET", "/metrics", self.measured),
            ("GET", "/v1/models", self.models),
            ("GET", "/v1/models/{name:path}", self.one_model),
            ("POST", "/v1/completions", self.complete),
            ("POST", "/v1/chat/completions", self.chat),
            ("POST", "/v1/embeddings", self.embed),
            ("POST", "/translate", self.translate),
            ("POST", "/classify", self.classify),
        ]

    def end_in(self, seconds: float) -> None:
        """End the answers that go on after so many seconds, each with an error. Any thread may ask, and a signal's handler."""
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self.loop.call_later, seconds, self.limits.end)

    def drain(self) -> None:
        """Admit nothing more; texts that grow go on to their ends."""
        for each in self.served.values():
            each.worker.drain()

    async def health(self) -> Response:
        """Whether every model answers: 200, else 503."""
        states = {each.worker.state for each in self.served.values()}
        status = "ready" if states == {"ready"} else "broken" if "broken" in states else "draining"
        return JSONResponse({"status": status}, 200 if status == "ready" else 503)

    async def measured(self) -> Response:
        """Counts and times, for Prometheus."""
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def models(self) -> Document:
        """The models."""
        return {"object": "list", "data": [self._card(each) for each in self.served.values()]}

    async def one_model(self, name: str) -> Document:
        """One model."""
        return self._card(self._find(name))

    async def complete(self, body: CompletionRequest, request: Request) -> Any:
        """Continue texts (OpenAI's completions)."""
        served, clock = self._find(body.model), self.metrics.clock(body.model)
        given = prompts_of(body.prompt)
        count, echo = body.n or 1, bool(body.echo)
        if len(given) * count > MOST_PROMPTS:
            raise ApiError(400, f"{len(given)} prompts times n = {count} are more than {MOST_PROMPTS}", param="prompt")
        prompts = await asyncio.to_thread(lambda: [served.prompt(each) for each in given])  # which may be megabytes
        if body.max_tokens == 0 and not echo:
            raise ApiError(400, "max_tokens = 0 leaves nothing to answer, unless echo is set", param="max_tokens")
        tokens = DEFAULT_TOKENS if body.max_tokens is None else body.max_tokens
        every = [prompt for prompt in prompts for _ in range(count)]
        for prompt in prompts:
            served.check(prompt, "prompt")
        before = [spell(served.tokenizer, each) if isinstance(each, list) else each for each in given if echo]
        texts = [text for text in before or [""] * len(given) for _ in range(count)]
        silent = [served.bos_prefix(each) for each in given]
        wanted, head = body.logprobs, self._head("cmpl", "text_completion", body.model)
        heard = echo and wanted is not None

        def shown(choice: Choice, text: str, new: Sequence[DecodedToken], before: bool, finish: str | None) -> Document:
            """One choice, from a place in its text on; `before` is whether that place is the start of an echoed prompt."""
            told, first = tuple(new) if tokens else (), None
            if before and heard:
                spelling = ByteDecoder(served.tokenizer, silent=silent[choice.index // count])
                unpredicted = [SampledToken(id, 0.0) for id in choice.prompt[:1]]
                read = [spelling.push(each) for each in (*unpredicted, *choice.heard)]
                first, told = next(iter(read), None), (*read[1:], *told)
            return {
                "index": choice.index,
                "text": texts[choice.index] * before + (text if tokens else ""),
                "logprobs": completion_logprobs(told, wanted, first),
                "finish_reason": finish,
            }

        samplings = self._samplings(body, len(every), max(1, tokens), wanted)
        held = await self._begin(request, served.parts(every, samplings, heard, "prompt"))
        choices = [Choice.start(index, prompt[0], served, len(texts[index])) for index, prompt in enumerate(every)]
        parts = self._timed(held.parts, clock, every)
        if body.stream:

            async def events() -> AsyncIterator[Document]:
                async for number, part in parts:
                    choice = choices[number]
                    choice.add(part)
                    first = len(choice.tokens) == 1
                    yield head | {
                        "choices": [shown(choice, part.text, choice.tokens[-1:], first and echo, choice.finish)]
                    }
                if body.stream_options and body.stream_options.include_usage:
                    yield head | {"choices": [], "usage": usage(prompts, choices if tokens else ())}

            return Stream(events(), held.stack, self.limits)
        await self._gather(request, held, parts, choices)
        done = [shown(choice, choice.text, choice.tokens, echo, choice.finish) for choice in choices]
        return head | {"choices": done, "usage": usage(prompts, choices if tokens else ())}

    async def chat(self, body: ChatRequest, request: Request) -> Any:
        """Answer in a conversation (OpenAI's chat completions)."""
        served, clock = self._find(body.model), self.metrics.clock(body.model)
        messages = [{"role": each.role, "content": each.content} for each in body.messages]
        # In a thread of its own: a template may take a second, in which other requests go on.
        prompt = await asyncio.to_thread(served.conversation, messages)
        served.check(prompt, "messages")
        tokens = body.max_completion_tokens or body.max_tokens or served.room(prompt)
        every = [prompt] * (body.n or 1)
        if body.top_logprobs is not None and not body.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs = true", param="top_logprobs")
        alternatives = (body.top_logprobs or 0) if body.logprobs else None
        samplings = self._samplings(body, len(every), tokens, alternatives)
        held = await self._begin(request, served.parts(every, samplings, False, "messages"))
        choices = [Choice.start(index, prompt[0], served) for index in range(len(every))]
        parts = self._timed(held.parts, clock, every)

        def told(new: Sequence[DecodedToken]) -> Document | None:
            return chat_logprobs(new, bool(body.logprobs))

        if body.stream:
            head = self._head("chatcmpl", "chat.completion.chunk", body.model)

            async def events() -> AsyncIterator[Document]:
                for choice in choices:
                    first = {"role": "assistant", "content": ""}
                    yield head | {"choices": [_delta(choice.index, first, None, None)]}
                async for number, part in parts:
                    choices[number].add(part)
                    if part.text or body.logprobs:
                        delta = {"content": part.text}
                        yield head | {"choices": [_delta(number, delta, told(choices[number].tokens[-1:]), None)]}
                    if part.finish is not None:
                        yield head | {"choices": [_delta(number, {}, None, choices[number].finish)]}
                if body.stream_options and body.stream_options.include_usage:
                    yield head | {"choices": [], "usage": usage([prompt], choices)}

            return Stream(events(), held.stack, self.limits)
        await self._gather(request, held, parts, choices)
        done = [
            {
                "index": choice.index,
                "message": {"role": "assistant", "content": choice.text, "refusal": None},
                "logprobs": told(choice.tokens),
                "finish_reason": choice.finish,
            }
            for choice in choices
        ]
        head = self._head("chatcmpl", "chat.completion", body.model)
        return head | {"choices": done, "usage": usage([prompt], choices)}

    async def embed(self, body: EmbeddingRequest, request: Request) -> Document:
        """Vectors of texts (OpenAI's embeddings): the mean of the last hidden vectors, or what the model's head makes of them."""
        served, texts = self._find(body.model), texts_of(body.input)
        if body.dimensions not in (None, width := vector_width(served.model.config, body.pooling)):
            raise ApiError(400, f"the model's vectors have {width} numbers", param="dimensions")
        with as_api_error("prompt" if body.prompt_name is None else "prompt_name"):
            prompt = prompt_of(served.model.config, body.prompt, body.prompt_name)

        def vectors(some: Sequence[str]) -> list[Any]:
            check_texts("embed", some)
            ids = served.tokenizer.encode_batch([prompt + text for text in some])
            made = embed(served.model, served.tokenizer, some, body.pooling, body.normalise, prompt=prompt)
            return list(zip(made.vectors, made.cut, map(len, ids), strict=True))

        found = await self._made(request, served, vectors, texts, "input")
        data, read = embeddings(found, body.encoding_format), sum(tokens for *_, tokens in found)
        self.metrics.read.labels(body.model).inc(read)
        return {"object": "list", "data": data, "model": body.model, "usage": dict.fromkeys(USED, read)}

    async def translate(self, body: TranslateRequest, request: Request) -> Document:
        """Translate texts by beam search."""
        served, texts = self._find(body.model), texts_of(body.text)
        served.check_translates()
        with as_api_error("beams"):
            beam = body.searching(self.config.max_tokens, served.model.config.decoding)

        def translations(some: Sequence[str]) -> list[Any]:
            return translate(served.model, served.tokenizer, some, beam, body.crop, special=served.sentinels)

        found = await self._made(request, served, translations, texts, "text")
        return {"model": body.model, "translations": [dataclasses.asdict(best) for best, *_ in found]}

    async def classify(self, body: ClassifyRequest, request: Request) -> Document:
        """Classes of texts, with probabilities."""
        served = self._find(body.model)
        items = served.pairs(texts_of(body.text), None if body.pair is None else texts_of(body.pair))
        if body.threshold is not None:
            with as_api_error("threshold"):
                check_threshold(served.model, body.threshold)

        def predictions(some: Sequence[Any]) -> list[Any]:
            check_texts("classify", some)
            return classify(served.model, served.tokenizer, some, threshold=body.threshold)

        found = await self._made(request, served, predictions, items, "text")
        return {"model": body.model, "predictions": [dataclasses.asdict(each) for each in found]}

    async def _made(
        self, request: Request, served: ServedModel, function: Callable[[Any], Any], items: Sequence[Any], param: str
    ) -> list[Any]:
        """What a function makes of items, timed, unless the client leaves."""
        clock = self.metrics.clock(served.run.name)
        found = await while_connected(request, served.call(function, items, param), self.limits)
        clock.end()
        return found

    def _find(self, name: str) -> ServedModel:
        if name not in self.served:
            said = f"there is no model {name[:100]!r}; there are: {', '.join(self.served)}"
            raise ApiError(404, said, "model_not_found", "model")
        return self.served[name]

    def _card(self, served: ServedModel) -> Document:
        run = served.run
        return {
            "id": run.name,
            "object": "model",
            "created": run.created,
            "owned_by": "heddle",
            "max_model_len": served.context,
        }

    def _head(self, prefix: str, kind: str, model: str) -> Document:
        return {"id": f"{prefix}-{secrets.token_hex(12)}", "object": kind, "created": int(time.time()), "model": model}

    def _samplings(self, body: Sampled, count: int, tokens: int, alternatives: int | None) -> list[Any]:
        """One sampling per text. Without a seed, every request draws anew."""
        tokens = min(tokens, self.config.max_tokens or tokens)
        seed = secrets.randbits(62) if body.seed is None else body.seed % (1 << 62)
        try:
            first = body.sampling(tokens, alternatives, seed, self._find(body.model).model.config.decoding)
        except HeddleError as error:
            raise ApiError(400, str(error)) from None
        return [first.model_copy(update={"seed": seed + number}) for number in range(count)]

    async def _begin(self, request: Request, parts: AbstractAsyncContextManager[Any]) -> "_Held":
        """Admit texts, unless the client leaves. Whoever gets the result must close its stack."""
        stack = AsyncExitStack()
        entered = stack.enter_async_context(parts)
        return _Held(stack, await while_connected(request, entered, self.limits))

    async def _gather(
        self, request: Request, held: "_Held", parts: AsyncIterator[tuple[int, Any]], choices: Sequence[Choice]
    ) -> None:
        """Collect all parts, unless the client leaves."""

        async def work() -> None:
            async for number, part in parts:
                choices[number].add(part)

        async with held.stack:
            await while_connected(request, work(), self.limits)

    async def _timed(
        self, parts: AsyncIterator[tuple[int, Any]], clock: Clock, prompts: Sequence[Prompt]
    ) -> AsyncIterator[tuple[int, Any]]:
        clock.prompt(sum(map(size, prompts)))
        async for number, part in parts:
            clock.token(number)
            yield number, part
        clock.end()


@dataclasses.dataclass(frozen=True)
class _Held:
    """Texts that grow, and what ends them."""

    stack: AsyncExitStack
    parts: AsyncIterator[tuple[int, Any]]


def _delta(index: int, delta: Document, logprobs: Document | None, finish: str | None) -> Document:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
