"""Asks the store for a batch, at once or for a while, and keeps note of who waits for one and why."""

from __future__ import annotations

import asyncio

from atroposlib.api.context import ApiContext
from atroposlib.api.sharing import minimums, why_no_batch
from atroposlib.errors import ApiError
from atroposlib.store.protocol import Lease, LeaseRequest, RunState

AWAITED = "a batch"

LOOK_EVERY_S = 1.0
"""What only time brings about, such as a waived minimum share, wakes nobody."""


def lease_request(
    context: ApiContext, run: RunState, trainer_id: str, sequences: int, lease_s: float
) -> LeaseRequest:
    """What to ask the store for, with the minimum shares as they are now."""
    least = minimums(run, context.settings, sequences, context.clock())
    return LeaseRequest(trainer_id, sequences, lease_s, least)


async def ask(context: ApiContext, request: LeaseRequest) -> Lease | None:
    """Lease a batch now, or None.

    Raises:
        ApiError: api.draining when the API is about to stop.
    """
    if context.draining.is_set():
        raise ApiError("the API is stopping", code="api.draining", fix="ask again when it is back")
    now, who = context.clock(), f"trainer {request.trainer_id}"
    before = await context.store.stats()
    lease = await context.store.lease(request, now)
    if lease is not None:
        context.metrics.wait("trainer", context.waits.end(who, AWAITED, now))
        if lease.attempt == 1 and before.oldest_queued_at is not None:
            context.metrics.form(max(0.0, now - before.oldest_queued_at))
        return lease
    reason = why_no_batch(await context.store.stats(), request.sequences, request.minimums)
    context.waits.note(who, AWAITED, reason.why, now)
    if reason.stuck:
        context.waits.warn_once(reason.why)
    return None


async def ask_for(
    context: ApiContext,
    trainer_id: str,
    sequences: int,
    lease_s: float,
    wait_s: float,
    gone: asyncio.Task[None],
) -> Lease | None:
    """Lease a batch within ``wait_s`` seconds, or None when there is none or the client went away.

    Raises:
        ApiError: api.draining, also when the API is told to stop while the client waits.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_s
    draining = asyncio.create_task(context.draining.wait())
    try:
        while True:
            left = deadline - loop.time()
            # Begun before the store is asked, so that nothing queued in between goes unnoticed.
            news = asyncio.create_task(context.store.wait(max(0.0, min(left, LOOK_EVERY_S))))
            try:
                await asyncio.sleep(0)
                request = lease_request(context, await context.store.run(), trainer_id, sequences, lease_s)
                lease = await ask(context, request)
                if lease is not None or left <= 0 or gone.done():
                    return lease
                await asyncio.wait({news, draining, gone}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                news.cancel()
    finally:
        # Not waited for: a cancellation meanwhile would lose a lease that has been taken.
        draining.cancel()
