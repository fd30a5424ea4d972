"""What a server counts, for Prometheus."""

import time
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import Message, Receive, Scope, Send

from heddle.serve.served import ServedModel

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """Counts of one server.

    Args:
        served: its models, by name.
    """

    def __init__(self, served: Mapping[str, ServedModel]) -> None:
        self.registry = CollectorRegistry()
        labels, registry = ["model_name"], self.registry
        for name, what, of in (
            ("heddle:num_requests_running", "Texts that grow.", "growing"),
            ("heddle:num_requests_waiting", "Texts that wait.", "waiting"),
        ):
            gauge = Gauge(name, what, labels, registry=registry)
            for model, each in served.items():
                gauge.labels(model).set_function(partial(getattr, each.worker, of))
        self.requests = Counter(
            "heddle:requests", "Answers by endpoint and status.", ["path", "code"], registry=registry
        )
        self.read = Counter("heddle:prompt_tokens", "Tokens of prompts.", labels, registry=registry)
        self.drawn = Counter("heddle:generation_tokens", "Tokens drawn.", labels, registry=registry)
        self.first = Histogram(
            "heddle:time_to_first_token_seconds", "To the first token.", labels, buckets=SECONDS, registry=registry
        )
        self.next = Histogram(
            "heddle:inter_token_latency_seconds", "Between tokens.", labels, buckets=SECONDS, registry=registry
        )
        self.whole = Histogram(
            "heddle:e2e_request_latency_seconds", "To the last token.", labels, buckets=SECONDS, registry=registry
        )

    def clock(self, model: str) -> "Clock":
        """A clock for the texts of one request."""
        return Clock(self, model)

    def text(self) -> bytes:
        """Everything, in Prometheus's text format."""
        return generate_latest(self.registry)


class Counted:
    """ASGI middleware that counts answers, also those of middleware behind it.

    Args:
        app: the application behind it.
        metrics: what counts.
        paths: of the endpoints; others are counted together, so that nobody can make up labels.
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
        self.began = time.perf_counter()
        self.last: dict[int, float] = {}

    def prompt(self, tokens: int) -> None:
        """Count the prompts' tokens."""
        self.metrics.read.labels(self.model).inc(tokens)

    def token(self, text: int) -> None:
        """Count one token of a text."""
        now = time.perf_counter()
        if text in self.last:
            self.metrics.next.labels(self.model).observe(now - self.last[text])
        else:
            self.metrics.first.labels(self.model).observe(now - self.began)
        self.last[text] = now
        self.metrics.drawn.labels(self.model).inc()

    def end(self) -> None:
        """All texts have ended."""
        self.metrics.whole.labels(self.model).observe(time.perf_counter() - self.began)
