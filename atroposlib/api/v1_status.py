"""/v1/status and /v1/dead-letters: where every group is, who takes part, who waits for whom."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import JSONResponse

from atroposlib.api.context import ApiContext, Context
from atroposlib.api.sharing import connected
from atroposlib.api.v1_models import DeadLetters, RequeueBody, Requeued, problems
from atroposlib.store.protocol import RunState, StoreStats

router = APIRouter(prefix="/v1", tags=["status"])


@router.get("/status")
async def status(context: Context) -> JSONResponse:
    """Where every group is, who takes part, and who waits for whom since when (unix seconds).

    `received = queued + leased + trained + sum(dropped) + dead` at all times. `uncommitted` are those of
    `trained` that are kept until a checkpoint holds them. `duplicates` (repeated posts) and `refused`
    (invalid posts, since this process was started) are not among the received.
    """
    run, stats, now = await context.store.run(), await context.store.stats(), context.clock()
    return JSONResponse(
        {
            "step": run.step,
            "batch_size": run.registration.batch_size if run.registration else None,
            "waiting": context.waits.listed(now),
            "queue": {"groups": stats.queued, "sequences": stats.queued_sequences},
            "groups": _groups(stats, context.metrics.refused),
            "uncommitted": stats.uncommitted,
            "held_bytes": stats.held_bytes,
            "envs": _envs(context, run, now),
            "trainer": _trainer(run, now),
            "trainers": _trainers(run, now),
            "store": _store(context),
        }
    )


@router.get("/dead-letters", response_model=DeadLetters)
async def dead_letters(context: Context) -> JSONResponse:
    """Batches that were delivered five times and never acked."""
    listed = [
        {
            "batch_id": letter.batch_id,
            "attempts": letter.attempts,
            "since": letter.since,
            "reason": letter.reason,
            "groups": [group.group_id for group in letter.groups],
        }
        for letter in await context.store.dead_letters()
    ]
    return JSONResponse({"dead_letters": listed})


@router.post("/dead-letters/requeue", response_model=Requeued, responses=problems(404, 422))
async def requeue(body: RequeueBody, context: Context) -> JSONResponse:
    """Queue the groups of one dead batch again, or of all."""
    return JSONResponse({"requeued": await context.store.requeue(body.batch_id, context.clock())})


def _groups(stats: StoreStats, refused: int) -> dict[str, Any]:
    return {
        "received": stats.received,
        "queued": stats.queued,
        "leased": stats.leased,
        "trained": stats.trained,
        "dropped": dict(stats.dropped),
        "dead": stats.dead,
        "duplicates": stats.duplicates,
        "refused": refused,
    }


def _envs(context: ApiContext, run: RunState, now: float) -> list[dict[str, Any]]:
    taking_part = {env.env_id for env in connected(run, context.settings, now)}
    return [
        {
            "env_id": env.env_id,
            "name": env.name,
            "connected": env.env_id in taking_part,
            "groups_received": env.groups_received,
            "seconds_since_seen": now - env.last_seen,
        }
        for env in run.envs
    ]


def _trainer(run: RunState, now: float) -> dict[str, Any]:
    seen = [trainer.last_seen for trainer in run.trainers]
    return {
        "registered": run.registration is not None,
        "seconds_since_seen": now - max(seen) if seen else None,
    }


def _trainers(run: RunState, now: float) -> list[dict[str, Any]]:
    return [
        {
            "trainer_id": trainer.trainer_id,
            "seconds_since_seen": now - trainer.last_seen,
            "last_committed": trainer.last_committed,
            "leased": trainer.leased,
            "acked": trainer.acked,
        }
        for trainer in run.trainers
    ]


def _store(context: ApiContext) -> dict[str, str]:
    scheme = context.settings.store.partition(":")[0]
    return {"engine": scheme, "durability": "none" if scheme == "memory" else context.settings.durability}
