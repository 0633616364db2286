"""/v1/envs: environments register and say that they are alive."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from starlette.responses import JSONResponse

from atroposlib.api.context import Context
from atroposlib.api.environments import figures, register
from atroposlib.api.sharing import find_env
from atroposlib.api.v1_models import EnvFigures, RegisteredEnv, problems
from atroposlib.errors import ApiError
from atroposlib.wire.registrations import EnvRegistration

router = APIRouter(prefix="/v1/envs", tags=["environments"])

EnvId = Annotated[int, Path(ge=0, lt=2**31)]


@router.post("", response_model=RegisteredEnv, responses=problems(409, 422))
async def register_env(registration: EnvRegistration, context: Context) -> JSONResponse:
    """Give an environment its id, the same one again for an `identity`; 409 before a trainer started."""
    registered = await register(context, registration)
    if registered is None:
        raise ApiError("no trainer has started", code="api.not_registered", fix="ask again in a second")
    return JSONResponse(registered)


@router.post("/{env_id}/heartbeat", response_model=EnvFigures, responses=problems(404, 422))
async def heartbeat(env_id: EnvId, context: Context) -> JSONResponse:
    """Say that an environment is alive, and how much it should produce."""
    if find_env(await context.store.run(), env_id) is None:
        raise ApiError("no environment has this id", code="api.unknown_env", got=env_id, fix="register again")
    return JSONResponse(await figures(context, env_id))
