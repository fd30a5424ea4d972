"""A tenth of what `benchmarks/serving.py` does: fuzzed requests, streams whose clients leave, a server that is killed."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest

from benchmarks.serving import fuzz, load
from heddle.weights import save
from tests.serve.conftest import TOKENIZER, Server, models


def test_no_request_breaks_the_server(server: Server) -> None:
    pytest.importorskip("schemathesis")
    assert fuzz(server.url, 200)["failed"] == 0


def test_streams_whose_clients_leave(server: Server) -> None:
    outcome = load(server.url, "plain", streams=20, tokens=24, leave=0.4)
    assert 0 < outcome["left"] < 20


def test_a_killed_server_closes_its_streams_and_the_next_one_answers(tmp_path: Path) -> None:
    save(models()["plain"], tmp_path / "loom", TOKENIZER)

    def start() -> tuple[subprocess.Popen[str], str]:
        command = [sys.executable, "-m", "heddle", "serve", str(tmp_path / "loom"), "--port", "0"]
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
        process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        line = next(line for line in process.stderr if line.startswith("serving"))
        return process, re.findall(r"http://\S+", line)[0]

    request = {"model": "loom", "prompt": "warp", "max_tokens": 60, "logit_bias": {"97": 100}}
    process, url = start()
    with process, httpx2.stream("POST", f"{url}/completions", json={**request, "stream": True}) as stream:
        lines = stream.iter_lines()
        next(lines)
        process.kill()
        with pytest.raises(httpx2.RemoteProtocolError):
            list(lines)
    process, url = start()
    with process:
        assert httpx2.post(f"{url}/completions", json=request).json()["choices"][0]["text"] == "a" * 60
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        process.wait(20)
        assert time.monotonic() - began < 20
