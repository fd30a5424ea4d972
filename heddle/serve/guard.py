"""What every request must pass before it is looked at: its host, its key, its size, the time its body takes."""

import asyncio
import secrets
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from heddle.config.serve import ServeConfig
from heddle.serve.errors import ApiError

OPEN = ("/health",)  # paths that need no key


class Guard:
    """ASGI middleware that refuses requests, and hands over whole bodies.

    Args:
        app: the application behind it.
        config: who may ask, and how much.
    """

    def __init__(self, app: Any, config: ServeConfig) -> None:
        self.app, self.config = app, config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            headers = {name.lower(): value for name, value in scope["headers"]}
            self._check_host(headers)
            if scope["path"] not in OPEN and scope["method"] != "OPTIONS":
                self._check_key(headers)
            body = await self._body(headers, receive)
        except ApiError as error:
            await error.answer()(scope, receive, send)
            return
        whole: Message | None = {"type": "http.request", "body": body, "more_body": False}

        async def replay() -> Message:
            nonlocal whole
            if whole is None:
                return await receive()  # tells of the client leaving
            first, whole = whole, None
            return first

        await self.app(scope, replay, send)

    def _check_host(self, headers: dict[bytes, bytes]) -> None:
        host = headers.get(b"host", b"").decode("latin-1")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if name.lower() not in self.config.hosts:
            raise ApiError(
                400, "this host name is not allowed; start the server with --allow-host NAME", "invalid_host"
            )

    def _check_key(self, headers: dict[bytes, bytes]) -> None:
        if self.config.api_key is None:
            return
        kind, _, key = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        right = secrets.compare_digest(key.strip().encode(), self.config.api_key.encode())
        if kind.lower() != "bearer" or not right:
            asked = {"WWW-Authenticate": "Bearer"}
            raise ApiError(401, "send the server's key: Authorization: Bearer KEY", "invalid_api_key", headers=asked)

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        said = headers.get(b"content-length", b"")
        if said.isdigit() and int(said) > self.config.body:
            raise self._too_large()
        parts = bytearray()
        try:
            async with asyncio.timeout(self.config.body_seconds):
                while True:
                    message = await receive()
                    parts += message.get("body", b"")
                    if len(parts) > self.config.body:
                        raise self._too_large()
                    if message["type"] == "http.disconnect" or not message.get("more_body"):
                        return bytes(parts)
        except TimeoutError:
            raise ApiError(
                408, f"the body did not arrive within {self.config.body_seconds:g} seconds", "timeout"
            ) from None

    def _too_large(self) -> ApiError:
        return ApiError(413, f"the body is larger than {self.config.body} bytes", "body_too_large")
