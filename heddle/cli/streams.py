"""The program's standard streams where they are not as usual: closed, given up by their reader, or no text."""

import io
import os
import sys
from contextlib import suppress
from typing import TextIO

from heddle.errors import HeddleError


def open_closed() -> None:
    """Give a stream that was closed (`>&-`) the null device.

    The next file that is opened would get its number otherwise, and with it what others print.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def settle() -> None:
    """Write out what is still held back; a stream that nobody reads any more, or that is full, drops it.

    Python would complain of it at exit, after everything that could be said has been.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            drop(stream)


def drop(stream: TextIO) -> None:
    """From now on, what is written to this stream goes nowhere."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


class Lasting(io.TextIOBase):
    """A stream that a command outlives: when its reader has gone, one line on stderr says so, and the rest goes nowhere.

    Args:
        stream: stdout or stderr.
        then: what the command does without it, for that line.
    """

    def __init__(self, stream: TextIO, then: str) -> None:
        self.stream = stream
        self.then = then

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """As rich asks for it."""
        return self.stream.encoding or "utf-8"

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        return self.stream.isatty()

    def fileno(self) -> int:
        """The stream's number."""
        return self.stream.fileno()

    def write(self, text: str) -> int:
        """Write, or drop what nobody reads."""
        try:
            return self.stream.write(text)
        except BrokenPipeError:
            self._go_on()
            return len(text)

    def flush(self) -> None:
        """As `write`: this is where a pipe usually breaks."""
        try:
            self.stream.flush()
        except BrokenPipeError:
            self._go_on()

    def _go_on(self) -> None:
        drop(self.stream)
        if self.stream is not sys.stderr:
            print(f"heddle: nobody reads the output any more; {self.then}", file=sys.stderr)


def read_input() -> str:
    """All of standard input, as text.

    Raises:
        HeddleError: it is not UTF-8.
    """
    raw = getattr(sys.stdin, "buffer", None)
    if raw is None:  # somebody put a stream of text there
        return str(sys.stdin.read())
    try:
        return str(raw.read(), "utf-8")
    except UnicodeDecodeError as error:
        raise HeddleError(f"standard input is not UTF-8 at byte {error.start}; convert it with iconv") from None
