"""/v1/trainers: trainers register under a name that survives their restart, and commit what they trained."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from atroposlib.api.context import Context
from atroposlib.api.v1_models import CommitBody, Committed, RegisteredTrainer, problems
from atroposlib.errors import WireError
from atroposlib.store.protocol import ATROPOS_TRAINER
from atroposlib.wire.registrations import TrainerRegistration

router = APIRouter(prefix="/v1/trainers", tags=["trainers"])


@router.post("", response_model=RegisteredTrainer, responses=problems(422))
async def register_trainer(registration: TrainerRegistration, context: Context) -> JSONResponse:
    """Register a trainer, or one that came back.

    Of a trainer that came back, batches acked up to `last_committed` are committed; later ones, and those it
    had leased, come again under the same ids before new ones.
    """
    trainer_id = registration.trainer_id
    if trainer_id == ATROPOS_TRAINER:
        raise WireError(
            "this name is that of whoever asks GET /batch",
            code="wire.invalid_request",
            where="trainer_id",
            got=trainer_id,
        )
    replayed = await context.store.register_trainer(
        trainer_id, registration.run, registration.last_committed, context.clock()
    )
    step = (await context.store.run()).step
    return JSONResponse(
        {
            "trainer_id": trainer_id,
            "step": step,
            "replayed": replayed,
            "batch_size": registration.run.batch_size,
        }
    )


@router.post("/{trainer_id:path}/commit", response_model=Committed, responses=problems(404, 422))
async def commit(trainer_id: str, body: CommitBody, context: Context) -> JSONResponse:
    """Commit a batch and all that this trainer acked before it: they are in a durable checkpoint."""
    return JSONResponse({"committed": await context.store.commit(trainer_id, body.batch_id, context.clock())})


@router.delete("/{trainer_id:path}", status_code=204, responses=problems(404))
async def forget(trainer_id: str, context: Context) -> Response:
    """Forget a trainer that will not come back: what it acked is committed, its leases go to others."""
    await context.store.forget_trainer(trainer_id, context.clock())
    return Response(status_code=204)
