"""Whole pieces of work on groups, from bytes to bytes or posted groups: any process can do them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson
from pydantic_core import from_json

from atroposlib.errors import WireError
from atroposlib.wire import container
from atroposlib.wire.arrays import json_ready, to_arrays
from atroposlib.wire.atropos_json import decode_any, decode_groups
from atroposlib.wire.atropos_json import decode_group as decode_json_group
from atroposlib.wire.batch import split_batch
from atroposlib.wire.checks import check_group
from atroposlib.wire.frame import decode_group, encode_group
from atroposlib.wire.identify import posted_group
from atroposlib.wire.json_text import check_values, json_bytes
from atroposlib.wire.limits import DEFAULT, Limits, inflate_gzip, too_large
from atroposlib.wire.posted import PostedGroup
from atroposlib.wire.schema import ATROPOS_KEYS
from atroposlib.wire.shapes import locate


@dataclass(frozen=True, slots=True)
class Weight:
    """What reading frames will take, as their headers say.

    Attributes:
        array_bytes: All arrays after decompression; reading them mostly leaves the interpreter free.
        json_bytes: The JSON among them; reading it holds the interpreter lock.
    """

    array_bytes: int
    json_bytes: int


def weigh(body: bytes, *, batch: bool, limits: Limits = DEFAULT) -> Weight:
    """Look at the headers of a frame, or of a batch of them, and decode nothing. Raises WireError."""
    frames = split_batch(body) if batch else [memoryview(body)]
    sizes = [container.sizes(frame, limits) for frame in frames]
    return Weight(sum(sum(each.values()) for each in sizes), sum(each.get("rest", 0) for each in sizes))


def read_frame(body: bytes, limits: Limits = DEFAULT) -> list[PostedGroup]:
    """The group of a posted frame, checked. Raises WireError."""
    return [_posted(body, limits)]


def read_batch(body: bytes, limits: Limits = DEFAULT) -> list[PostedGroup]:
    """The groups of a posted batch, checked, all or none. Raises WireError."""
    # Each frame may be small and become large; together they may not be more than one body may.
    size = weigh(body, batch=True, limits=limits).array_bytes
    if size > limits.most_inflated(len(body)):
        most = f"{limits.most_inflated(len(body))} bytes"
        raise too_large("the batch is too large after decompression", got=size, most=most)
    return [_posted(bytes(frame), limits, place) for place, frame in enumerate(split_batch(body))]


def read_json(body: bytes, gzipped: bool, many: bool | None, limits: Limits = DEFAULT) -> list[PostedGroup]:
    """The groups of a posted JSON body, checked, all or none.

    Args:
        body: As it came.
        gzipped: It is compressed.
        many: True for a list, False for one object: the Atropos routes, where a row whose probabilities sum
            above one is kept as posted, since old environments drop a group on any refusal (it is absent when
            the group is read as arrays). None for either of the two: /v1, where it is refused.
        limits: Bounds.

    Raises:
        WireError: wire.bad_encoding, wire.too_large or wire.invalid_group with the field's path.
    """
    if gzipped:
        body = inflate_gzip(body, limits.inflated_bytes, limits)
    if len(body) > limits.inflated_bytes:
        raise too_large("the body is too large", got=len(body), most=f"{limits.inflated_bytes} bytes")
    check_values(body, limits.json_values, None)
    if many is None:
        return decode_any(body, limits)
    return decode_groups(body, limits) if many else decode_json_group(body, limits)


def frame_to_json(frame: bytes) -> bytes:
    """A stored frame as GET /batch delivers it: all of Atropos's keys, and those of ours that it has."""
    group = decode_group(frame)
    members: dict[str, Any] = dict.fromkeys(ATROPOS_KEYS) | json_ready(group)
    for name in ("scores", *group.rest):
        members[name] = orjson.Fragment(json_bytes(members[name]))
    for entry, teacher in zip(members.get("teachers", ()), group.teachers, strict=True):
        entry |= {name: orjson.Fragment(json_bytes(value)) for name, value in teacher.facts.items()}
    return json_bytes(members)


def json_to_frame(payload: bytes) -> bytes:
    """A group that is stored as JSON as /v1 delivers it, with float32 logprobs.

    What JSON may say and a frame may not is left out: the second time an id stands in a row, an id with a
    logprob of -9999 or less, and whole rows whose probabilities sum above 1 + 1e-3. Numbers beyond float32's
    range are clipped to it.
    """
    return encode_group(to_arrays(from_json(payload), strict=False), logprob_dtype="float32")


def _posted(frame: bytes, limits: Limits, place: int | None = None) -> PostedGroup:
    try:
        group = decode_group(frame, limits)
        check_group(group, limits)
    except WireError as error:
        locate(error, place)
        raise
    return posted_group(
        frame,
        "frame",
        group_id=group.rest.get("group_id"),
        env_id=group.rest.get("env_id"),
        sequences=len(group.tokens),
        policy_version=group.rest.get("policy_version"),
    )
