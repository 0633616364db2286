"""/v1/batches: lease a batch, keep it, say that it is trained or that it cannot be used."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from atroposlib.api.context import Context
from atroposlib.api.lease_answer import Asked, LeaseAnswer
from atroposlib.api.v1_models import AckBody, Expiry, HeartbeatBody, LeaseBody, NackBody, Step, problems
from atroposlib.errors import ApiError
from atroposlib.wire.media import BATCH_TYPE

router = APIRouter(prefix="/v1/batches", tags=["batches"])

_TEXT = {"schema": {"type": "string"}}
LEASED = {
    "description": "A batch: records of frames, or JSON when Accept prefers it.",
    "headers": {
        "Atropos-Batch-Id": {**_TEXT, "description": "Names the batch, also when it is delivered again."},
        "Atropos-Attempt": {**_TEXT, "description": "1 at the first delivery."},
        "Atropos-Lease-Expires": {**_TEXT, "description": "Unix seconds."},
        "Atropos-Step": {**_TEXT, "description": "The step of the run."},
    },
    "content": {
        BATCH_TYPE: {"schema": {"type": "string", "format": "binary"}},
        "application/json": {"schema": {"type": "object"}},
    },
}


@router.post(
    "/lease",
    response_class=Response,
    responses={200: LEASED, 204: {"description": "No batch came in time."}, **problems(409, 422, 503)},
)
async def lease(body: LeaseBody, context: Context) -> Response:
    """Lease the next batch: what is due again, else a new one of the oldest groups."""
    run = await context.store.run()
    known = any(trainer.trainer_id == body.trainer_id for trainer in run.trainers)
    if run.registration is None or not known:
        raise ApiError(
            "the trainer is not registered",
            code="api.not_registered",
            got=body.trainer_id,
            fix="register it with POST /v1/trainers",
        )
    await context.store.start(body.trainer_id, context.clock())
    sequences = body.n_sequences or run.registration.batch_size
    return LeaseAnswer(context, Asked(body.trainer_id, sequences, body.wait_s, body.lease_s))


@router.post("/{batch_id}/heartbeat", response_model=Expiry, responses=problems(404, 409, 422))
async def heartbeat(batch_id: str, body: HeartbeatBody, context: Context) -> JSONResponse:
    """Renew a lease."""
    expires_at = await context.store.heartbeat(batch_id, body.attempt, body.lease_s, context.clock())
    return JSONResponse({"expires_at": expires_at})


@router.post("/{batch_id}/ack", response_model=Step, responses=problems(404, 409, 422))
async def ack(batch_id: str, body: AckBody, context: Context) -> JSONResponse:
    """The batch is trained; the first ack of a batch counts the step up. Kept until committed."""
    return JSONResponse({"step": await context.store.ack(batch_id, body.attempt, context.clock())})


@router.post("/{batch_id}/nack", status_code=204, responses=problems(404, 409, 422))
async def nack(batch_id: str, body: NackBody, context: Context) -> Response:
    """The trainer cannot use the batch now: it is due again at once."""
    await context.store.nack(batch_id, body.attempt, body.reason, context.clock())
    return Response(status_code=204)
