"""A part of what `benchmarks/serving.py` does: fuzzed requests, streams whose clients leave, a server that is killed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from benchmarks.serving import fuzz, load
from heddle.config.serve import ServeConfig
from heddle.serve import ServedRun
from heddle.weights import load as load_run
from heddle.weights import save
from tests.serve.conftest import ENGINE, TOKENIZER, Server, models


@pytest.mark.thorough
def test_no_request_breaks_the_server(server: Server) -> None:
    pytest.importorskip("schemathesis")
    assert fuzz(server.url, 120)["failed"] == 0


def test_streams_whose_clients_leave(server: Server) -> None:
    outcome = load(server.url, "plain", streams=20, tokens=24, leave=0.4)
    assert 0 < outcome["left"] < 20


@pytest.mark.thorough
def test_a_killed_server_closes_its_streams_and_the_next_one_answers(tmp_path: Path) -> None:
    """How a server's process ends by itself is a test of tests/cli/test_serve.py."""
    save(models()["plain"], tmp_path / "loom", TOKENIZER)
    command = [sys.executable, "-m", "heddle", "serve", str(tmp_path / "loom"), "--port", "0"]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    request = {"model": "loom", "prompt": "warp", "max_tokens": 60, "logit_bias": {"97": 100}}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = next(line for line in process.stderr if line.startswith("serving"))
        url = re.findall(r"http://\S+", line)[0]
        with httpx2.stream("POST", f"{url}/completions", json={**request, "stream": True}) as stream:
            lines = stream.iter_lines()
            next(lines)
            process.kill()
            with pytest.raises(httpx2.RemoteProtocolError):
                list(lines)
    model, tokenizer = load_run(tmp_path / "loom", "cpu")
    assert tokenizer is not None
    following = Server(ServeConfig(engine=ENGINE), [ServedRun("loom", model.eval(), tokenizer)])
    try:
        answer = httpx2.post(f"{following.url}/v1/completions", json=request, timeout=30).json()
        assert answer["choices"][0]["text"] == "a" * 60
    finally:
        following.stop()
