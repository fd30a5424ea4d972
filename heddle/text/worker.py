"""The subprocess of `heddle.text.processes`: it receives texts and sends ids through pipes.

A message is a list of byte strings: their number, the length of each, then all of them. Numbers are unsigned, 8 bytes, little
endian. Nothing is pickled.
"""

import os
import struct
import sys
import traceback
from array import array
from collections.abc import Sequence
from typing import IO, Literal

from heddle.errors import HeddleError
from heddle.text.tokenizer import Tokenizer, load_tokenizer

# Strings may have lone surrogates; the tokenizer in this process reports them, as it would in the other.
ENCODING: tuple[Literal["utf-8"], Literal["surrogatepass"]] = ("utf-8", "surrogatepass")
IDS: Literal["I"] = "I"  # 32 bits
READY, ENCODED, REFUSED, FAILED = b"ready", b"encoded", b"refused", b"failed"


def send(stream: IO[bytes], parts: Sequence[bytes | memoryview]) -> None:
    """Write a message."""
    views = [memoryview(part).cast("B") for part in parts]
    stream.write(struct.pack(f"<{len(views) + 1}Q", len(views), *map(len, views)))
    for view in views:
        stream.write(view)
    stream.flush()


def receive(stream: IO[bytes]) -> list[bytes]:
    """Read a message.

    Raises:
        EOFError: the other process has closed the pipe.
    """
    (count,) = struct.unpack("<Q", _exactly(stream, 8))
    lengths = struct.unpack(f"<{count}Q", _exactly(stream, 8 * count))
    return [_exactly(stream, length) for length in lengths]


def _exactly(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data


def answer(tokenizer: Tokenizer, request: Sequence[bytes]) -> list[bytes | memoryview]:
    """The ids of texts, or the error of the first that cannot be encoded."""
    try:
        # One by one: the caller has a process for every core.
        return [ENCODED, *(memoryview(array(IDS, tokenizer.encode(text.decode(*ENCODING)))) for text in request)]
    except HeddleError as error:
        return [REFUSED, str(error).encode(*ENCODING)]
    except Exception:  # raised again in the other process
        return [FAILED, traceback.format_exc().encode(*ENCODING)]


def serve(path: str, requests: IO[bytes], answers: IO[bytes]) -> None:
    """Encode with the tokenizer of a file until there are no more requests. The first answer is its fingerprint."""
    tokenizer = load_tokenizer(path)
    try:
        send(answers, [READY, tokenizer.fingerprint().encode()])
        while True:
            send(answers, answer(tokenizer, receive(requests)))
    except (EOFError, BrokenPipeError):
        return


def main() -> None:
    """Serve on the standard streams; what libraries print goes to standard error."""
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        serve(sys.argv[1], sys.stdin.buffer, answers)
