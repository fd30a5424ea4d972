"""`heddle serve`."""

import importlib.util
import os
import signal
import socket
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated

from cyclopts import Parameter

from heddle.cli.models import compile_model, open_model, tokenizer_of
from heddle.cli.options import AllowHost, Compile, Device, Precision, Weights
from heddle.cli.output import find_run
from heddle.config.decoding import EngineConfig, WeightKind
from heddle.config.serve import ServeConfig
from heddle.errors import HeddleError, for_each
from heddle.serve.network import address_of, bind, is_loopback

REQUIRED = ("fastapi", "uvicorn", "prometheus_client")
DRAIN_SECONDS = 30  # for in-flight requests after SIGTERM
ABORT_SECONDS = 2  # of these, for requests to end with an error
DRAIN_MESSAGE = f"finishing in-flight requests, for at most {DRAIN_SECONDS} seconds; press Ctrl-C again to stop now\n"


def serve(
    *runs: str,
    host: str = "127.0.0.1",
    port: int = 8000,
    api_key: Annotated[str | None, Parameter(env_var="HEDDLE_API_KEY")] = None,
    allow_host: AllowHost = None,
    allow_origin: list[str] | None = None,
    rows: int = 64,
    queue: int = 256,
    chunk: int = 512,
    keep: int = 16,
    max_tokens: int | None = None,
    seconds: float = 600.0,
    weights: Weights = "trained",
    precision: Precision = "auto",
    compile: Compile = False,
    device: Device = "auto",
) -> None:
    """Serve models over an OpenAI-compatible HTTP API.

    Endpoints: /v1/completions, /v1/chat/completions, /v1/embeddings, /v1/models, /translate, /classify, /health, /metrics and
    /openapi.json. Ctrl-C or SIGTERM stops the server after in-flight requests are complete.

    Parameters
    ----------
    runs
        Run directories, or their names in runs/. A run's folder name is its model name in the API.
    host
        The address to listen on. Addresses other than loopback, such as 0.0.0.0, require an API key.
    port
        The port to listen on; 0 picks a free one.
    api_key
        Key that clients must send as Authorization: Bearer KEY. Prefer the environment variable HEDDLE_API_KEY.
    allow_origin
        An allowed CORS origin, such as http://localhost:3000; may be repeated.
    rows
        Maximum batch size of each model, in sequences.
    queue
        Maximum number of queued sequences; further requests get status 429.
    chunk
        Prompt tokens per step (chunked prefill), so that long prompts do not stall other requests.
    keep
        Number of prompts in the prefix cache.
    max_tokens
        Maximum tokens per answer. Defaults to what fits into the context.
    seconds
        Time limit per request.
    """
    if missing := [name for name in REQUIRED if importlib.util.find_spec(name) is None]:
        raise HeddleError(f"heddle serve needs {', '.join(missing)}: pip install 'heddle-lm[serve]'")
    paths = for_each(find_run, runs)
    _check_names(paths)
    settings = {
        "api_key": api_key,
        "hosts": [*ServeConfig().hosts, *map(_host_header, (host, *(allow_host or [])))],
        "origins": allow_origin or [],
        "max_tokens": max_tokens,
        "seconds": seconds,
        "engine": EngineConfig.of({"rows": rows, "queue": queue, "chunk": chunk, "keep": keep}, where="serve"),
    }
    config = ServeConfig.of(settings, where="serve")
    if api_key is None and not is_loopback(host):
        raise HeddleError(f"{host} can be reached from other machines: set an API key with --api-key or HEDDLE_API_KEY")
    listener = bind(host, port)
    with listener:
        _run(paths, listener, config, device, weights, precision, compile)


def _run(
    paths: list[Path],
    listener: socket.socket,
    config: ServeConfig,
    device: str,
    weights: WeightKind,
    precision: str,
    compile: bool,
) -> None:
    import uvicorn

    from heddle.serve import ServedRun, make_app

    served = []
    for path in paths:
        ready = open_model(path, device, weights, precision)
        if compile and ready.model.decoder is not None:  # encoders have no decoding steps
            compile_model(ready.model, *((1,) if config.engine.rows == 1 else (1, 2)))
        created = int((path / "config.json").stat().st_mtime)
        data = ready.config.data
        served.append(
            ServedRun(
                path.resolve().name,
                ready.model.eval(),
                tokenizer_of(ready, path),
                created,
                ready.config.task,
                None if data is None else "pair" in data.columns(),
            )
        )
    app = make_app(served, config)
    address = address_of(listener)
    print(f"serving {', '.join(run.name for run in served)} at http://{address}/v1", file=sys.stderr, flush=True)
    options = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=DRAIN_SECONDS)

    class Server(uvicorn.Server):
        """Exits at once on a second Ctrl-C; uvicorn would cancel its tasks one by one, each with a traceback."""

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            if self.should_exit and sig == signal.SIGINT:
                os._exit(128 + sig)
            super().handle_exit(sig, frame)
            app.state.service.end_in(DRAIN_SECONDS - ABORT_SECONDS)
            os.write(sys.stderr.fileno(), DRAIN_MESSAGE.encode())

    Server(options).run(sockets=[listener])


def _host_header(host: str) -> str:
    """A host name as in a Host header: lower case, with brackets around an IPv6 address."""
    return f"[{host.lower()}]" if ":" in host and not host.startswith("[") else host.lower()


def _check_names(paths: list[Path]) -> None:
    """Refuse runs with equal names, which clients could not tell apart."""
    if not paths:
        raise HeddleError("give at least one run to serve; see `heddle runs`")
    paths_by_name: dict[str, Path] = {}
    for path in paths:
        if path.resolve().name in paths_by_name:
            raise HeddleError(
                f"{paths_by_name[path.resolve().name]} and {path} have the same name; rename one of the folders"
            )
        paths_by_name[path.resolve().name] = path
