"""Running a program of the tests, such as `tests/nn/graphs_of_mixers.py`, in a process of its own.

There nothing checks shapes, since torch.compile cannot trace the checks; it runs in the repository's root.
"""

import atexit
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def call(name: str, *words: object) -> list[str]:
    """The command that runs `tests.<name>`."""
    return [sys.executable, "-W", "ignore", "-m", f"tests.{name}", *map(str, words)]


def environment(**more: str) -> dict[str, str]:
    """What it finds in its environment."""
    return {**os.environ, "HEDDLE_CHECKED": "", "PYTHONPATH": str(ROOT), **more}


def heddle(*words: str, cwd: Path | None = None, **more: Any) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own, as a user calls it; what it prints, and its exit code."""
    return finished([sys.executable, "-m", "heddle", *words], cwd=cwd, **more)


def finished(words: list[str], **more: Any) -> subprocess.CompletedProcess[str]:
    """Any other program that finds heddle, at its end."""
    options = {"env": {**os.environ, "PYTHONPATH": str(ROOT)}, "capture_output": True, "text": True, "check": False}
    return subprocess.run(words, **{**options, **more})


def run(name: str, *words: object, stdin: str = "") -> str:
    """What it prints; an error if it fails."""
    made = call(name, *words)
    done = subprocess.run(made, cwd=ROOT, env=environment(), input=stdin, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def traced(name: str, *words: object, stdin: str = "", **more: str) -> str:
    """The same of a program that traces or compiles, in a fork of `tests/tracer.py`."""
    return forked("tracer", name, *words, stdin=stdin, **more)


def forked(parent: str, name: str, *words: object, stdin: str = "", **more: str) -> str:
    """The same in a fork of a process that has imported what it needs (`tests/forks.py`); `more` is added to its environment."""
    process = _parent(parent)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps([f"tests.{name}", [str(word) for word in words], stdin, more]) + "\n")
    process.stdin.flush()
    code, output, errors = json.loads(process.stdout.readline())
    assert code == 0, errors[-3000:]
    return str(output)


@cache
def _parent(name: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        call(name), cwd=ROOT, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(process.communicate)  # its input ends, and so does it
    return process
