"""A server with tiny models, in a thread of this process, at a free port."""

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import httpx2
import pytest
import uvicorn
from openai import OpenAI

from heddle.config import EngineConfig, TransformerConfig, sized
from heddle.config.serve import ServeConfig
from heddle.config.tasks import ClassificationConfig
from heddle.model import Transformer, build
from heddle.serve import ServedRun, make_app
from heddle.text import train_tokenizer

TOKENIZER = train_tokenizer(
    "bytes", [], special=("<|endoftext|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>")
)
CONTEXT = 64
LOUD = {"initial": {"std": 0.3, "scale_residual": False}}
DECODER = sized(1, vocab_size=TOKENIZER.vocab_size, context=CONTEXT, dim=32)
STACK = {"depth": 1, "block": {"mixer": {"heads": 2}}}
BOTH = {
    "vocab_size": TOKENIZER.vocab_size,
    "dim": 16,
    "context": CONTEXT,
    "encoder": STACK,
    "decoder": {"depth": 1, "block": {"mixer": {"heads": 2}, "cross": {"heads": 2}}},
}
ENGINE = EngineConfig(rows=8, queue=16, chunk=32, keep=2)


def models() -> dict[str, Transformer]:
    configs: dict[str, Any] = {
        "plain": DECODER.override(LOUD),
        "chat": DECODER.override({**LOUD, "chat": {}}),
        "both": TransformerConfig.of({**BOTH, **LOUD}),
        "classifier": DECODER.override({"head": {"kind": "classifier", "classes": 2}}),
        "encoder": TransformerConfig.of(
            {**{k: v for k, v in BOTH.items() if k != "decoder"}, "head": {"kind": "none"}}
        ),
    }
    return {name: build(config, seed=1).eval() for name, config in configs.items()}


class Running:
    """An application that is served.

    Attributes:
        url: where it listens.
        app: the application.
    """

    def __init__(self, app: Any) -> None:
        self.app = app
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listening.getsockname()[1]}"
        self.server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=5))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.listening]}, daemon=True)
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(20)
        assert not self.thread.is_alive()


class Server(Running):
    """A running server.

    Attributes:
        models: what it serves, which only it may use.
    """

    def __init__(self, config: ServeConfig, runs: Sequence[ServedRun] | None = None) -> None:
        if runs is None:
            runs = [ServedRun(name, model, TOKENIZER, 1) for name, model in models().items()]
            runs += [
                ServedRun("pairs", models()["classifier"], TOKENIZER, task=ClassificationConfig(), pairs=True),
                ServedRun("texts", models()["classifier"], TOKENIZER, task=ClassificationConfig(), pairs=False),
            ]
        self.models = {run.name: run.model for run in runs}
        super().__init__(make_app(runs, config))

    def check_idle(self, name: str) -> None:
        """Wait until no text is left, not even in the worker's books."""
        worker, patience = self.app.state.service.served[name].worker, time.monotonic() + 10
        while left := (worker.running, worker.waiting, worker._requests, worker._numbers):
            if left == (0, 0, {}, {}):
                return
            assert time.monotonic() < patience, left
            time.sleep(0.02)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    started = Server(ServeConfig(engine=ENGINE, body=1 << 16, body_seconds=1.0, seconds=20.0))
    yield started
    started.stop()


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as openai_client:
        yield openai_client


@pytest.fixture(scope="module")
def http(server: Server) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.url, timeout=30) as connection:
        yield connection


@pytest.fixture
def start() -> Iterator[Callable[..., Server]]:
    """Start another server: `start(api_key="…")`."""
    running: list[Server] = []

    def call(**settings: Any) -> Server:
        running.append(Server(ServeConfig(**{"engine": ENGINE, **settings})))
        return running[-1]

    yield call
    for each in running:
        each.stop()
