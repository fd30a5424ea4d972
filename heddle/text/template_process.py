"""Chat templates that came from elsewhere are rendered apart: in a process that is ended when one takes too long."""

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
START = 60  # seconds until a new process must answer


class SandboxedTemplate:
    """A chat template in a process of its own, which has a second for each conversation, and bounded memory.

    The process starts with the first template and serves until this object is gone. One that was ended is replaced.

    Args:
        template: the template, in Jinja.
        date: what `strftime_now` formats, as ISO 8601; None: the present moment.

    Raises:
        HeddleError: it is not valid Jinja, or compiling it takes too long.
    """

    def __init__(self, template: str, date: str | None = None) -> None:
        self.template, self.date = template, date
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._end: Any = None
        with self._lock:
            self._started()

    def render(self, messages: Sequence[Mapping[str, str]], told: Mapping[str, Any]) -> str:
        """The text of a conversation.

        Raises:
            HeddleError: the template refuses it, fails, does not finish in time, or needs too much memory.
        """
        with self._lock:
            return self._ask(self._started(), {"messages": list(messages), "told": dict(told)}, SECONDS)

    def _started(self) -> "subprocess.Popen[bytes]":
        """The process, with the template."""
        if self._process is None:
            process = subprocess.Popen(
                command(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for this process alone
            )
            self._process, self._end = process, weakref.finalize(self, _ended, process)
            try:
                self._ask(process, None, START)
                self._ask(process, {"template": self.template, "date": self.date}, SECONDS)
            except HeddleError:
                self._forget()
                raise
        return self._process

    def _forget(self) -> None:
        """End the process; the next request starts another one."""
        self._process = None
        self._end()

    def _ask(self, process: "subprocess.Popen[bytes]", request: Mapping[str, Any] | None, seconds: float) -> str:
        """The answer to a request; the first one comes by itself."""
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
        except OSError:  # it has ended
            pass
        finally:
            timer.cancel()
            timer.join()
            # Also where Ctrl-C came: the answer that is left would be taken for the next one.
            if late.is_set() or not line.endswith(b"\n"):
                self._forget()
        if not line.endswith(b"\n"):
            said = f"did not finish within {seconds:g} s" if late.is_set() else "ended the process that renders it"
            raise HeddleError(f"the chat template {said}")
        answer = json.loads(line)
        if "error" in answer:
            raise HeddleError(answer["error"])
        text: str = answer["text"]
        return text


def command() -> list[str]:
    """What starts the process that renders. The folder of its program is not searched, where modules have the names of others."""
    return [sys.executable, "-P", str(PROGRAM)]


def _ended(process: "subprocess.Popen[bytes]") -> None:
    """End a process, if it has not, and forget it."""
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):  # what was not sent
                stream.close()
