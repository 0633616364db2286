"""GET /batch: a lease that settles itself when the answer has been handed over whole."""

from __future__ import annotations

import asyncio
import logging

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from atroposlib.api.context import ApiContext
from atroposlib.api.run_state import Run
from atroposlib.api.sharing import why_no_batch
from atroposlib.api.streaming import end_json, send_json
from atroposlib.store.protocol import Lease
from atroposlib.wire.atropos_json import batch_parts

logger = logging.getLogger(__name__)

LOOP_TURNS = 3
"""The first turn starts the watcher; two more let a close that already lies in the socket reach it."""


class BatchAnswer(Response):
    """Leases a batch, sends it, and acknowledges it; a client that went away leaves it in the queue.

    Args:
        context: The API's parts.
        run: The run that asks.
        batch_size: Sequences of the batch.
    """

    def __init__(self, context: ApiContext, run: Run, batch_size: int) -> None:
        super().__init__(media_type="application/json")
        self._context = context
        self._run = run
        self._batch_size = batch_size

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send a batch, or ``{"batch": null}`` when none can be formed."""
        minimums = self._run.minimums(self._context.clock())
        lease = await self._context.store.lease(self._batch_size, minimums)
        if lease is None:
            stats = await self._context.store.stats()
            self._run.wait_because(why_no_batch(stats, self._batch_size, minimums))
            await JSONResponse({"batch": None})(scope, receive, send)
            return
        self._run.wait_because(None)
        gone = asyncio.create_task(_client_gone(receive))
        try:
            if await self._deliver(lease, scope, send, gone):
                await end_json(send)
        finally:
            # A no-op after the acknowledgement; otherwise, cancelled or not, nothing is lost.
            await self._context.store.release(lease.batch_id)
            gone.cancel()
            await asyncio.wait([gone])

    async def _deliver(self, lease: Lease, scope: Scope, send: Send, gone: asyncio.Task[None]) -> bool:
        payloads = [group.payload for group in lease.groups]
        size = sum(len(payload) for payload in payloads)
        limit_s = self._context.settings.delivery_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                await send_json(scope, send, batch_parts(payloads), size, self._context.offload)
        except TimeoutError:
            logger.warning(
                "a trainer did not read its batch within %g s; its groups are queued again", limit_s
            )
            return False
        for _ in range(LOOP_TURNS):
            await asyncio.sleep(0)
        if gone.done():
            return False
        # Acknowledged just before the end is marked: a trainer never gets whole what may come again.
        acknowledged = await self._context.store.ack(lease.batch_id)
        if acknowledged:
            self._run.step += 1
        return acknowledged


async def _client_gone(receive: Receive) -> None:
    """Return when the connection is closed."""
    while (await receive())["type"] != "http.disconnect":
        pass
