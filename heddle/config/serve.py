"""A server, as data: where it listens, who may ask, and how much."""

from typing import Annotated

from pydantic import AfterValidator, PositiveFloat, PositiveInt

from heddle.config.base import Config
from heddle.config.decoding import EngineConfig


def _sendable(key: str) -> str:
    """Refuse a key that no client could send in a header, such as one that was read with the end of its line."""
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ValueError(
            "a key must consist of letters, digits and other signs of ASCII, without blanks or ends of lines"
        )
    return key


class ServeConfig(Config):
    """How a server answers."""

    api_key: Annotated[str, AfterValidator(_sendable)] | None = None
    """What clients must send as `Authorization: Bearer KEY`; None: nothing."""
    hosts: tuple[str, ...] = ("localhost", "127.0.0.1", "[::1]")
    """Host names that requests may be addressed to, which keeps other web pages out."""
    origins: tuple[str, ...] = ()
    """Web pages that browsers may let ask (CORS)."""
    body: PositiveInt = 4 << 20
    """Largest body of a request, in bytes."""
    body_seconds: PositiveFloat = 30.0
    """How long a body may take to arrive."""
    seconds: PositiveFloat = 600.0
    """How long an answer may take."""
    max_tokens: PositiveInt | None = None
    """Longest answer, in tokens; None: what fits into the context."""
    engine: EngineConfig = EngineConfig(rows=64, queue=256, chunk=512, keep=16)
    """How much each model does at once."""
