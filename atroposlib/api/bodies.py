"""Reads request bodies within limits and inflates gzip, before any route sees them."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from atroposlib.api.context import ApiContext
from atroposlib.api.problems import body_problem
from atroposlib.errors import WireError
from atroposlib.wire.limits import inflate_gzip

SMALL_BODY_BYTES = 1 << 20
"""Limit of every route that takes no groups."""

GROUP_PATHS = frozenset({"/scored_data", "/scored_data_list"})


class BoundedBodies:
    """ASGI middleware: refuses bodies that are too large or no gzip, hands on plain ones.

    Args:
        app: The application behind it.
        context: Gives the limits and the workers for large bodies.
    """

    def __init__(self, app: ASGIApp, context: ApiContext) -> None:
        self._app = app
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        headers = Headers(scope=scope) if scope["type"] == "http" else Headers()
        if "transfer-encoding" not in headers and headers.get("content-length", "0") == "0":
            await self._app(scope, receive, send)
            return
        try:
            body = await self._read(scope["path"], headers, receive)
        except WireError as error:
            await body_problem(error)(scope, receive, send)
            return
        if body is None:
            return
        kept = [item for item in scope["headers"] if item[0] not in (b"content-encoding", b"content-length")]
        length = (b"content-length", str(len(body)).encode())
        await self._app({**scope, "headers": [*kept, length]}, _replay(body, receive), send)

    async def _read(self, path: str, headers: Headers, receive: Receive) -> bytes | None:
        settings = self._context.settings
        groups = path in GROUP_PATHS
        limit = settings.max_body_bytes if groups else SMALL_BODY_BYTES
        if int(headers.get("content-length", "0")) > limit:
            raise _too_large(limit)
        body = await _read_all(receive, limit)
        if body is None or "gzip" not in headers.get("content-encoding", "").lower():
            return body
        # The compressed size says nothing of the work, so its limit decides where it is done.
        inflated_limit = settings.max_inflated_bytes if groups else SMALL_BODY_BYTES
        return await self._context.offload.run(inflated_limit, inflate_gzip, body, inflated_limit)


async def _read_all(receive: Receive, limit: int) -> bytes | None:
    """The whole body, or None when the client went away first."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > limit:
            raise _too_large(limit)
        if not message.get("more_body", False):
            return bytes(body)


def _too_large(limit: int) -> WireError:
    return WireError("the body is too large", code="wire.too_large", expected=f"at most {limit} bytes")


def _replay(body: bytes, receive: Receive) -> Receive:
    """A receive that gives the body that was read, then what the server says next."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay
