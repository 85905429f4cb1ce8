"""Server-sent events, and answers whose client may go away at any moment. Knows ASGI; nothing of what is said."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

T = TypeVar("T")


def data_event(record: Any) -> bytes:
    """An event without a name."""
    return b"data: " + _json(record) + b"\n\n"


def named_event(name: str, record: Any) -> bytes:
    """An event with a name."""
    return b"event: " + name.encode() + b"\n" + data_event(record)


def comment(text: str) -> bytes:
    """What clients skip, and connections stay open by."""
    return b": " + " ".join(text.split()).encode("utf-8", "replace") + b"\n\n"


def _json(record: Any) -> bytes:
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


async def gone(receive: Receive) -> None:
    """Return when the client has gone. For requests whose body has been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(receive: Receive, work: Awaitable[T]) -> T:
    """What `work` gives; raises ClientDisconnect, with the work cancelled, when the client goes first."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(gone(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        for task in (working, leaving):
            task.cancel()
        # let the work clean up before anyone goes on
        await asyncio.gather(working, leaving, return_exceptions=True)


class EventStream:
    """An ASGI response of events. `chunks` is closed, wherever it is, when the client goes; on_end is called in any case."""

    def __init__(self, chunks: AsyncIterator[bytes], on_end: Callable[[], None]) -> None:
        self._chunks, self._on_end = chunks, on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(receive, self._send_all(send))
        except ClientDisconnect:
            scope["hip.reason"] = "gone"
        finally:
            self._on_end()

    async def _send_all(self, send: Send) -> None:
        # a proxy must not wait for the end before it hands anything on
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for chunk in self._chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
