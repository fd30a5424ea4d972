"""The application: OpenAI's endpoints for texts, conversations and vectors, and heddle's own for translations and classes."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
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
from heddle.generate.translate import translate
from heddle.predict.classify import check_threshold, classify
from heddle.predict.embed import embed, prompt_of, vector_width
from heddle.predict.rows import check_texts
from heddle.serve.answers import (
    embeddings,
)
from heddle.serve.completions import ChatCompletion, Completion, Document
from heddle.serve.errors import ERRORS, ApiError, invalid_request
from heddle.serve.guard import Guard
from heddle.serve.metrics import Counted, Metrics
from heddle.serve.requests import (
    ChatRequest,
    ClassifyRequest,
    CompletionRequest,
    EmbeddingRequest,
    TranslateRequest,
    texts_of,
)
from heddle.serve.served import ServedModel, ServedRun, as_api_error
from heddle.serve.streaming import ClientLeft, Limits, while_connected

USAGE = ("prompt_tokens", "total_tokens")


def make_app(runs: Sequence[ServedRun], config: ServeConfig) -> FastAPI:
    """The application that serves these runs. It starts one thread per run, which ends when the application shuts down.

    Raises:
        HeddleError: there is no run, or two runs have the same name.
    """
    names = [run.name for run in runs]
    if not names:
        raise HeddleError("name at least one run to serve")
    if duplicate := next((name for name in names if names.count(name) > 1), None):
        raise HeddleError(f"two runs are called {duplicate!r}; rename one of their folders")
    service = Service(runs, config)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.loop = asyncio.get_running_loop()
        yield
        service.drain()

    app = FastAPI(title="heddle", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.state.service = service
    app.openapi = partial(_openapi, app, names)  # type: ignore[method-assign]
    for method, path, endpoint in service.routes():
        response_class = PlainTextResponse if endpoint == service.prometheus else JSONResponse
        responses = ERRORS | (STREAMED if endpoint in (service.complete, service.chat) else {})
        app.add_api_route(
            path, endpoint, methods=[method], response_model=None, responses=responses, response_class=response_class
        )
    handlers: list[tuple[Any, Callable[..., Any]]] = [
        (ApiError, lambda request, error: error.answer()),
        (RequestValidationError, lambda request, error: invalid_request(error).answer()),
        (
            HTTPException,
            lambda request, error: ApiError(error.status_code, f"{error.detail}: {request.url.path}").answer(),
        ),
        (ClientLeft, lambda request, error: Response(status_code=499)),
        (Exception, lambda request, error: ApiError(500, "internal error; see the server's log").answer()),
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


def _openapi(app: FastAPI, names: Sequence[str]) -> Document:
    """The OpenAPI description of the endpoints, with the names of the models."""
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
            ("GET", "/metrics", self.prometheus),
            ("GET", "/v1/models", self.models),
            ("GET", "/v1/models/{name:path}", self.one_model),
            ("POST", "/v1/completions", self.complete),
            ("POST", "/v1/chat/completions", self.chat),
            ("POST", "/v1/embeddings", self.embed),
            ("POST", "/translate", self.translate),
            ("POST", "/classify", self.classify),
        ]

    def end_in(self, seconds: float) -> None:
        """End all unfinished answers with an error in so many seconds. May be called from any thread and from a signal handler."""
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self.loop.call_later, seconds, self.limits.end)

    def drain(self) -> None:
        """Admit no more requests. Texts in progress are finished."""
        for served in self.served.values():
            served.worker.drain()

    async def health(self) -> Response:
        """200 if every model is ready, else 503."""
        states = {served.worker.state for served in self.served.values()}
        status = "ready" if states == {"ready"} else "broken" if "broken" in states else "draining"
        return JSONResponse({"status": status}, 200 if status == "ready" else 503)

    async def prometheus(self) -> Response:
        """Counts and times, for Prometheus."""
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def models(self) -> Document:
        """The models."""
        return {"object": "list", "data": [self._card(served) for served in self.served.values()]}

    async def one_model(self, name: str) -> Document:
        """One model."""
        return self._card(self._find(name))

    async def complete(self, body: CompletionRequest, request: Request) -> Any:
        """Continue texts (OpenAI's completions)."""
        served, clock = self._find(body.model), self.metrics.clock(body.model)
        return await Completion(body, served, self.config, self.limits, clock).answer(request)

    async def chat(self, body: ChatRequest, request: Request) -> Any:
        """Answer in a conversation (OpenAI's chat completions)."""
        served, clock = self._find(body.model), self.metrics.clock(body.model)
        return await ChatCompletion(body, served, self.config, self.limits, clock).answer(request)

    async def embed(self, body: EmbeddingRequest, request: Request) -> Document:
        """Embed texts (OpenAI's embeddings): the mean of the last hidden vectors, or the output of the model's embedding head."""
        served, texts = self._find(body.model), texts_of(body.input)
        if body.dimensions not in (None, width := vector_width(served.model.config, body.pooling)):
            raise ApiError(400, f"the model's vectors have {width} numbers", param="dimensions")
        with as_api_error("prompt" if body.prompt_name is None else "prompt_name"):
            prompt = prompt_of(served.model.config, body.prompt, body.prompt_name)

        def embed_batch(batch: Sequence[str]) -> list[Any]:
            check_texts("embed", batch)
            ids = served.tokenizer.encode_batch([prompt + text for text in batch])
            result = embed(served.model, served.tokenizer, batch, body.pooling, body.normalise, prompt=prompt)
            return list(zip(result.vectors, result.cut, map(len, ids), strict=True))

        vectors = await self._call(request, served, embed_batch, texts, "input")
        data, tokens = embeddings(vectors, body.encoding_format), sum(count for *_, count in vectors)
        self.metrics.prompt_tokens.labels(body.model).inc(tokens)
        return {"object": "list", "data": data, "model": body.model, "usage": dict.fromkeys(USAGE, tokens)}

    async def translate(self, body: TranslateRequest, request: Request) -> Document:
        """Translate texts by beam search."""
        served, texts = self._find(body.model), texts_of(body.text)
        served.check_translates()
        with as_api_error("beams"):
            beam = body.beam_config(self.config.max_tokens, served.model.config.decoding)

        def translate_batch(batch: Sequence[str]) -> list[Any]:
            return translate(served.model, served.tokenizer, batch, beam, body.crop, special=served.sentinels)

        translations = await self._call(request, served, translate_batch, texts, "text")
        return {"model": body.model, "translations": [dataclasses.asdict(best) for best, *_ in translations]}

    async def classify(self, body: ClassifyRequest, request: Request) -> Document:
        """Classify texts, with probabilities."""
        served = self._find(body.model)
        items = served.pairs(texts_of(body.text), None if body.pair is None else texts_of(body.pair))
        if body.threshold is not None:
            with as_api_error("threshold"):
                check_threshold(served.model, body.threshold)

        def classify_batch(batch: Sequence[Any]) -> list[Any]:
            check_texts("classify", batch)
            return classify(served.model, served.tokenizer, batch, threshold=body.threshold)

        predictions = await self._call(request, served, classify_batch, items, "text")
        return {"model": body.model, "predictions": [dataclasses.asdict(prediction) for prediction in predictions]}

    async def _call(
        self, request: Request, served: ServedModel, function: Callable[[Any], Any], items: Sequence[Any], param: str
    ) -> list[Any]:
        """The results of a function for all items, timed, unless the client leaves."""
        clock = self.metrics.clock(served.run.name)
        results = await while_connected(request, served.call(function, items, param), self.limits)
        clock.end()
        return results

    def _find(self, name: str) -> ServedModel:
        if name not in self.served:
            message = f"there is no model {name[:100]!r}; there are: {', '.join(self.served)}"
            raise ApiError(404, message, "model_not_found", "model")
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
