"""What the routes share: the served model, fast JSON replies, and the content type check."""

from __future__ import annotations

from typing import Any

import orjson
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response

from atroposlib.modelserver.served import ServedModel


class JsonReply(Response):
    """A JSON body written by orjson; its floats are finite, since the engine refuses others."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The body of ``content``."""
        return orjson.dumps(content)


def served(request: Request) -> ServedModel:
    """The model behind the app that got ``request``."""
    model: ServedModel = request.app.state.model
    return model


async def require_json(request: Request) -> None:
    """Refuse a body that is not declared as JSON."""
    media_type = request.headers.get("content-type", "").lower().partition(";")[0]
    if media_type != "application/json":
        raise RequestValidationError(["Unsupported Media Type: Only 'application/json' is allowed"])
