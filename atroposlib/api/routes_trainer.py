"""Atropos's routes for trainers: register, then poll for batches."""

from __future__ import annotations

import uuid

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from atroposlib.api.atropos_batch import BatchAnswer
from atroposlib.api.context import Context
from atroposlib.store.protocol import ATROPOS_TRAINER
from atroposlib.wire.registrations import Registration

router = APIRouter(tags=["trainers of Atropos"])


@router.post("/register")
async def register(registration: Registration, context: Context) -> Response:
    """Register a trainer; other values than the run's replace them, and the step becomes their first."""
    await context.store.register(registration, context.clock())
    return JSONResponse({"uuid": uuid.uuid4().int})


@router.get("/batch")
async def batch(context: Context) -> Response:
    """A batch of exactly the registered number of sequences, or null; the first call starts the run."""
    run = await context.store.run()
    if run.registration is None:
        return JSONResponse(
            {
                "status": "error",
                "message": "Trainer not registered. Call /register first.",
                "batch": [],
            }
        )
    await context.store.start(ATROPOS_TRAINER, context.clock())
    return BatchAnswer(context, run, run.registration.batch_size)


@router.get("/info")
async def info(context: Context) -> Response:
    """Batch size (sequences) and longest sequence (tokens); -1 before a trainer registered."""
    registration = (await context.store.run()).registration
    if registration is None:
        return JSONResponse({"batch_size": -1, "max_token_len": -1})
    return JSONResponse({"batch_size": registration.batch_size, "max_token_len": registration.max_token_len})


@router.get("/wandb_info")
async def wandb_info(context: Context) -> Response:
    """The trainer's Weights & Biases group and project; null before it registered."""
    registration = (await context.store.run()).registration
    if registration is None:
        return JSONResponse({"group": None, "project": None})
    return JSONResponse({"group": registration.wandb_group, "project": registration.wandb_project})
