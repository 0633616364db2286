"""``atropos model-server``: reserve the port, load the model, serve until a signal."""

from __future__ import annotations

import errno
import socket
import sys
from typing import TYPE_CHECKING

from atroposlib.config.modelserver import ModelServerSettings
from atroposlib.errors import UsageError
from atroposlib.modelserver.source import check_source

if TYPE_CHECKING:
    from atroposlib.modelserver.served import ServedModel

GRACE_S = 2
"""Seconds that open connections get to take their last reply when the server ends."""


def run(settings: ModelServerSettings) -> None:
    """Serve until SIGINT or SIGTERM.

    Raises:
        UsageError: ``usage.port_in_use``, or ``usage.model`` for a model that cannot be served.
    """
    check_source(settings.model)
    with reserve_port(settings.host, settings.port) as listener:
        try:
            from atroposlib.modelserver.build import build_model, describe
        except ModuleNotFoundError as error:
            raise UsageError(
                f"the package {error.name} is not installed",
                code="usage.missing_package",
                fix="pip install 'atroposlib[train]'",
            ) from error
        model = build_model(settings)
        host, port = listener.getsockname()[:2]
        _serve(model, listener, f"{describe(settings, model)} at http://{host}:{port}")


def reserve_port(host: str, port: int) -> socket.socket:
    """A socket bound to the address, before a model is loaded for nothing."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        in_use = error.errno == errno.EADDRINUSE
        raise UsageError(
            "the port is taken by another process" if in_use else f"cannot listen there: {error.strerror}",
            code="usage.port_in_use" if in_use else "usage.bad_value",
            where=f"{host}:{port}",
            fix="choose another with --port, or 0 for a free one" if in_use else "check --host and --port",
        ) from error
    return listener


def _serve(model: ServedModel, listener: socket.socket, announcement: str) -> None:
    import uvicorn

    from atroposlib.modelserver.app import create_app

    class Server(uvicorn.Server):
        """Says when it is ready, and ends running requests at once when it is told to stop."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            sys.stderr.write(announcement + "\n")
            sys.stderr.flush()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            model.scheduler.stop()
            await super().shutdown(sockets)

    config = uvicorn.Config(
        create_app(model), log_level="warning", access_log=False, timeout_graceful_shutdown=GRACE_S
    )
    Server(config).run(sockets=[listener])
