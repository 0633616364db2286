"""A model server whose answers a test writes beforehand: statuses, bodies, resets and silence."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any, Literal

import orjson
from aiohttp import web

DRIP_S = 0.2


@dataclass
class Reply:
    """One answer: JSON (or raw bytes) with a status, or something worse.

    Attributes:
        action: ``answer``; ``reset`` the connection; ``hang`` until released; ``drip`` the first half of the
            body and then a byte at a time; ``endless`` repetitions of the body.
    """

    body: Any = None
    status: int = 200
    action: Literal["answer", "reset", "hang", "drip", "endless"] = "answer"
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Request:
    """One request as it came in."""

    path: str
    body: Any
    headers: dict[str, str]


class ScriptedServer:
    """Gives the replies scripted for a path in order, then what ``answer`` says for the request.

    Attributes:
        url: Root URL.
        requests: All requests so far.
        in_flight: Requests being answered now; ``most_in_flight`` the most at once.
        released: Set to let hanging requests go on.
        changed: Notified at every arrival of a request.
    """

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[Request] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self.released = asyncio.Event()
        self.changed = asyncio.Condition()
        self.answer: Callable[[Request], Reply] = lambda _: Reply({"detail": "Not Found"}, 404)
        self._script: defaultdict[str, deque[Reply]] = defaultdict(deque)

    def then(self, path: str, *replies: Reply) -> None:
        """Script the next replies of ``path``."""
        self._script[path].extend(replies)

    def asked(self, path: str) -> list[Request]:
        """The requests to ``path``, in order of arrival."""
        return [request for request in self.requests if request.path == path]

    async def until(self, happened: Callable[[], bool]) -> None:
        """Wait until ``happened`` after the arrival of a request."""
        async with self.changed:
            await asyncio.wait_for(self.changed.wait_for(happened), 20)

    async def handle(self, incoming: web.Request) -> web.StreamResponse:
        """Record the request and carry out its reply."""
        raw = await incoming.read()
        request = Request(incoming.path, _json(raw), dict(incoming.headers))
        self.requests.append(request)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        async with self.changed:
            self.changed.notify_all()
        try:
            script = self._script[request.path]
            reply = script.popleft() if script else self.answer(request)
            if reply.action == "reset":
                assert incoming.transport is not None
                incoming.transport.abort()
            if reply.action == "hang":
                await self.released.wait()
            body = reply.body if isinstance(reply.body, bytes) else orjson.dumps(reply.body)
            if reply.action in ("drip", "endless"):
                return await self._stream(incoming, reply, body)
            return web.Response(
                body=body, status=reply.status, content_type="application/json", headers=reply.headers
            )
        finally:
            self.in_flight -= 1

    async def _stream(self, incoming: web.Request, reply: Reply, body: bytes) -> web.StreamResponse:
        """Send until the body ends or the client has gone."""
        response = web.StreamResponse(status=reply.status, headers=reply.headers)
        await response.prepare(incoming)
        half = len(body) // 2
        pieces = repeat(body) if reply.action == "endless" else chain([body[:half]], _bytes(body[half:]))
        for piece in pieces:
            await response.write(piece)
            if reply.action == "drip":
                await asyncio.sleep(DRIP_S)
        return response


def _json(raw: bytes) -> Any:
    """The body as JSON, None for an empty one, itself for one that is no JSON."""
    try:
        return orjson.loads(raw) if raw else None
    except orjson.JSONDecodeError:
        return raw


def _bytes(body: bytes) -> list[bytes]:
    return [body[index : index + 1] for index in range(len(body))]


@asynccontextmanager
async def scripted_server(port: int = 0) -> AsyncIterator[ScriptedServer]:
    """A running :class:`ScriptedServer` on the loopback interface."""
    server = ScriptedServer()
    app = web.Application(client_max_size=2**26)
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        address = runner.addresses[0]
        server.url = f"http://127.0.0.1:{address[1]}"
        yield server
    finally:
        server.released.set()
        await runner.cleanup()
