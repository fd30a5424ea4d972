"""Answers that come piece by piece, and answers whose client has left."""

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, TypeVar

from fastapi import Request
from fastapi.sse import EventSourceResponse, format_sse_event

from heddle.serve.errors import ApiError

T = TypeVar("T")
GRACE = 5.0  # seconds in which a client that reads slowly may get the last events


class ClientLeft(Exception):
    """The client has closed its connection."""


class Limits:
    """How long answers may take, and that all must end when the server is shutting down.

    Args:
        seconds: for one answer.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self.over = seconds, False
        self._waiting: set[asyncio.Timeout] = set()

    def end(self) -> None:
        """End all answers now, with an error."""
        self.over = True
        for timeout in self._waiting:
            if not timeout.expired():
                timeout.reschedule(0.0)

    def last(self) -> float:
        """When an answer that begins now must end, by the loop's clock."""
        return asyncio.get_running_loop().time() + self.seconds

    @asynccontextmanager
    async def until(self, last: float) -> AsyncIterator[None]:
        """Wait inside for no longer than that, nor than the server goes on.

        Raises:
            ApiError: it took longer.
        """
        try:
            async with asyncio.timeout_at(0.0 if self.over else last) as timeout:
                self._waiting.add(timeout)
                try:
                    yield
                finally:
                    self._waiting.discard(timeout)
        except TimeoutError:
            raise self._error() from None

    def _error(self) -> ApiError:
        if self.over:
            return ApiError(503, "the server is shutting down", "shutting_down", headers={"Retry-After": "1"})
        said = f"the answer took longer than {self.seconds:g} seconds; ask for fewer tokens"
        return ApiError(503, said, "timeout")


class Stream(EventSourceResponse):
    """Server-sent events. Whatever happens to the client, `held` is closed at the end.

    Args:
        events: documents to send as JSON.
        held: what the documents come from.
        limits: how long the stream may last.
    """

    def __init__(self, events: AsyncIterator[dict[str, Any]], held: AsyncExitStack, limits: Limits) -> None:
        super().__init__(_sent(events, limits), headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self.held, self.limits = held, limits

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            # A client that reads nothing holds up the sending, too; `_sent` ends all others with an error that they can read.
            with suppress(TimeoutError):
                async with asyncio.timeout(self.limits.seconds + GRACE):
                    await super().__call__(scope, receive, send)
        finally:
            await self.held.aclose()


async def _sent(events: AsyncIterator[dict[str, Any]], limits: Limits) -> AsyncIterator[bytes]:
    """Each document as an event; an error is the last one, as OpenAI's clients expect it."""
    last, end = limits.last(), object()
    while True:
        try:
            async with limits.until(last):  # the wait alone: a `yield` inside could time out in the sender's code
                document = await anext(events, end)
        except ApiError as error:
            yield format_sse_event(data_str=json.dumps(error.body()))
            return
        if document is end:
            break
        # In ASCII, since some clients end a line at U+2028 and the like.
        yield format_sse_event(data_str=json.dumps(document, separators=(",", ":")))
    yield format_sse_event(data_str="[DONE]")


async def while_connected(request: Request, work: Coroutine[Any, Any, T], limits: Limits) -> T:
    """What a coroutine returns; it is cancelled if the client leaves or if it takes too long.

    Raises:
        ClientLeft: the client has left.
        ApiError: it took too long, or the server is shutting down.
    """

    async def left() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(left())
    try:
        async with limits.until(limits.last()):
            await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientLeft
    finally:
        leaving.cancel()
        if not working.done():
            working.cancel()
            await asyncio.wait({working})
