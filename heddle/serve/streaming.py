"""Server-sent events, time limits, and clients that disconnect."""

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, TypeVar

from fastapi import Request
from fastapi.sse import EventSourceResponse, format_sse_event

from heddle.serve.errors import ApiError

T = TypeVar("T")
GRACE = 5.0  # seconds for a slow client to read the last events


class ClientLeft(Exception):
    """The client has closed its connection."""


class Limits:
    """Time limits: for each answer, and for all when the server is shutting down.

    Args:
        seconds: for one answer.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self.ended = seconds, False
        self._waiting: set[asyncio.Timeout] = set()

    def end(self) -> None:
        """End all answers now, with an error."""
        self.ended = True
        for timeout in self._waiting:
            if not timeout.expired():
                timeout.reschedule(0.0)

    def deadline(self) -> float:
        """The time by the loop's clock when an answer that begins now must end."""
        return asyncio.get_running_loop().time() + self.seconds

    @asynccontextmanager
    async def until(self, deadline: float) -> AsyncIterator[None]:
        """Limit the time of the block to the deadline, or to the end of the server.

        Raises:
            ApiError: it took longer.
        """
        try:
            async with asyncio.timeout_at(0.0 if self.ended else deadline) as timeout:
                self._waiting.add(timeout)
                try:
                    yield
                finally:
                    self._waiting.discard(timeout)
        except TimeoutError:
            raise self._error() from None

    def _error(self) -> ApiError:
        if self.ended:
            return ApiError(503, "the server is shutting down", "shutting_down", headers={"Retry-After": "1"})
        return ApiError(503, f"the answer took longer than {self.seconds:g} seconds; ask for fewer tokens", "timeout")


class Stream(EventSourceResponse):
    """Server-sent events. The stack is closed at the end, whatever happens to the client.

    Args:
        events: documents to send as JSON.
        stack: the resources that make the documents.
        limits: time limits.
    """

    def __init__(self, events: AsyncIterator[dict[str, Any]], stack: AsyncExitStack, limits: Limits) -> None:
        super().__init__(_encoded(events, limits), headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self.stack, self.limits = stack, limits

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            # A client that reads nothing blocks the sending, too. `_encoded` ends all others with an error that they can read.
            with suppress(TimeoutError):
                async with asyncio.timeout(self.limits.seconds + GRACE):
                    await super().__call__(scope, receive, send)
        finally:
            await self.stack.aclose()


async def _encoded(events: AsyncIterator[dict[str, Any]], limits: Limits) -> AsyncIterator[bytes]:
    """Each document as an event. After an error the stream ends, as OpenAI's clients expect."""
    deadline, end = limits.deadline(), object()
    while True:
        try:
            async with limits.until(deadline):  # the wait alone: a `yield` inside could time out in the sender's code
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
    """The result of a coroutine, which is cancelled if the client leaves or if it takes too long.

    Raises:
        ClientLeft: the client has left.
        ApiError: it took too long, or the server is shutting down.
    """

    async def wait_for_disconnect() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(wait_for_disconnect())
    try:
        async with limits.until(limits.deadline()):
            await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientLeft
    finally:
        leaving.cancel()
        if not working.done():
            working.cancel()
            await asyncio.wait({working})
