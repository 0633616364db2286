"""Hands a leased batch to the client that asked, or gives it back when that client does not get it whole."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from starlette.types import Receive

from atroposlib.api.context import ApiContext
from atroposlib.errors import ApiError
from atroposlib.store.protocol import Lease

logger = logging.getLogger(__name__)

LOOP_TURNS = 6
"""One for the watcher to start, and one each until a close that lies in the socket has reached it."""


async def hand_over(
    context: ApiContext,
    lease: Lease,
    lease_s: float,
    write: Coroutine[Any, Any, None],
    receive: Receive,
    confirm: Callable[[], Awaitable[bool]] | None = None,
) -> bool:
    """Send a batch up to the mark of its end; whatever goes wrong, nothing of it is lost.

    Args:
        context: The API's parts.
        lease: The batch; renewed while it is sent, released when it was not delivered.
        lease_s: Seconds for which it was leased.
        write: Sends all but the end.
        receive: Of the request; tells when the client goes away.
        confirm: Called when all is sent and the client is still there; False takes the delivery back.

    Returns:
        Whether the end can be sent.

    Raises:
        Exception: What ``write`` raised. The batch is due again, and after five times a dead letter: were it
            queued again, a group that cannot be read or converted would head every batch for ever.
    """
    ended = asyncio.get_running_loop().create_future()
    context.deliveries.add(ended)
    delivered = False
    try:
        # Nothing is waited for once it is delivered: a cancellation would leave it leased and not sent whole.
        delivered = await _sent(context, lease, lease_s, write, receive) and (
            confirm is None or await confirm()
        )
    except Exception as error:
        await _put_aside(context, lease, error)
        raise
    finally:
        try:
            if not delivered:
                await context.store.release(lease.batch_id, lease.attempt)
        finally:
            context.deliveries.discard(ended)
            ended.set_result(None)
    return delivered


async def _sent(
    context: ApiContext, lease: Lease, lease_s: float, write: Coroutine[Any, Any, None], receive: Receive
) -> bool:
    writing, gone = asyncio.create_task(write), asyncio.create_task(client_gone(receive))
    try:
        return await _written(context, lease, lease_s, writing, gone)
    finally:
        writing.cancel()
        gone.cancel()
        await asyncio.wait([writing, gone])


async def _written(
    context: ApiContext,
    lease: Lease,
    lease_s: float,
    writing: asyncio.Task[None],
    gone: asyncio.Task[None],
) -> bool:
    """Wait until all is written and the client is still there; False when it went or is too slow."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + context.settings.delivery_timeout_s
    while not writing.done():
        left = deadline - loop.time()
        if left <= 0:
            logger.warning(
                "a trainer did not read its batch within %g s; its groups are queued again",
                context.settings.delivery_timeout_s,
            )
            return False
        await asyncio.wait(
            {writing, gone}, timeout=min(left, lease_s / 3), return_when=asyncio.FIRST_COMPLETED
        )
        if gone.done():
            return False
        if not writing.done() and not await _renewed(context, lease, lease_s):
            return False
    writing.result()
    return await still_there(gone)


async def _put_aside(context: ApiContext, lease: Lease, error: Exception) -> None:
    why = f"it could not be sent: {error}"
    try:
        await context.store.nack(lease.batch_id, lease.attempt, why, context.clock())
    except ApiError as lost:
        # The batch was taken back, or the store fails too: then its lease ends by itself.
        logger.warning("%s; %s", why, lost)


async def _renewed(context: ApiContext, lease: Lease, lease_s: float) -> bool:
    try:
        await context.store.heartbeat(lease.batch_id, lease.attempt, lease_s, context.clock())
    except ApiError as error:
        logger.warning("a batch was taken back while it was sent: %s", error)
        return False
    return True


async def client_gone(receive: Receive) -> None:
    """Return when the connection is closed."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def still_there(gone: asyncio.Task[None]) -> bool:
    """Whether the client has not gone away, as far as the socket tells by now."""
    for _ in range(LOOP_TURNS):
        await asyncio.sleep(0)
    return not gone.done()
