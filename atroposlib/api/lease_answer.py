"""POST /v1/batches/lease: waits for a batch and streams it, as frames or as JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from atroposlib.api.asking import ask_for
from atroposlib.api.context import ApiContext
from atroposlib.api.delivery import client_gone, hand_over
from atroposlib.api.payloads import json_parts, record_stream
from atroposlib.api.streaming import send_end, send_json, send_parts
from atroposlib.store.protocol import Lease
from atroposlib.wire.media import BATCH_TYPE


@dataclass(frozen=True, slots=True)
class Asked:
    """What the trainer asked for: its id, sequences, seconds to wait, seconds of the lease."""

    trainer_id: str
    sequences: int
    wait_s: float
    lease_s: float


class LeaseAnswer(Response):
    """A batch that stays leased when it was handed over; 204 when none came in time.

    Args:
        context: The API's parts.
        asked: By the trainer.
    """

    def __init__(self, context: ApiContext, asked: Asked) -> None:
        super().__init__(media_type=BATCH_TYPE)
        self._context = context
        self._asked = asked

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wait, then send."""
        lease = await self._lease(receive)
        if lease is None:
            await Response(status_code=204)(scope, receive, send)
            return
        step = (await self._context.store.run()).step
        write = self._write(lease, step, scope, send)
        if await hand_over(self._context, lease, self._asked.lease_s, write, receive):
            self._context.metrics.deliver(lease.groups, step)
            await send_end(send)

    async def _lease(self, receive: Receive) -> Lease | None:
        gone = asyncio.create_task(client_gone(receive))
        asked = self._asked
        try:
            return await ask_for(
                self._context, asked.trainer_id, asked.sequences, asked.lease_s, asked.wait_s, gone
            )
        finally:
            # Not waited for, as in ask_for.
            gone.cancel()

    def _write(self, lease: Lease, step: int, scope: Scope, send: Send) -> Coroutine[Any, Any, None]:
        named = {
            "Atropos-Batch-Id": lease.batch_id,
            "Atropos-Attempt": str(lease.attempt),
            "Atropos-Lease-Expires": f"{lease.expires_at:.3f}",
            "Atropos-Step": str(step),
        }
        if not prefers_json(Headers(scope=scope).get("accept", "")):
            return send_parts(send, record_stream(self._context, lease), BATCH_TYPE, named)
        facts = {
            "batch_id": lease.batch_id,
            "attempt": lease.attempt,
            "expires_at": lease.expires_at,
            "step": step,
        }
        opening = orjson.dumps(facts)[:-1] + b',"batch":['
        return send_json(scope, send, json_parts(self._context, lease, opening), self._context.offload, named)


def prefers_json(accept: str) -> bool:
    """Whether an Accept header names JSON and does not name frames before it."""
    named = [part.partition(";")[0].strip().lower() for part in accept.split(",")]
    spoken = [name for name in named if name in (BATCH_TYPE, "application/json")]
    return spoken[:1] == ["application/json"]
