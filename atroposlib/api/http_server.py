"""uvicorn with deadlines for slow clients, and a word to the application before it stops."""

from __future__ import annotations

import asyncio
import socket

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from atroposlib.config.api import ApiSettings

SHUTDOWN_S = 3
"""Seconds that answers in progress are given when the server is told to stop."""

KEEP_ALIVE_S = 75
"""Seconds an idle connection stays open: longer than clients keep theirs, so they reuse only open ones."""

HEAD_BYTES = 16 << 10
"""Longest head of a request."""

TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class ImpatientProtocol(H11Protocol):
    """Closes a connection on which a request's head, or the rest of an answered one, takes too long.

    Without it a client holds a connection for ever that sends a byte now and then.
    """

    head_timeout_s: float
    _deadline: asyncio.TimerHandle | None = None

    # uvicorn narrows the type of asyncio's base class in the same way.
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client came."""
        super().connection_made(transport)
        self._set_deadline()

    def data_received(self, data: bytes) -> None:
        """A client sent something."""
        super().data_received(data)
        self._set_deadline()

    def on_response_complete(self) -> None:
        """An answer was sent."""
        super().on_response_complete()
        self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """A client went."""
        super().connection_lost(exc)
        self._unset_deadline()

    def _set_deadline(self) -> None:
        if not self._owes_us():
            self._unset_deadline()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.head_timeout_s, self._too_slow)

    def _owes_us(self) -> bool:
        """Whether the client began something that no application waits for."""
        if self.transport.is_closing() or (self.cycle is not None and not self.cycle.response_complete):
            return False
        if self.conn.their_state is h11.IDLE:
            return self.cycle is None or bool(self.conn.trailing_data[0])
        return self.conn.their_state is h11.SEND_BODY

    def _unset_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            if self.cycle is None or self.conn.their_state is h11.IDLE:
                self.transport.write(TOO_SLOW)
            self.transport.close()


class ApiServer(uvicorn.Server):
    """Says to the application that it stops, before it waits for the answers in progress."""

    def __init__(self, app: FastAPI, settings: ApiSettings) -> None:
        self._draining: asyncio.Event = app.state.context.draining
        protocol = type("Protocol", (ImpatientProtocol,), {"head_timeout_s": settings.head_timeout_s})
        config = uvicorn.Config(
            app,
            http=protocol,
            ws="none",
            access_log=False,
            log_level="warning",
            limit_concurrency=settings.max_connections,
            h11_max_incomplete_event_size=HEAD_BYTES,
            timeout_graceful_shutdown=SHUTDOWN_S,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        super().__init__(config)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop."""
        self._draining.set()
        await super().shutdown(sockets)
