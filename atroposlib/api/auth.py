"""Lets a request in by its token's role, before a byte of its body is read."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from atroposlib.api.problems import problem_answer
from atroposlib.api.tokens import Token, role_of
from atroposlib.config.api import Role
from atroposlib.errors import ApiError

OPEN = frozenset({"/", "/healthz", "/readyz"})
"""Paths that need no token."""

ALL_ROLES: frozenset[Role] = frozenset({"env", "trainer", "admin"})

FOR_ALL = frozenset(
    {
        "/docs",
        "/docs/oauth2-redirect",
        "/info",
        "/latest_example",
        "/metrics",
        "/openapi.json",
        "/redoc",
        "/status",
        "/v1/dead-letters",
        "/v1/status",
        "/wandb_info",
    }
)
"""Paths for every token."""

ROLE_OF_PREFIX: tuple[tuple[str, Role], ...] = (
    ("/batch", "trainer"),
    ("/register-env", "env"),
    ("/register", "trainer"),
    ("/disconnect-env", "env"),
    ("/status-env", "env"),
    ("/scored_data", "env"),
    ("/v1/groups", "env"),
    ("/v1/envs", "env"),
    ("/v1/trainers", "trainer"),
    ("/v1/batches", "trainer"),
)
"""Paths of one role, besides the admin's; the first prefix that fits decides."""


def allowed(path: str) -> frozenset[Role]:
    """The roles that may ask for a path; one that no table names is the admin's alone."""
    for prefix, role in ROLE_OF_PREFIX:
        if path.startswith(prefix):
            return frozenset({role, "admin"})
    return ALL_ROLES if path in FOR_ALL else frozenset({"admin"})


class TokenGuard:
    """ASGI middleware: 401 without a known token, 403 when its role is another.

    Args:
        app: The application behind it.
        tokens: Those that are known; without any, everybody is let in.
    """

    def __init__(self, app: ASGIApp, tokens: Sequence[Token]) -> None:
        self._app = app
        self._tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if not self._tokens or scope["type"] != "http" or scope["path"] in OPEN:
            await self._app(scope, receive, send)
            return
        role = role_of(self._tokens, Headers(scope=scope).get("authorization"))
        if role is not None and role in allowed(scope["path"]):
            await self._app(scope, receive, send)
            return
        await problem_answer(_refusal(scope["path"], role), scope["path"])(scope, receive, send)


def _refusal(path: str, role: Role | None) -> ApiError:
    if role is None:
        return ApiError(
            "the request needs a token that is known",
            code="api.unauthorized",
            where=path,
            fix="set ATROPOS_TOKEN to a token that `atropos token` printed",
        )
    return ApiError(
        "the token does not allow this request",
        code="api.forbidden",
        where=path,
        got=role,
        expected=" or ".join(sorted(allowed(path))),
    )
