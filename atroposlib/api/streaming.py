"""Sends an answer in pieces, from the first byte at once, compressed on request, at the client's pace."""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping
from contextlib import aclosing
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from atroposlib.offload import Offload
from atroposlib.wire.limits import GZIP_WBITS

PIECE_BYTES = 1 << 18
GZIP_MINIMUM_BYTES = 1000
GZIP_LEVEL = 1
THREAD_FROM_BYTES = 1 << 15
"""Compressing fewer bytes takes less time than handing them over."""

AHEAD = 1
"""Results that are computed while an earlier one is used."""


async def ahead(calls: Iterable[Callable[[], Coroutine[Any, Any, bytes]]]) -> AsyncGenerator[bytes, None]:
    """The results of the calls, in order; the next one runs while the caller uses the last."""
    running: deque[asyncio.Task[bytes]] = deque()
    try:
        for call in calls:
            running.append(asyncio.create_task(call()))
            if len(running) > AHEAD:
                yield await running.popleft()
        while running:
            yield await running.popleft()
    finally:
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)


async def send_parts(
    send: Send, parts: AsyncGenerator[bytes, None], media_type: str, headers: Mapping[str, str] | None = None
) -> None:
    """Send the head and all of the body except the mark of its end, waiting for a slow client.

    The answer is chunked, so no client takes it for whole before :func:`send_end`. The head is sent when the
    first part is there: what fails before can still be answered with an error.
    """
    named = {"content-type": media_type, **(headers or {})}
    head = [(name.lower().encode(), value.encode()) for name, value in named.items()]
    started = False
    async with aclosing(_slices(parts)) as pieces:
        async for piece in pieces:
            if not started:
                await send({"type": "http.response.start", "status": 200, "headers": head})
                started = True
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    # The server waits for the socket before it writes, so this empty piece returns when nearly all is out.
    await send({"type": "http.response.body", "body": b"", "more_body": True})


async def send_json(
    scope: Scope,
    send: Send,
    parts: AsyncGenerator[bytes, None],
    offload: Offload,
    headers: Mapping[str, str] | None = None,
) -> None:
    """As :func:`send_parts`, for a JSON document, compressed when the request accepts gzip."""
    named = {"vary": "accept-encoding", **(headers or {})}
    if "gzip" in Headers(scope=scope).get("accept-encoding", "").lower():
        named["content-encoding"] = "gzip"
        parts = _compressed(parts, offload)
    await send_parts(send, parts, "application/json", named)


async def send_end(send: Send) -> None:
    """Send the mark of the body's end."""
    await send({"type": "http.response.body", "body": b"", "more_body": False})


class StoredJson(Response):
    """An answer that is one stored JSON document.

    Args:
        document: The encoded document.
        offload: Compresses it when it is large.
    """

    def __init__(self, document: bytes, offload: Offload) -> None:
        super().__init__(document, media_type="application/json")
        self._offload = offload

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        if len(self.body) < GZIP_MINIMUM_BYTES:
            await super().__call__(scope, receive, send)
            return
        await send_json(scope, send, _only(bytes(self.body)), self._offload)
        await send_end(send)


async def _only(document: bytes) -> AsyncGenerator[bytes, None]:
    yield document


async def _slices(parts: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(parts):
        async for part in parts:
            for start in range(0, len(part), PIECE_BYTES):
                yield part[start : start + PIECE_BYTES]


async def _compressed(parts: AsyncGenerator[bytes, None], offload: Offload) -> AsyncGenerator[bytes, None]:
    packer = zlib.compressobj(GZIP_LEVEL, wbits=GZIP_WBITS)
    async with aclosing(_slices(parts)) as pieces:
        async for piece in pieces:
            small = len(piece) < THREAD_FROM_BYTES
            packed = packer.compress(piece) if small else await offload.in_thread(packer.compress, piece)
            if packed:
                yield packed
    yield packer.flush()
