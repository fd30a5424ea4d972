"""`heddle serve`: a real process that answers, drains and ends; what it refuses before it loads anything."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from .conftest import Heddle


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "give at least one run"),
        (["nowhere"], "no run 'nowhere'"),
        (["a", "a"], "have the same name"),
        (["a", "--host", "0.0.0.0"], "set an API key with --api-key"),
        (["a", "--api-key", "se same"], "printable ASCII without spaces"),
        (["a", "--api-key", "sésame"], "printable ASCII without spaces"),
        (["a", "--api-key", "sesame\n"], "printable ASCII without spaces"),
        (["a", "--rows", "0"], "rows = 0"),
        (["a", "--port", "99999"], "cannot listen on 127.0.0.1:99999"),
        (["a", "--host", "256.1.1.1", "--api-key", "k"], "cannot listen on 256.1.1.1"),
    ],
)
def test_what_cannot_be_served(heddle: Heddle, run_a: Path, args: list[str], message: str) -> None:
    result = heddle("serve", *args)
    assert result.code == 2
    assert result.err.count("\n") == 1
    assert message in result.err


def test_a_port_in_use(heddle: Heddle, run_a: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        message = heddle("serve", "a", "--port", str(taken.getsockname()[1]))
    assert message.code == 2
    assert "the port is in use; choose another with --port" in message.err


@contextmanager
def serving(run: Path, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process that serves a run, and where."""
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""} | environment
    command = [sys.executable, "-m", "heddle", "serve", str(run), "--port", "0"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = next(line for line in process.stderr if line.startswith("serving a at "))
        yield process, re.findall(r"http://\S+", line)[0]


REQUEST = {"model": "a", "prompt": "warp", "max_tokens": 9, "stream": True, "seed": 1}


def test_it_answers_and_drains(run_a: Path) -> None:
    """SIGTERM while a text grows: the text is completed, then the process ends."""
    with serving(run_a, HEDDLE_API_KEY="sesame") as (process, url):
        key = {"authorization": "Bearer sesame"}
        with httpx2.stream("POST", f"{url}/completions", json=REQUEST, headers=key) as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("data: ")
            process.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert process.wait(30) in (0, 143, -signal.SIGTERM)


@pytest.mark.thorough
def test_a_second_interrupt_ends_it_at_once(run_a: Path) -> None:
    with serving(run_a) as (process, url):
        assert process.stderr is not None
        with httpx2.stream("POST", f"{url}/completions", json=REQUEST) as stream:
            lines = stream.iter_lines()
            next(lines)
            process.send_signal(signal.SIGINT)
            assert "finishing in-flight requests" in process.stderr.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 128 + signal.SIGINT
        assert process.stderr.read() == ""
