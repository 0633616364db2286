"""Sends stored JSON in pieces: spliced, gzip on request, from the first byte at once."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Iterable, Iterator

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from atroposlib.api.offload import Offload
from atroposlib.wire.limits import GZIP_WBITS

PIECE_BYTES = 1 << 18
GZIP_MINIMUM_BYTES = 1000
GZIP_LEVEL = 1


async def send_json(scope: Scope, send: Send, parts: Iterable[bytes], size: int, offload: Offload) -> None:
    """Send the head and all of the body except the mark of its end, waiting for a slow client.

    The answer is chunked, so no client takes it for whole before :func:`end_json`.

    Args:
        scope: Of the request; its Accept-Encoding decides about gzip.
        send: Of the request.
        parts: The JSON document in pieces of any size.
        size: Bytes of all parts together.
        offload: Compresses large answers.
    """
    headers = [(b"content-type", b"application/json"), (b"vary", b"accept-encoding")]
    compress = (
        size >= GZIP_MINIMUM_BYTES and "gzip" in Headers(scope=scope).get("accept-encoding", "").lower()
    )
    if compress:
        headers.append((b"content-encoding", b"gzip"))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    pieces = _slices(parts)
    async for piece in _compressed(pieces, size, offload) if compress else _plain(pieces):
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    # The server waits for the socket before it writes, so this empty piece returns when nearly all is out.
    await send({"type": "http.response.body", "body": b"", "more_body": True})


async def end_json(send: Send) -> None:
    """Send the mark of the body's end."""
    await send({"type": "http.response.body", "body": b"", "more_body": False})


class StoredJson(Response):
    """An answer that is one stored JSON document.

    Args:
        document: The encoded document.
        offload: Compresses it when it is large.
    """

    def __init__(self, document: bytes, offload: Offload) -> None:
        super().__init__(media_type="application/json")
        self._document = document
        self._offload = offload

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        await send_json(scope, send, [self._document], len(self._document), self._offload)
        await end_json(send)


def _slices(parts: Iterable[bytes]) -> Iterator[bytes]:
    for part in parts:
        for start in range(0, len(part), PIECE_BYTES):
            yield part[start : start + PIECE_BYTES]


async def _plain(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def _compressed(pieces: Iterable[bytes], size: int, offload: Offload) -> AsyncIterator[bytes]:
    packer = zlib.compressobj(GZIP_LEVEL, wbits=GZIP_WBITS)
    for piece in pieces:
        packed = await offload.run(size, packer.compress, piece)
        if packed:
            yield packed
    yield packer.flush()
