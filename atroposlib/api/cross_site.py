"""Refuses requests that a web page makes the user's browser send to the API."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send


class CrossSiteGuard:
    """ASGI middleware: 403 for what another site's page sends, such as an image of ``/reset_data``.

    Environments and trainers send neither header, and pages of the API itself name its own host.

    Args:
        app: The application behind it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http" and _is_cross_site(Headers(scope=scope)):
            await PlainTextResponse("Cross-site request refused", 403)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _is_cross_site(headers: Headers) -> bool:
    origin = headers.get("origin")
    # Not parsed as a URL: what is none must not fail here.
    foreign_origin = origin is not None and origin.partition("://")[2] != headers.get("host")
    return foreign_origin or headers.get("sec-fetch-site") in ("cross-site", "same-site")
