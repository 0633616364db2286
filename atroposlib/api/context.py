"""What the routes of one API share; every app has its own, so nothing is global."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, cast

from fastapi import Depends, Request

from atroposlib.api.metrics import Metrics
from atroposlib.api.waits import Waits
from atroposlib.config.api import ApiSettings
from atroposlib.errors import ApiError
from atroposlib.offload import Offload
from atroposlib.store.protocol import GroupStore


def worker_lost() -> ApiError:
    """What a client is told when the process that worked on its body died."""
    return ApiError(
        "the process that worked on the body died",
        code="api.worker_lost",
        fix="repeat the request; when it happens again, the machine has too little memory for it",
    )


def _offload() -> Offload:
    return Offload(lost=worker_lost, preloaded=["atroposlib.wire.jobs"])


@dataclass(slots=True)
class ApiContext:
    """The parts of one API process. What is not in the store may be lost with it.

    Attributes:
        settings: Its settings.
        store: Groups, batches and the run.
        clock: Unix seconds.
        offload: Workers for large bodies.
        metrics: Counters of what only this process sees.
        waits: Who asked for something and did not get it yet.
        draining: Set when the process is told to stop.
        deliveries: One future for each answer that carries a batch and is being sent.
        sweeper: The store's housekeeping, None before the application started.
    """

    settings: ApiSettings
    store: GroupStore
    clock: Callable[[], float]
    offload: Offload = field(default_factory=_offload)
    metrics: Metrics = field(default_factory=Metrics)
    waits: Waits = field(default_factory=Waits)
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    deliveries: set[asyncio.Future[None]] = field(default_factory=set)
    sweeper: asyncio.Task[None] | None = None


async def _context(request: Request) -> ApiContext:
    # Not a plain function: FastAPI would call that in a thread, at every request.
    return cast(ApiContext, request.app.state.context)


Context = Annotated[ApiContext, Depends(_context)]
