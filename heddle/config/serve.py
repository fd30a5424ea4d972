"""Settings of a server: access, limits and engine."""

from typing import Annotated

from pydantic import AfterValidator, PositiveFloat, PositiveInt

from heddle.config.base import Config
from heddle.config.decoding import EngineConfig


def _sendable(key: str) -> str:
    """Refuse a key that cannot be sent in a header, such as one that was read together with a line break."""
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ValueError("a key must be printable ASCII without spaces or line breaks")
    return key


class ServeConfig(Config):
    """Settings of a server."""

    api_key: Annotated[str, AfterValidator(_sendable)] | None = None
    """The key that clients must send as `Authorization: Bearer KEY`; None: no key is needed."""
    hosts: tuple[str, ...] = ("localhost", "127.0.0.1", "[::1]")
    """Host names that requests may be addressed to, which keeps other web pages out."""
    origins: tuple[str, ...] = ()
    """Origins of web pages that may send requests from a browser (CORS)."""
    body: PositiveInt = 4 << 20
    """Maximum size of a request body, in bytes."""
    body_seconds: PositiveFloat = 30.0
    """Timeout for receiving a request body."""
    seconds: PositiveFloat = 600.0
    """Timeout for an answer."""
    max_tokens: PositiveInt | None = None
    """Maximum tokens of an answer; None: as many as fit into the context."""
    engine: EngineConfig = EngineConfig(rows=64, queue=256, chunk=512, keep=16)
    """Limits of the engine of each model."""
