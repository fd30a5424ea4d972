"""Standard streams that may be closed, broken or not text."""

import io
import os
import stat
import sys
from contextlib import suppress
from typing import TextIO

from heddle.errors import HeddleError


def open_closed() -> None:
    """Open the null device in place of a closed stream (`>&-`).

    Otherwise the next opened file would get the stream's descriptor, and with it the stream's output.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def settle() -> None:
    """Flush the streams, and drop the output of a broken pipe or a full disk.

    Otherwise Python would report the error again at exit.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            drop(stream)


def drop(stream: TextIO) -> None:
    """Redirect a stream to the null device."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


class Lasting(io.TextIOBase):
    """A stream that survives a broken pipe: it warns once on stderr and drops further output.

    Args:
        stream: stdout or stderr.
        then: what the command does next, for the warning.
    """

    def __init__(self, stream: TextIO, then: str) -> None:
        self.stream = stream
        self.then = then

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding; rich reads it."""
        return self.stream.encoding or "utf-8"

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        return self.stream.isatty()

    def fileno(self) -> int:
        """The file descriptor."""
        return self.stream.fileno()

    def write(self, text: str) -> int:
        """Write, or drop the text if the pipe is broken."""
        try:
            return self.stream.write(text)
        except BrokenPipeError:
            self._lose_reader()
            return len(text)

    def flush(self) -> None:
        """Flush; this is where a broken pipe usually shows."""
        try:
            self.stream.flush()
        except BrokenPipeError:
            self._lose_reader()

    def _lose_reader(self) -> None:
        drop(self.stream)
        if self.stream is not sys.stderr:
            print(f"heddle: output pipe closed; {self.then}", file=sys.stderr)


def read_input(encoding: str = "utf-8") -> str:
    """All of standard input, as text.

    Raises:
        HeddleError: it is not in this encoding.
    """
    raw = getattr(sys.stdin, "buffer", None)
    if raw is None:  # replaced by a text stream
        return str(sys.stdin.read())
    try:
        return str(raw.read(), encoding)
    except UnicodeDecodeError as error:
        name = "UTF-8" if encoding == "utf-8" else encoding
        raise HeddleError(f"standard input is not {name} at byte {error.start}; convert it with iconv") from None


def input_lines(encoding: str = "utf-8") -> list[str]:
    """The lines of standard input without line endings. As in a file, only a line feed ends a line.

    Raises:
        HeddleError: the input is not valid in this encoding.
    """
    *lines, last = read_input(encoding).removeprefix("\ufeff").split("\n")
    return [line.rstrip("\r") for line in (*lines, *([last] if last else []))]


def is_piped() -> bool:
    """Whether standard input is a pipe, a socket or a file, not a terminal or the null device."""
    try:
        kind = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):  # not backed by a file descriptor
        return not sys.stdin.isatty()
    return stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind) or stat.S_ISREG(kind)
