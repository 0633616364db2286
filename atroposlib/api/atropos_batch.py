"""GET /batch: a lease that acks and commits itself when the answer has been handed over whole."""

from __future__ import annotations

from functools import partial

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from atroposlib.api.asking import ask, lease_request
from atroposlib.api.context import ApiContext
from atroposlib.api.delivery import hand_over
from atroposlib.api.payloads import json_parts
from atroposlib.api.streaming import send_end, send_json
from atroposlib.errors import ApiError
from atroposlib.store.protocol import ATROPOS_TRAINER, Lease, RunState

LEASE_S = 30.0
"""Renewed while the answer is sent, so it only says how soon a batch comes again after this process died."""


class BatchAnswer(Response):
    """Leases a batch, sends it, and acknowledges it; a client that went away leaves it in the queue.

    Args:
        context: The API's parts.
        run: The run as it is when the trainer asks.
        sequences: Size of the batch.
    """

    def __init__(self, context: ApiContext, run: RunState, sequences: int) -> None:
        super().__init__(media_type="application/json")
        self._context = context
        self._run = run
        self._request = lease_request(context, run, ATROPOS_TRAINER, sequences, LEASE_S)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send a batch, or ``{"batch": null}`` when none can be formed."""
        context = self._context
        lease = await ask(context, self._request)
        if lease is None:
            await JSONResponse({"batch": None})(scope, receive, send)
            return
        write = send_json(scope, send, json_parts(context, lease, b'{"batch":['), context.offload)
        if await hand_over(context, lease, LEASE_S, write, receive, partial(self._settle, lease)):
            context.metrics.deliver(lease.groups, self._run.step)
            await send_end(send)

    async def _settle(self, lease: Lease) -> bool:
        # Acknowledged just before the end is marked: a trainer never gets whole what may come again.
        try:
            await self._context.store.ack(lease.batch_id, lease.attempt, self._context.clock(), commit=True)
        except ApiError:
            # The run was reset while the batch was sent.
            return False
        return True
