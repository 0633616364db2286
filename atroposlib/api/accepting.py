"""Reads posted groups off the loop, stores them, and keeps count of what was refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable
from dataclasses import replace

from fastapi import Request

from atroposlib.api.context import ApiContext
from atroposlib.api.reading import frame_groups, json_groups
from atroposlib.errors import ApiError, WireError
from atroposlib.store.protocol import Accepted
from atroposlib.wire.posted import Format, PostedGroup

ROOM = "room in the queue"


async def take_json(context: ApiContext, request: Request, many: bool | None) -> list[PostedGroup]:
    """The validated groups of a JSON body: one, several (``many``), or either (None).

    Raises:
        WireError: The body was refused, and counted.
        ApiError: api.worker_lost.
    """
    body = await request.body()
    gzipped = "gzip" in request.headers.get("content-encoding", "").lower()
    return await _counted(context, json_groups(context.offload, body, gzipped, many), len(body), "json")


async def take_frames(context: ApiContext, request: Request, media_type: str) -> list[PostedGroup]:
    """The validated groups of a frame or a batch of frames. Raises as :func:`take_json`."""
    body = await request.body()
    return await _counted(context, frame_groups(context.offload, body, media_type), len(body), "frame")


async def put(context: ApiContext, groups: list[PostedGroup]) -> list[Accepted]:
    """Store groups, all or none.

    Raises:
        ApiError: api.queue_full; their environments are noted as waiting.
    """
    now = context.clock()
    posters = {f"environment {group.facts.env_id}" for group in groups}
    try:
        accepted = await context.store.put(groups, now)
    except ApiError as error:
        if error.code == "api.queue_full":
            for who in posters:
                context.waits.note(who, ROOM, error.what, now)
        raise
    for who in posters:
        context.metrics.wait("env", context.waits.end(who, ROOM, now))
    return accepted


def _told_apart(groups: list[PostedGroup]) -> list[PostedGroup]:
    """Equal groups of one post are meant as several; only a whole post can repeat an earlier one."""
    seen = Counter[str | None]()
    apart = []
    for group in groups:
        digest, times = group.facts.digest, seen[group.facts.digest]
        seen[digest] += 1
        if digest is not None and times:
            group = replace(group, facts=replace(group.facts, digest=f"{digest}-{times}"))
        apart.append(group)
    return apart


async def _counted(
    context: ApiContext, reading: Awaitable[list[PostedGroup]], size: int, codec: Format
) -> list[PostedGroup]:
    context.metrics.move(codec, "in", size)
    try:
        return _told_apart(await reading)
    except WireError as error:
        context.metrics.refuse(error.code)
        raise
