"""The groups of a lease as a client wants them: read one by one, converted off the loop where they differ."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from atroposlib.api.context import ApiContext
from atroposlib.api.streaming import ahead
from atroposlib.errors import ApiError
from atroposlib.store.protocol import Lease
from atroposlib.wire import jobs
from atroposlib.wire.batch import END, record_parts
from atroposlib.wire.posted import Format, GroupFacts

PROCESS_FROM_BYTES = 1 << 14
"""A smaller group is converted at once."""


async def payload(context: ApiContext, facts: GroupFacts, wanted: Format) -> bytes:
    """The bytes of one group as JSON or as a frame.

    Raises:
        ApiError: api.unknown_batch when the store was reset meanwhile, api.worker_lost.
    """
    try:
        stored = await context.store.payload(facts.group_id)
    except KeyError as error:
        raise ApiError("the group is no longer kept", code="api.unknown_batch", got=facts.group_id) from error
    if facts.format == wanted:
        return stored
    convert = jobs.frame_to_json if wanted == "json" else jobs.json_to_frame
    if len(stored) < PROCESS_FROM_BYTES:
        return convert(stored)
    return await context.offload.in_process(convert, stored)


async def json_parts(context: ApiContext, lease: Lease, opening: bytes) -> AsyncGenerator[bytes, None]:
    """A JSON document that ends in the list of the lease's groups.

    Args:
        context: The API's parts.
        lease: The batch.
        opening: All of the document before the first group.
    """
    between = opening
    async with aclosing(_payloads(context, lease, "json")) as payloads:
        async for group in payloads:
            yield between
            yield group
            between = b","
    yield b"]}"


async def record_stream(context: ApiContext, lease: Lease) -> AsyncGenerator[bytes, None]:
    """The lease's groups as the records of a batch body."""
    async with aclosing(_payloads(context, lease, "frame")) as payloads:
        async for frame in payloads:
            for part in record_parts(frame):
                yield part
    yield END


async def _payloads(context: ApiContext, lease: Lease, wanted: Format) -> AsyncGenerator[bytes, None]:
    calls = (partial(payload, context, facts, wanted) for facts in lease.groups)
    async with aclosing(ahead(calls)) as results:
        async for group in results:
            context.metrics.move(wanted, "out", len(group))
            yield group
