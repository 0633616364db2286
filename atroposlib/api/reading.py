"""Reads posted bodies where it stalls nobody: at once, in a thread, or in another process."""

from __future__ import annotations

import zlib
from collections.abc import Callable

from atroposlib.offload import Offload
from atroposlib.wire import jobs
from atroposlib.wire.batch import split_batch
from atroposlib.wire.limits import DEFAULT, GZIP_WBITS, inflate_gzip, too_large
from atroposlib.wire.media import BATCH_TYPE, FRAME_TYPE
from atroposlib.wire.posted import PostedGroup

MOST_GROUPS = 1024
"""Groups of one post: storing them is one step, in which nobody else is served."""

MOST_OBJECTS = 1 << 19
"""Objects of one JSON body, counted before it is parsed, when each becomes a hundred times its text."""

LARGE_BYTES = 1 << 18
MANY_VALUES = 50_000
MANY_OBJECTS = 250
"""JSON below all three is worked on in some 10 ms, in which nobody else is served; more is handed over."""

FRAME_THREAD_FROM_BYTES = 1 << 16
"""Shorter frames with few bytes inside are checked in less time than it takes to hand them over."""

ARRAYS_THREAD_FROM_BYTES = 1 << 20
RECORDS_THREAD_FROM = 32

FRAME_READERS: dict[str, Callable[[bytes], list[PostedGroup]]] = {
    FRAME_TYPE: jobs.read_frame,
    BATCH_TYPE: jobs.read_batch,
}


async def json_groups(offload: Offload, body: bytes, gzipped: bool, many: bool | None) -> list[PostedGroup]:
    """The validated groups of a JSON body.

    Args:
        offload: Threads and processes.
        body: As it came.
        gzipped: It is compressed.
        many: As :func:`atroposlib.wire.jobs.read_json`.

    Raises:
        WireError: As :func:`read_json`.
        ApiError: api.worker_lost.
    """
    if gzipped and int.from_bytes(body[-4:], "little") > DEFAULT.most_inflated(len(body)):
        # A bomb that says so is refused without a process being started for it.
        await offload.in_thread(inflate_gzip, body, DEFAULT.inflated_bytes)
    if _is_light(body, gzipped):
        return read_json(body, gzipped, many)
    return await offload.in_process(read_json, body, gzipped, many)


def read_json(body: bytes, gzipped: bool, many: bool | None) -> list[PostedGroup]:
    """The groups of a JSON body.

    Raises:
        WireError: wire.too_large with too many groups or objects, and as ``jobs.read_json``.
    """
    text = inflate_gzip(body, DEFAULT.inflated_bytes) if gzipped else body
    objects = text.count(b"{")
    if objects > MOST_OBJECTS:
        raise too_large("the JSON holds too many objects", got=objects, most=f"{MOST_OBJECTS} objects")
    groups = jobs.read_json(text, False, many)
    _check_count(len(groups))
    return groups


async def frame_groups(offload: Offload, body: bytes, media_type: str) -> list[PostedGroup]:
    """The validated groups of a frame or a batch of frames. Raises as :func:`json_groups`."""
    short = len(body) < FRAME_THREAD_FROM_BYTES
    batch = media_type == BATCH_TYPE
    records, weight = _weigh(body, batch) if short else await offload.in_thread(_weigh, body, batch)
    read = FRAME_READERS[media_type]
    if weight.json_bytes > LARGE_BYTES:
        return await offload.in_process(read, body)
    if short and weight.array_bytes < ARRAYS_THREAD_FROM_BYTES and records < RECORDS_THREAD_FROM:
        return read(body)
    return await offload.in_thread(read, body)


def _weigh(body: bytes, batch: bool) -> tuple[int, jobs.Weight]:
    records = len(split_batch(body)) if batch else 1
    _check_count(records)
    return records, jobs.weigh(body, batch=batch)


def _check_count(groups: int) -> None:
    if groups > MOST_GROUPS:
        raise too_large("too many groups in one post", got=groups, most=f"{MOST_GROUPS} groups")


def _is_light(body: bytes, gzipped: bool) -> bool:
    """Whether JSON is read in no time; what is no gzip is refused in no time too."""
    if len(body) >= LARGE_BYTES:
        return False
    text = body
    if gzipped:
        # The trailer's length is not trusted, and a second member may be of any length.
        member = zlib.decompressobj(wbits=GZIP_WBITS)
        try:
            text = member.decompress(body, LARGE_BYTES)
        except zlib.error:
            return True
        if member.unused_data:
            return False
    few = text.count(b",") < MANY_VALUES and text.count(b"{") < MANY_OBJECTS
    return few and len(text) < LARGE_BYTES
