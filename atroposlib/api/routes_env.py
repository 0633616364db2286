"""Atropos's routes for environments: register, ask how much is wanted, post groups."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from atroposlib.api.accepting import put, take_json
from atroposlib.api.context import ApiContext, Context
from atroposlib.api.delivery import client_gone, still_there
from atroposlib.api.environments import figures, register
from atroposlib.wire.posted import PostedGroup
from atroposlib.wire.registrations import EnvRegistration

router = APIRouter(tags=["environments of Atropos"])


class EnvIdentifier(BaseModel):
    """Names an environment."""

    env_id: int


@router.post("/register-env")
async def register_env(registration: EnvRegistration, context: Context) -> Response:
    """Give an environment its id, once a trainer has asked for a first batch."""
    registered = await register(context, registration)
    if registered is None:
        return JSONResponse({"status": "wait for trainer to start"})
    return JSONResponse({"status": "success", **registered})


@router.post("/disconnect-env")
async def disconnect_env(identifier: EnvIdentifier, context: Context) -> Response:
    """Take an environment out of the sharing; what it posted stays queued."""
    if await context.store.leave_env(identifier.env_id):
        return JSONResponse({"status": "success"})
    return JSONResponse({"status": "failure", "error": f"no environment has the id {identifier.env_id}"})


@router.get("/status-env")
async def status_env(identifier: EnvIdentifier, context: Context) -> Response:
    """How much an environment should produce. A GET with a JSON body, as Atropos's clients send it."""
    return JSONResponse(await figures(context, identifier.env_id))


@router.post("/scored_data")
async def scored_data(request: Request, context: Context) -> Response:
    """Take one group."""
    groups = await take_json(context, request, many=False)
    await put(context, groups)
    return Receipt({"status": "received"}, context, groups)


@router.post("/scored_data_list")
async def scored_data_list(request: Request, context: Context) -> Response:
    """Take several groups, all or none."""
    groups = await take_json(context, request, many=True)
    await put(context, groups)
    return Receipt({"status": "received", "groups_processed": len(groups)}, context, groups)


class Receipt(JSONResponse):
    """The answer to a post without ids, after which an equal post is meant as another group.

    A client that is gone by now never saw it: its equal post will be a repetition.

    Args:
        content: The answer.
        context: The API's parts.
        groups: What was posted.
    """

    def __init__(self, content: dict[str, Any], context: ApiContext, groups: list[PostedGroup]) -> None:
        super().__init__(content)
        self._context = context
        self._digests = [group.facts.digest for group in groups if group.facts.digest is not None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        if self._digests:
            gone = asyncio.create_task(client_gone(receive))
            try:
                if await still_there(gone):
                    await self._context.store.answered(self._digests)
            finally:
                gone.cancel()
                await asyncio.wait([gone])
        await super().__call__(scope, receive, send)
