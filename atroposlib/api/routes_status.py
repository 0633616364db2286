"""Routes that tell how the run stands, and the one that forgets it."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import JSONResponse, PlainTextResponse, Response

from atroposlib.api.context import ApiContext, Context
from atroposlib.api.streaming import StoredJson
from atroposlib.wire.atropos_json import NO_EXAMPLE

router = APIRouter(tags=["status"])


@router.get("/")
async def root() -> Response:
    """Says what answers here."""
    return JSONResponse({"message": "AtroposLib API"})


@router.get("/healthz")
@router.get("/readyz")
async def health() -> Response:
    """200 as soon as requests are served."""
    return JSONResponse({"status": "ok"})


@router.get("/status")
async def status(context: Context) -> Response:
    """The step and the number of queued groups."""
    stats = await context.store.stats()
    return JSONResponse({"current_step": context.run.step, "queue_size": stats.queued})


@router.get("/latest_example")
async def latest_example(context: Context) -> Response:
    """The group that was accepted last."""
    latest = await context.store.latest()
    return StoredJson(NO_EXAMPLE if latest is None else latest.payload, context.offload)


@router.get("/reset_data")
async def reset_data(context: Context) -> Response:
    """Forget the run: registrations, groups, counts."""
    await context.store.reset()
    context.run = context.new_run()
    context.refused = 0
    return PlainTextResponse("Reset successful")


@router.get("/v1/status")
async def status_v1(context: Context) -> Response:
    """Where every group is, who takes part, and since when each is silent (seconds).

    ``received = queued + leased + trained + sum(dropped) + dead`` at all times; ``trained`` are groups handed
    over whole. ``waiting`` says why the last question for a batch got none though enough is queued.
    ``duplicates`` (repeated posts) and ``refused`` (invalid posts) are not among the received.
    """
    run, now = context.run, context.clock()
    stats = await context.store.stats()
    return JSONResponse(
        {
            "step": run.step,
            "batch_size": run.registration.batch_size if run.registration else None,
            "waiting": run.waiting,
            "queue": {"groups": stats.queued, "sequences": stats.queued_sequences},
            "groups": {
                "received": stats.received,
                "queued": stats.queued,
                "leased": stats.leased,
                "trained": stats.trained,
                "dropped": dict(stats.dropped),
                "dead": stats.dead,
                "duplicates": stats.duplicates,
                "refused": context.refused,
            },
            "envs": _envs(context, now),
            "trainer": {
                "registered": run.registration is not None,
                "seconds_since_seen": None if run.trainer_seen is None else now - run.trainer_seen,
            },
        }
    )


def _envs(context: ApiContext, now: float) -> list[dict[str, object]]:
    connected = {env.env_id for env in context.run.connected(now)}
    return [
        {
            "env_id": env.env_id,
            "name": env.name,
            "connected": env.env_id in connected,
            "groups_received": env.groups_received,
            "seconds_since_seen": now - env.last_seen,
        }
        for env in context.run.envs
    ]
