"""Answers that come piece by piece, and answers whose client has left."""

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from fastapi import Request
from fastapi.sse import EventSourceResponse, format_sse_event

from heddle.serve.errors import ApiError

T = TypeVar("T")


class ClientLeft(Exception):
    """The client has closed its connection."""


class Stream(EventSourceResponse):
    """Server-sent events. Whatever happens to the client, `held` is closed at the end.

    Args:
        events: documents to send as JSON.
        held: what the documents come from.
        seconds: how long the stream may last.
    """

    def __init__(self, events: AsyncIterator[dict[str, Any]], held: AsyncExitStack, seconds: float) -> None:
        super().__init__(_sent(events, seconds), headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self.held = held

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self.held.aclose()


async def _sent(events: AsyncIterator[dict[str, Any]], seconds: float) -> AsyncIterator[bytes]:
    """Each document as an event; an error is the last one, as OpenAI's clients expect it."""
    end = asyncio.get_running_loop().time() + seconds
    while True:
        try:
            async with asyncio.timeout_at(
                end
            ):  # around the wait alone: a `yield` inside could time out in the sender's code
                document = await anext(events)
        except StopAsyncIteration:
            break
        except (ApiError, TimeoutError) as error:
            known = error if isinstance(error, ApiError) else too_slow(seconds)
            yield format_sse_event(data_str=json.dumps(known.body()))
            return
        yield format_sse_event(data_str=json.dumps(document, ensure_ascii=False, separators=(",", ":")))
    yield format_sse_event(data_str="[DONE]")


async def while_connected(request: Request, work: Coroutine[Any, Any, T], seconds: float) -> T:
    """What a coroutine returns; it is cancelled if the client leaves or if it takes too long.

    Raises:
        ClientLeft: the client has left.
        ApiError: it took too long.
    """

    async def left() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(left())
    try:
        await asyncio.wait({working, leaving}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientLeft if leaving.done() else too_slow(seconds)
    finally:
        leaving.cancel()
        if not working.done():
            working.cancel()
            await asyncio.wait({working})


def too_slow(seconds: float) -> ApiError:
    """The error for an answer that takes too long."""
    return ApiError(503, f"the answer took longer than {seconds:g} seconds; ask for fewer tokens", "timeout")
