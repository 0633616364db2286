"""Serves the trajectory API over HTTP until it is told to stop."""

from __future__ import annotations

import errno
import ipaddress
import socket
import sys

import uvicorn

from atroposlib.api.app import create_app
from atroposlib.config.api import ApiSettings
from atroposlib.errors import UsageError
from atroposlib.store.memory import MemoryStore

SHUTDOWN_S = 3
"""Seconds that answers in progress are given when the server is told to stop."""

KEEP_ALIVE_S = 75
"""Seconds an idle connection stays open: longer than clients keep theirs, so they reuse only open ones."""

BACKLOG = 2048
"""Connections that may wait to be accepted."""


def run(settings: ApiSettings) -> None:
    """Listen, say where, and serve until SIGINT or SIGTERM.

    Raises:
        UsageError: usage.port_in_use or usage.bad_value when the address cannot be listened on.
    """
    listener = listen(settings.host, settings.port)
    host, port = listener.getsockname()[:2]
    if not ipaddress.ip_address(host).is_loopback:
        sys.stderr.write(f"warning: {host} is open to the network, and the API asks nobody for a token\n")
    sys.stderr.write(f"trajectory API on http://{settings.host}:{port}\n")
    app = create_app(settings, MemoryStore(settings.max_queued_groups, settings.max_queued_bytes))
    config = uvicorn.Config(
        app,
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=SHUTDOWN_S,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    uvicorn.Server(config).run(sockets=[listener])


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket; port 0 takes a free port. Raises UsageError as :func:`run` does."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio switches Nagle's delay off only where the protocol is named; it costs 40 ms an answer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _cannot_listen(f"{host}:{port}", error) from error
    return listener


def _cannot_listen(address: str, error: OSError) -> UsageError:
    if error.errno == errno.EADDRINUSE:
        return UsageError(
            "the port is taken by another process",
            code="usage.port_in_use",
            where=address,
            fix="stop that process or give another --port",
        )
    return UsageError("cannot listen on this address", where=address, got=error.strerror or str(error))
