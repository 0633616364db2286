"""How the server says no: vLLM's error bodies, by status, type and param."""

from __future__ import annotations

import re
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

MAX_REPORTED = 10
MAX_INPUT_CHARACTERS = 200
UNION_BRANCHES = frozenset({"str", "int", "list", "TokenizeTextRequest", "TokenizeChatRequest"})
"""Names that pydantic puts into a location for the branch of a union; not those of fields."""


class Refusal(Exception):
    """A request that is answered with an error; raised by checks and turned into the body by a handler.

    Not a ValueError, so that it passes through pydantic's validators unchanged.

    Args:
        message: What is wrong, in vLLM's words where it has some.
        param: The request's field that is to blame.
        value: The field's value, appended to the message with ``param`` as vLLM does.
        status: HTTP status.
        kind: The body's ``type``.
    """

    def __init__(
        self,
        message: str,
        param: str | None = None,
        value: object = None,
        *,
        status: int = 400,
        kind: str = "BadRequestError",
    ) -> None:
        facts = [f"parameter={param}"] if param is not None else []
        facts += [f"value={value}"] if value is not None else []
        super().__init__(f"{message} ({', '.join(facts)})" if facts else message)
        self.param = param
        self.status = status
        self.kind = kind


def unknown_model(name: str, served: str) -> Refusal:
    """The refusal of a request for another model."""
    refusal = Refusal(
        f"The model `{name}` does not exist. Valid aliases: {served}.", status=404, kind="NotFoundError"
    )
    refusal.param = "model"
    return refusal


def bad_body(message: str) -> Refusal:
    """The refusal of a body that is no request at all."""
    return Refusal(message, kind="Bad Request")


def failure(message: str) -> Refusal:
    """The server's own failure, as a reply."""
    return Refusal(message, status=500, kind="InternalServerError")


def install(app: FastAPI) -> None:
    """Answer refusals, validation errors and unexpected errors in vLLM's shape."""
    app.add_exception_handler(Refusal, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(Exception, _failed)


def error_body(refusal: Refusal) -> dict[str, Any]:
    """The JSON body of a refusal."""
    error = {
        "message": str(refusal),
        "type": refusal.kind,
        "param": refusal.param,
        "code": refusal.status,
    }
    return {"error": error}


async def _refused(_: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, Refusal):
        raise error
    return JSONResponse(error_body(error), status_code=error.status)


async def _failed(request: Request, error: Exception) -> JSONResponse:
    return await _refused(request, failure(f"{type(error).__name__}: {error}"))


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, RequestValidationError):
        raise error
    errors = list(error.errors())
    refusal = bad_body(_validation_message(errors))
    first = errors[0] if errors else None
    if isinstance(first, dict) and first.get("loc"):
        refusal.param = field_path(first["loc"])
    return await _refused(request, refusal)


def field_path(location: tuple[int | str, ...]) -> str:
    """A pydantic location without the names of the union branches it went through: ``body.prompt.1``."""
    parts = [str(part) for part in location]
    named = [part for part in parts if part not in UNION_BRANCHES and not re.search(r"[\[\](){}]", part)]
    return ".".join(named or parts)


def _validation_message(errors: list[Any]) -> str:
    lines = [f"  {_describe(error)}" for error in errors[:MAX_REPORTED]]
    more = len(errors) - len(lines)
    lines += [f"  ...and {more} more errors"] if more > 0 else []
    return "\n".join([f"{len(errors)} validation error{'s' if len(errors) != 1 else ''}:", *lines])


def _describe(error: Any) -> str:
    if not isinstance(error, dict):
        return str(error)
    value = error.get("input")
    if isinstance(value, list | dict):
        value = f"<{type(value).__name__} of {len(value)} items>"
    shown = {key: member for key, member in error.items() if key != "url"}
    return str({**shown, "loc": field_path(error["loc"]), "input": str(value)[:MAX_INPUT_CHARACTERS]})
