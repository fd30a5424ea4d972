"""Renders untrusted chat templates in a subprocess, which is killed when one takes too long."""

import json
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event, Lock, Timer
from typing import Any

from heddle.errors import HeddleError
from heddle.text.template import SECONDS

PROGRAM = Path(__file__).with_name("template.py")
START_TIMEOUT = 60  # seconds until a new process must answer


class SandboxedTemplate:
    """A chat template in a subprocess, with a second for each conversation and bounded memory.

    The process lives as long as this object. One that was killed is replaced on the next call.

    Args:
        template: the template, in Jinja.
        date: the time that `strftime_now` formats, as ISO 8601; None: the current time.

    Raises:
        HeddleError: the template is not valid Jinja, or compiling it takes too long.
    """

    def __init__(self, template: str, date: str | None = None) -> None:
        self.template, self.date = template, date
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._end: Any = None
        with self._lock:
            self._running()

    def render(self, messages: Sequence[Mapping[str, str]], variables: Mapping[str, Any]) -> str:
        """The text of a conversation.

        Raises:
            HeddleError: the template refuses it, fails, does not finish in time, or needs too much memory.
        """
        with self._lock:
            return self._exchange(self._running(), {"messages": list(messages), "variables": dict(variables)}, SECONDS)

    def _running(self) -> "subprocess.Popen[bytes]":
        """The process, which has compiled the template; start it if necessary."""
        if self._process is None:
            process = subprocess.Popen(
                command(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for this process alone
            )
            self._process, self._end = process, weakref.finalize(self, _kill, process)
            try:
                self._exchange(process, None, START_TIMEOUT)
                self._exchange(process, {"template": self.template, "date": self.date}, SECONDS)
            except HeddleError:
                self._stop()
                raise
        return self._process

    def _stop(self) -> None:
        """Kill the process; the next request starts another one."""
        self._process = None
        self._end()

    def _exchange(self, process: "subprocess.Popen[bytes]", request: Mapping[str, Any] | None, seconds: float) -> str:
        """Send a request and return its answer. Without a request: the first answer, which signals that the process is ready."""
        assert process.stdin is not None
        assert process.stdout is not None
        late, line = Event(), b""

        def stop() -> None:
            late.set()
            process.kill()

        timer = Timer(seconds, stop)
        timer.daemon = True
        try:
            timer.start()
            if request is not None:
                process.stdin.write(json.dumps(request).encode() + b"\n")
                process.stdin.flush()
            line = process.stdout.readline()
        except OSError:  # the process has ended
            pass
        finally:
            timer.cancel()
            timer.join()
            # Also after Ctrl-C: a late answer would be taken for the answer to the next request.
            if late.is_set() or not line.endswith(b"\n"):
                self._stop()
        if not line.endswith(b"\n"):
            outcome = f"did not finish within {seconds:g} s" if late.is_set() else "ended the process that renders it"
            raise HeddleError(f"the chat template {outcome}")
        answer = json.loads(line)
        if "error" in answer:
            raise HeddleError(answer["error"])
        text: str = answer["text"]
        return text


def command() -> list[str]:
    """The command of the subprocess. `-P`: do not import from the program's folder, whose modules shadow others."""
    return [sys.executable, "-P", str(PROGRAM)]


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process, if it still runs, and close its pipes."""
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):  # unsent data
                stream.close()
