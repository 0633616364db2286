"""Routes that tell how things stand, for Atropos's clients and for supervisors; and the one that forgets."""

from __future__ import annotations

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, PlainTextResponse, Response

from atroposlib.api.context import Context
from atroposlib.api.metrics import Metrics, store_figures
from atroposlib.api.payloads import payload
from atroposlib.api.sharing import connected
from atroposlib.api.streaming import StoredJson
from atroposlib.api.waits import Waits
from atroposlib.wire.atropos_json import NO_EXAMPLE

router = APIRouter(tags=["status"])


@router.get("/")
async def root() -> Response:
    """Says what answers here."""
    return JSONResponse({"message": "AtroposLib API"})


@router.get("/healthz")
async def healthz() -> Response:
    """200 as long as requests are served."""
    return JSONResponse({"status": "ok"})


@router.get("/readyz")
async def readyz(context: Context) -> Response:
    """200 while groups are taken and batches handed out; 503 while the API is stopping."""
    if context.draining.is_set():
        return JSONResponse({"status": "draining"}, 503)
    if context.sweeper is not None and context.sweeper.done():
        return JSONResponse({"status": "leases no longer expire"}, 503)
    return JSONResponse({"status": "ok"})


@router.get("/status")
async def status(context: Context) -> Response:
    """The step and the number of queued groups."""
    run, stats = await context.store.run(), await context.store.stats()
    return JSONResponse({"current_step": run.step, "queue_size": stats.queued})


@router.get("/latest_example")
async def latest_example(context: Context) -> Response:
    """The group that was accepted last and is still kept."""
    latest = await context.store.latest()
    document = NO_EXAMPLE if latest is None else await payload(context, latest, "json")
    return StoredJson(document, context.offload)


@router.get("/reset_data")
async def reset_data(context: Context) -> Response:
    """Forget the run: registrations, groups, batches, counts."""
    await context.store.reset()
    context.waits, context.metrics = Waits(), Metrics()
    return PlainTextResponse("Reset successful")


@router.get("/metrics")
async def metrics(context: Context) -> Response:
    """Figures for Prometheus; `atropos metrics` lists them."""
    run, now = await context.store.run(), context.clock()
    taking_part = len(connected(run, context.settings, now))
    figures = store_figures(await context.store.stats(), run, taking_part, now)
    return Response(context.metrics.page(figures), media_type=CONTENT_TYPE_LATEST)
