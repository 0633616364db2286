"""What the routes share: fast JSON replies, the content type check, and requests whose client has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import orjson
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response

from atroposlib.modelserver.served import ServedModel

Result = TypeVar("Result")
CLIENT_GONE = 499


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


async def while_connected(request: Request, work: Coroutine[Any, Any, Result]) -> Result | None:
    """The result of ``work``, which is cancelled when the client goes away; None in that case.

    The body has been read, so the next message that the server gives out says that the client has gone.
    """
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for pending in (task, gone):
            pending.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
