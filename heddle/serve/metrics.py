"""Metrics of a server, for Prometheus."""

import time
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import Message, Receive, Scope, Send

from heddle.serve.served import ServedModel

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """Metrics of one server.

    Args:
        served: its models, by name.
    """

    def __init__(self, served: Mapping[str, ServedModel]) -> None:
        self.registry = CollectorRegistry()
        labels, registry = ["model_name"], self.registry
        for name, description, attribute in (
            ("heddle:num_requests_running", "Texts in progress.", "running"),
            ("heddle:num_requests_waiting", "Texts in the queue.", "waiting"),
        ):
            gauge = Gauge(name, description, labels, registry=registry)
            for model, served_model in served.items():
                gauge.labels(model).set_function(partial(getattr, served_model.worker, attribute))
        self.requests = Counter(
            "heddle:requests", "Answers by endpoint and status.", ["path", "code"], registry=registry
        )
        self.prompt_tokens = Counter("heddle:prompt_tokens", "Tokens of prompts.", labels, registry=registry)
        self.generated_tokens = Counter("heddle:generation_tokens", "Tokens generated.", labels, registry=registry)
        self.first_token = Histogram(
            "heddle:time_to_first_token_seconds", "To the first token.", labels, buckets=SECONDS, registry=registry
        )
        self.between_tokens = Histogram(
            "heddle:inter_token_latency_seconds", "Between tokens.", labels, buckets=SECONDS, registry=registry
        )
        self.end_to_end = Histogram(
            "heddle:e2e_request_latency_seconds", "To the last token.", labels, buckets=SECONDS, registry=registry
        )

    def clock(self, model: str) -> "Clock":
        """A clock for the texts of one request."""
        return Clock(self, model)

    def text(self) -> bytes:
        """All metrics in Prometheus's text format."""
        return generate_latest(self.registry)


class Counted:
    """ASGI middleware that counts responses, including those of middleware behind it.

    Args:
        app: the application behind it.
        metrics: the counters.
        paths: paths of the endpoints. Others are counted together, so that a client cannot create labels.
    """

    def __init__(self, app: Any, metrics: Metrics, paths: Collection[str]) -> None:
        self.app, self.metrics, self.paths = app, metrics, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.metrics.requests.labels(path if path in self.paths else "other", message["status"]).inc()
            await send(message)

        await self.app(scope, receive, counted)


class Clock:
    """Times the tokens of one request."""

    def __init__(self, metrics: Metrics, model: str) -> None:
        self.metrics, self.model = metrics, model
        self.started = time.perf_counter()
        self.last: dict[int, float] = {}

    def prompt(self, tokens: int) -> None:
        """Count the prompts' tokens."""
        self.metrics.prompt_tokens.labels(self.model).inc(tokens)

    def token(self, text: int) -> None:
        """Count one token of a text."""
        now = time.perf_counter()
        if text in self.last:
            self.metrics.between_tokens.labels(self.model).observe(now - self.last[text])
        else:
            self.metrics.first_token.labels(self.model).observe(now - self.started)
        self.last[text] = now
        self.metrics.generated_tokens.labels(self.model).inc()

    def end(self) -> None:
        """All texts have ended."""
        self.metrics.end_to_end.labels(self.model).observe(time.perf_counter() - self.started)
