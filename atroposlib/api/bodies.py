"""Reads request bodies within limits of size, sum and time, before any route sees them."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from atroposlib.api.context import ApiContext
from atroposlib.api.problems import problem_answer
from atroposlib.errors import ApiError, WireError
from atroposlib.wire.limits import inflate_gzip

SMALL_BODY_BYTES = 1 << 20
"""Limit of every route that takes no groups, compressed or not."""

GROUP_PATHS = frozenset({"/scored_data", "/scored_data_list", "/v1/groups"})
"""Routes that get their body as it came, and inflate it where it is parsed."""

LINGER_S = 5.0
"""Seconds in which the rest of a refused body is read away, so that its sender gets the answer."""


class BoundedBodies:
    """ASGI middleware: refuses bodies that are too large or too slow, hands on whole ones.

    Args:
        app: The application behind it.
        context: Gives the limits, and counts refused groups.
    """

    def __init__(self, app: ASGIApp, context: ApiContext) -> None:
        self._app = app
        self._context = context
        self._pending = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        headers = Headers(scope=scope) if scope["type"] == "http" else Headers()
        if "transfer-encoding" not in headers and headers.get("content-length", "0") == "0":
            await self._app(scope, receive, send)
            return
        incoming = _Incoming(receive)
        try:
            body = await self._read(scope["path"], headers, incoming)
        except (WireError, ApiError) as error:
            if scope["path"] in GROUP_PATHS:
                self._context.metrics.refuse(error.code)
            if error.code != "wire.too_slow" and "expect" not in headers:
                await incoming.read_away()
            answer = problem_answer(error, scope["path"], self._context.settings.retry_after_s)
            answer.headers["connection"] = "close"
            await answer(scope, receive, send)
            return
        if body is None:
            return
        self._pending += len(body)
        try:
            await self._app(_with_body(scope, body), _replay(body, receive), send)
        finally:
            self._pending -= len(body)

    async def _read(self, path: str, headers: Headers, incoming: _Incoming) -> bytes | None:
        """The body as the route wants it, None when the client went away."""
        groups = path in GROUP_PATHS
        limit = self._context.settings.max_body_bytes if groups else SMALL_BODY_BYTES
        if int(headers.get("content-length", "0")) > limit:
            raise _too_large(limit)
        read = bytearray()
        try:
            if not await self._read_all(incoming, read, limit):
                return None
        finally:
            self._pending -= len(read)
        body = bytes(read)
        if groups or "gzip" not in headers.get("content-encoding", "").lower():
            return body
        return inflate_gzip(body, SMALL_BODY_BYTES)

    async def _read_all(self, incoming: _Incoming, read: bytearray, limit: int) -> bool:
        """Read to the end; False when the client went away first."""
        settings = self._context.settings
        try:
            async with asyncio.timeout(settings.body_total_s):
                while True:
                    async with asyncio.timeout(settings.body_idle_s):
                        message = await incoming.receive()
                    if message["type"] == "http.disconnect":
                        return False
                    piece = message.get("body", b"")
                    read += piece
                    self._pending += len(piece)
                    if len(read) > limit:
                        raise _too_large(limit)
                    if self._pending > settings.max_pending_bytes:
                        raise ApiError("too many bodies are being read", code="api.busy")
                    if incoming.ended:
                        return True
        except TimeoutError as error:
            raise WireError(
                "the body did not come in time",
                code="wire.too_slow",
                got=f"{len(read)} bytes",
                expected=f"a piece each {settings.body_idle_s:g} s, all within {settings.body_total_s:g} s",
            ) from error


class _Incoming:
    """The messages of a request, and whether they have ended."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.ended = False

    async def receive(self) -> Message:
        """The next message."""
        message = await self._receive()
        self.ended = not message.get("more_body", False)
        return message

    async def read_away(self) -> None:
        """A connection that is closed while its client still writes is reset, and the answer lost with it."""
        try:
            async with asyncio.timeout(LINGER_S):
                while not self.ended:
                    await self.receive()
        except TimeoutError:
            return


def _too_large(limit: int) -> WireError:
    return WireError("the body is too large", code="wire.too_large", expected=f"at most {limit} bytes")


def _with_body(scope: Scope, body: bytes) -> Scope:
    """The request's scope with a plain body, or one that its route inflates."""
    if scope["path"] in GROUP_PATHS:
        return scope
    kept = [item for item in scope["headers"] if item[0] not in (b"content-encoding", b"content-length")]
    return {**scope, "headers": [*kept, (b"content-length", str(len(body)).encode())]}


def _replay(body: bytes, receive: Receive) -> Receive:
    """A receive that gives the body that was read, then what the server says next."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay
