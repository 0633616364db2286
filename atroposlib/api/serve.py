"""Serves the trajectory API over HTTP until it is told to stop."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from atroposlib.api.app import create_app
from atroposlib.api.http_server import ApiServer
from atroposlib.api.tokens import Token, read_tokens
from atroposlib.config.api import ApiSettings
from atroposlib.errors import UsageError
from atroposlib.store.open import open_store
from atroposlib.store.protocol import GroupStore

BACKLOG = 2048
"""Connections that may wait to be accepted."""

VANISHED_S = 60
"""Seconds after which a connection whose other machine is gone is closed."""


def run(settings: ApiSettings) -> None:
    """Listen, say where, and serve until SIGINT or SIGTERM.

    Raises:
        UsageError: usage.port_in_use or usage.bad_value when the address cannot be listened on,
            usage.open_address when it is public and nobody would need a token, and what
            :func:`read_tokens` and :func:`open_store` raise.
    """
    tokens = _known_tokens(settings.tokens)
    with listen(settings.host, settings.port) as listener:
        _check_address(settings, listener, tokens)
        asyncio.run(_serve(settings, listener, tokens))


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket; port 0 takes a free port. Raises UsageError as :func:`run` does."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio switches Nagle's delay off only where the protocol is named; it costs 40 ms an answer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _notice_vanished_clients(listener)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _cannot_listen(f"{host}:{port}", error) from error
    return listener


async def _serve(settings: ApiSettings, listener: socket.socket, tokens: Sequence[Token]) -> None:
    store = await open_store(
        settings.store,
        max_groups=settings.max_queued_groups,
        max_bytes=settings.max_queued_bytes,
        durability=settings.durability,
    )
    if settings.fresh:
        await store.reset()
    _say(await _continued(store))
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    _say(f"trajectory API on http://{host}:{listener.getsockname()[1]}")
    await ApiServer(create_app(settings, store, tokens=tokens), settings).serve(sockets=[listener])


async def _continued(store: GroupStore) -> str:
    """One line of what a store holds from before, empty for a new one."""
    run, stats = await store.run(), await store.stats()
    if run.registration is None and not stats.received:
        return ""
    trainers = ", ".join(trainer.trainer_id for trainer in run.trainers) or "none"
    return (
        f"going on at step {run.step}: {stats.queued} groups queued, {stats.leased} leased, "
        f"{stats.uncommitted} uncommitted; trainers: {trainers}; environments: {len(run.envs)}"
    )


def _known_tokens(file: Path | None) -> list[Token]:
    if file is None:
        return []
    tokens = read_tokens(file)
    if not tokens:
        # Served like this, the API would ask nobody, as it does without a file.
        raise UsageError(
            "the token file holds no token", where=str(file), fix="make one with `atropos token`"
        )
    return tokens


def _check_address(settings: ApiSettings, listener: socket.socket, tokens: Sequence[Token]) -> None:
    host = listener.getsockname()[0]
    if tokens or ipaddress.ip_address(host).is_loopback:
        return
    if not settings.insecure:
        raise UsageError(
            "the address is open to the network, and the API would ask nobody for a token",
            code="usage.open_address",
            where="host",
            got=settings.host,
            fix="give --tokens FILE (`atropos token` makes one), or --insecure in a closed network",
        )
    _say(f"warning: {host} is open to the network, and the API asks nobody for a token")


def _notice_vanished_clients(listener: socket.socket) -> None:
    """What accepted connections inherit: probes when they are silent, an end when nothing is confirmed."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", VANISHED_S // 2),
        ("TCP_KEEPINTVL", VANISHED_S // 6),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", VANISHED_S * 1000),
    ):
        # Not every system has all of them; the deadlines for bodies and deliveries hold without.
        if hasattr(socket, option):
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _say(line: str) -> None:
    if line:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


def _cannot_listen(address: str, error: OSError) -> UsageError:
    if error.errno == errno.EADDRINUSE:
        return UsageError(
            "the port is taken by another process",
            code="usage.port_in_use",
            where=address,
            fix="stop that process or give another --port",
        )
    return UsageError("cannot listen on this address", where=address, got=error.strerror or str(error))
