"""Atropos's routes for environments: register, ask how much is wanted, post groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from atroposlib.api.context import ApiContext, Context
from atroposlib.api.run_state import EnvRegistration
from atroposlib.api.sharing import status_env as share
from atroposlib.errors import WireError
from atroposlib.wire.atropos_json import decode_group, decode_groups
from atroposlib.wire.posted import PostedGroup

router = APIRouter(tags=["environment"])


class EnvIdentifier(BaseModel):
    """Names an environment."""

    env_id: int


@router.post("/register-env")
async def register_env(registration: EnvRegistration, context: Context) -> Response:
    """Give an environment its id, once a trainer has asked for a first batch."""
    run = context.run
    if run.registration is None or not run.started:
        return JSONResponse({"status": "wait for trainer to start"})
    env = run.add_env(registration, context.clock())
    return JSONResponse(
        {
            "status": "success",
            "env_id": env.env_id,
            "wandb_name": env.name,
            "checkpoint_dir": run.registration.checkpoint_dir,
            "starting_step": run.step,
            "checkpoint_interval": run.registration.save_checkpoint_interval,
            "num_steps": run.registration.num_steps,
        }
    )


@router.post("/disconnect-env")
async def disconnect_env(identifier: EnvIdentifier, context: Context) -> Response:
    """Take an environment out of the sharing; what it posted stays queued."""
    env = context.run.env(identifier.env_id)
    if env is None:
        return JSONResponse({"status": "failure", "error": f"no environment has the id {identifier.env_id}"})
    env.left = True
    return JSONResponse({"status": "success"})


@router.get("/status-env")
async def status_env(identifier: EnvIdentifier, context: Context) -> Response:
    """How much an environment should produce. A GET with a JSON body, as Atropos's clients send it."""
    run, now = context.run, context.clock()
    run.see(identifier.env_id, now)
    figures = share(
        identifier.env_id,
        run.env(identifier.env_id),
        run.connected(now),
        await context.store.stats(),
        run.registration.batch_size if run.registration else 0,
    )
    return JSONResponse({"current_step": run.step, **figures})


@router.post("/scored_data")
async def scored_data(request: Request, context: Context) -> Response:
    """Take one group."""
    await _accept(request, context, decode_group)
    return JSONResponse({"status": "received"})


@router.post("/scored_data_list")
async def scored_data_list(request: Request, context: Context) -> Response:
    """Take several groups, all or none."""
    groups = await _accept(request, context, decode_groups)
    return JSONResponse({"status": "received", "groups_processed": len(groups)})


async def _accept(
    request: Request, context: ApiContext, decode: Callable[[bytes], list[PostedGroup]]
) -> list[PostedGroup]:
    body = await request.body()
    try:
        groups = await context.offload.run(len(body), decode, body)
    except WireError:
        context.refused += 1
        raise
    new = Counter(group.env_id for group in await context.store.put(groups))
    now = context.clock()
    for env_id in {group.env_id for group in groups}:
        context.run.see(env_id, now, groups=new[env_id])
    return groups
