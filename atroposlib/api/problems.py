"""Errors as answers: problem documents everywhere, with FastAPI's list in them on Atropos's routes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, cast

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from atroposlib.errors import ApiError, AtroposError, RunError, WireError

STATUS: dict[str, int] = {
    "api.busy": 503,
    "api.draining": 503,
    "api.forbidden": 403,
    "api.queue_full": 429,
    "api.unauthorized": 401,
    "api.unknown_batch": 404,
    "api.unknown_env": 404,
    "api.unknown_route": 404,
    "api.unknown_trainer": 404,
    "api.worker_lost": 503,
    "store.failed": 503,
    "wire.bad_encoding": 400,
    "wire.too_large": 413,
    "wire.too_slow": 408,
    "wire.unknown_type": 415,
}
"""Status of a code where it is not that of the error's class."""

RETRY_AFTER_S = 2
"""Seconds a client is told to wait before it repeats a request."""

REPEATED = frozenset({429, 503})


class ProblemResponse(JSONResponse):
    """An RFC 9457 problem document."""

    media_type = "application/problem+json"


def problem_answer(error: AtroposError, path: str, retry_after_s: int = RETRY_AFTER_S) -> Response:
    """The answer that tells an error.

    Args:
        error: What went wrong.
        path: Of the request. Atropos's clients drop a group on any 4xx and repeat only on 5xx, so on their
            routes a full queue is a 503; and they know a 422 by FastAPI's list.
        retry_after_s: Told where the same request can be repeated.
    """
    status = STATUS.get(error.code, error.http_status)
    members = error.problem()
    if not is_v1(path):
        status = 503 if status == 429 else status
        if status == 422:
            members["detail"] = [
                {"type": error.code, "loc": ["body", *_steps(error.where or "")], "msg": str(error)}
            ]
    headers = {"Retry-After": str(retry_after_s)} if status in REPEATED else {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return ProblemResponse({**members, "status": status}, status, headers)


def is_v1(path: str) -> bool:
    """Whether a path is of our own routes and not of Atropos's."""
    return path.startswith("/v1/")


def add_error_answers(app: FastAPI, retry_after_s: int) -> None:
    """Install handlers that answer every error of a route with a problem document."""

    def known(request: Request, error: Exception) -> Response:
        # Starlette hands over exactly what the handler is installed for.
        return problem_answer(cast(AtroposError, error), request.url.path, retry_after_s)

    def invalid(request: Request, error: Exception) -> Response:
        return problem_answer(_invalid_request(cast(RequestValidationError, error)), request.url.path)

    def refused(request: Request, error: Exception) -> Response:
        return _refused(request, cast(HTTPException, error))

    def unexpected(request: Request, error: Exception) -> Response:
        told = RunError("the API failed on the request; its log has more", code="internal.error")
        return problem_answer(told, request.url.path)

    app.add_exception_handler(AtroposError, known)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, refused)
    app.add_exception_handler(Exception, unexpected)


def _invalid_request(error: RequestValidationError) -> WireError:
    first, *others = error.errors()
    more = f" (and {len(others)} more)" if others else ""
    return WireError(
        f"{first['msg']}{more}",
        code="wire.invalid_request",
        where=_path([part for part in first["loc"] if part != "body"]) or None,
        got=None if first["type"] == "missing" else repr(first.get("input"))[:80],
    )


def _refused(request: Request, error: HTTPException) -> Response:
    """What Starlette and FastAPI refuse by themselves: unknown routes, other methods, broken JSON."""
    if error.status_code in (404, 405):
        told: AtroposError = ApiError(
            HTTPStatus(error.status_code).phrase.lower(), code="api.unknown_route", where=request.url.path
        )
    else:
        told = WireError(str(error.detail), code="wire.bad_encoding")
    answer = problem_answer(told, request.url.path)
    answer.status_code = error.status_code
    answer.headers.update(error.headers or {})
    return answer


def _path(loc: Sequence[int | str]) -> str:
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)
    return "".join(parts).removeprefix(".")


def _steps(where: str) -> list[Any]:
    """``tokens[0][3]`` as ``["tokens", 0, 3]``."""
    return [int(part) if part.isdigit() else part for part in re.findall(r"[^.\[\]]+", where)]
