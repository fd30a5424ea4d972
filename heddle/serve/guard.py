"""Checks before any request is handled: its host, its key, its size, and how long its body takes."""

import asyncio
import secrets
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from heddle.config.serve import ServeConfig
from heddle.serve.errors import ApiError

OPEN = ("/health",)  # paths that need no key


class Guard:
    """ASGI middleware that checks requests and reads their bodies within limits.

    Args:
        app: the application behind it.
        config: hosts, key and limits.
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
        pending: Message | None = {"type": "http.request", "body": body, "more_body": False}

        async def replay() -> Message:
            nonlocal pending
            if pending is None:
                return await receive()  # returns when the client disconnects
            message, pending = pending, None
            return message

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
        valid = secrets.compare_digest(key.strip().encode(), self.config.api_key.encode())
        if kind.lower() != "bearer" or not valid:
            challenge = {"WWW-Authenticate": "Bearer"}
            raise ApiError(
                401, "send the server's key: Authorization: Bearer KEY", "invalid_api_key", headers=challenge
            )

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > self.config.body:
            raise self._too_large()
        body = bytearray()
        try:
            async with asyncio.timeout(self.config.body_seconds):
                while True:
                    message = await receive()
                    body += message.get("body", b"")
                    if len(body) > self.config.body:
                        raise self._too_large()
                    if message["type"] == "http.disconnect" or not message.get("more_body"):
                        return bytes(body)
        except TimeoutError:
            raise ApiError(
                408, f"the body did not arrive within {self.config.body_seconds:g} seconds", "timeout"
            ) from None

    def _too_large(self) -> ApiError:
        return ApiError(413, f"the body is larger than {self.config.body} bytes", "body_too_large")
