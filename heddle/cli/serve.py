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
from heddle.cli.network import address_of, bind, is_loopback
from heddle.cli.output import find_run
from heddle.config.decoding import EngineConfig, WeightKind
from heddle.config.serve import ServeConfig
from heddle.errors import HeddleError

NEEDED = ("fastapi", "uvicorn", "prometheus_client")
DRAIN = 30  # seconds that answers may go on after SIGTERM
ENDING = 2  # of these, in which they end with an error
STOPPING = f"answers that have begun go on to their ends, for {DRAIN} seconds at most; Ctrl-C ends them at once\n"


def serve(
    *runs: str,
    host: str = "127.0.0.1",
    port: int = 8000,
    api_key: Annotated[str | None, Parameter(env_var="HEDDLE_API_KEY")] = None,
    allow_host: list[str] | None = None,
    allow_origin: list[str] | None = None,
    rows: int = 64,
    queue: int = 256,
    chunk: int = 512,
    keep: int = 16,
    max_tokens: int | None = None,
    seconds: float = 600.0,
    weights: WeightKind = "trained",
    compile: bool = False,
    device: str = "auto",
) -> None:
    """Serve runs over HTTP, with the endpoints of OpenAI's API.

    Texts and conversations: /v1/completions, /v1/chat/completions; vectors: /v1/embeddings; and /translate, /classify, /v1/models,
    /health, /metrics, /openapi.json. Ctrl-C or SIGTERM ends the server when the answers that have begun are complete.

    Parameters
    ----------
    runs
        Run directories, or their names in runs/. Clients call a run by the name of its folder.
    host
        The address to listen on. Any but a loopback address, such as 127.0.0.1, needs a key.
    port
        The port to listen on; 0 takes a free one.
    api_key
        What clients must send: Authorization: Bearer KEY. Better in the environment, as HEDDLE_API_KEY.
    allow_host
        Another host name that requests may be addressed to; may be repeated.
    allow_origin
        An origin whose scripts may send requests, such as http://localhost:3000; may be repeated.
    rows
        Texts that each model generates at the same time.
    queue
        Texts that may wait; more are answered with 429.
    chunk
        Tokens of prompts to read in each step, so that long prompts do not hold up other texts.
    keep
        Prompts whose states are kept for later ones that begin alike.
    max_tokens
        Longest answer, in tokens. Defaults to what fits into the context.
    seconds
        How long an answer may take.
    weights
        int8 or int4: round the weights, which takes less memory on a CPU, and less time with one text at once. See
        docs/serving.md for what it costs.
    compile
        Compile the decoding steps first, which takes about half a minute for one text and as much for several: then a small
        model answers faster on most CPUs, see docs/serving.md. Needs a C++ compiler.
    device
        auto, cpu, cuda or mps.
    """
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise HeddleError(f"heddle serve needs {', '.join(missing)}: pip install 'heddle-lm[serve]'")
    names = [find_run(run) for run in runs]
    _check_names(names)
    settings = {
        "api_key": api_key,
        "hosts": [*ServeConfig().hosts, *map(_as_sent, (host, *(allow_host or [])))],
        "origins": allow_origin or [],
        "max_tokens": max_tokens,
        "seconds": seconds,
        "engine": EngineConfig.of({"rows": rows, "queue": queue, "chunk": chunk, "keep": keep}, where="serve"),
    }
    config = ServeConfig.of(settings, where="serve")
    if api_key is None and not is_loopback(host):
        raise HeddleError(f"{host} can be reached from other machines: set a key with --api-key or HEDDLE_API_KEY")
    listening = bind(host, port)
    with listening:
        _run(names, listening, config, device, weights, compile)


def _run(
    names: list[Path], listening: socket.socket, config: ServeConfig, device: str, weights: WeightKind, compile: bool
) -> None:
    import uvicorn

    from heddle.serve import ServedRun, make_app

    served = []
    for path in names:
        ready = open_model(path, device, weights)
        if compile and ready.model.decoder is not None:  # encoders have no steps
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
    where = address_of(listening)
    print(f"serving {', '.join(run.name for run in served)} at http://{where}/v1", file=sys.stderr, flush=True)
    options = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=DRAIN)

    class Server(uvicorn.Server):
        """A second Ctrl-C ends it at once; uvicorn would end its tasks one by one, each with a traceback."""

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            if self.should_exit and sig == signal.SIGINT:
                os._exit(128 + sig)
            super().handle_exit(sig, frame)
            app.state.service.end_in(DRAIN - ENDING)
            os.write(sys.stderr.fileno(), STOPPING.encode())

    Server(options).run(sockets=[listening])


def _as_sent(host: str) -> str:
    """A host name as clients send it: in lower case, and an IPv6 address in brackets."""
    return f"[{host.lower()}]" if ":" in host and not host.startswith("[") else host.lower()


def _check_names(paths: list[Path]) -> None:
    """Refuse two runs of one name, which clients could not tell apart.

    Raises:
        HeddleError: there are two, or there is no run at all.
    """
    if not paths:
        raise HeddleError("name at least one run to serve; `heddle runs` lists the runs here")
    seen: dict[str, Path] = {}
    for path in paths:
        if path.resolve().name in seen:
            raise HeddleError(f"{seen[path.resolve().name]} and {path} have one name; rename one of the folders")
        seen[path.resolve().name] = path
