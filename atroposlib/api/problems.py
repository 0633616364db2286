"""Errors as answers: Atropos's shapes and status codes, one place for all routes."""

from __future__ import annotations

import math
import re
from typing import Any, cast

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.responses import JSONResponse, PlainTextResponse, Response

from atroposlib.api.context import ApiContext
from atroposlib.errors import ApiError, WireError


def add_error_answers(app: FastAPI) -> None:
    """Install the handlers of this module."""
    app.add_exception_handler(RequestValidationError, _invalid_request)
    app.add_exception_handler(WireError, _bad_group)
    app.add_exception_handler(ApiError, _refused)


def body_problem(error: WireError) -> Response:
    """The answer to a body that cannot be read: 400 as in Atropos, 413 beyond the limits."""
    if error.code == "wire.too_large":
        return JSONResponse(error.problem() | {"status": 413}, 413)
    return PlainTextResponse("Invalid gzip payload", 400)


def _bad_group(request: Request, error: Exception) -> Response:
    # Starlette hands over exactly what the handler is installed for.
    error = cast(WireError, error)
    location = ["body", *_steps(error.where or "")]
    return JSONResponse({"detail": [{"type": error.code, "loc": location, "msg": str(error)}]}, 422)


def _refused(request: Request, error: Exception) -> Response:
    error = cast(ApiError, error)
    if error.code != "api.queue_full":
        return JSONResponse(error.problem(), error.http_status)
    # Atropos's clients drop a group on any 4xx and repeat only on 5xx.
    context = cast(ApiContext, request.app.state.context)
    headers = {"Retry-After": str(context.settings.retry_after_s)}
    return JSONResponse(error.problem() | {"status": 503}, 503, headers)


def _invalid_request(request: Request, error: Exception) -> Response:
    found = cast(RequestValidationError, error).errors()
    detail = [
        {
            "type": item["type"],
            "loc": list(item["loc"]),
            "msg": item["msg"],
            "input": _shown(item.get("input")),
        }
        for item in found
    ]
    return JSONResponse({"detail": detail}, 422)


def _shown(value: Any) -> Any:
    """A refused value as JSON can carry it; NaN and deep values as short text."""
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)[:200]


def _steps(where: str) -> list[str | int]:
    """``tokens[0][3]`` as ``["tokens", 0, 3]``."""
    return [int(part) if part.isdigit() else part for part in re.findall(r"[^.\[\]]+", where)]
