"""A body is read where it stalls nobody: its bytes say little about what is in it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from typing import Any

import pytest

from atroposlib.api import reading
from atroposlib.api.context import worker_lost
from atroposlib.errors import WireError
from atroposlib.offload import Offload
from atroposlib.wire.batch import encode_batch
from atroposlib.wire.frame import encode_group
from atroposlib.wire.media import BATCH_TYPE, FRAME_TYPE
from tests.api.support import group


class Noted(Offload):
    """Does at once what it is given, and notes where it should have been done."""

    def __init__(self) -> None:
        super().__init__(1, lost=worker_lost)
        self.used: list[str] = []

    async def in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:  # type: ignore[override]
        self.used.append("thread")
        return function(*arguments)

    async def in_process(self, function: Callable[..., Any], *arguments: Any) -> Any:  # type: ignore[override]
        self.used.append("process")
        return function(*arguments)


def talk(values: int) -> dict[str, Any]:
    """A group of three tokens and so many other values."""
    return group(1, messages=[[{"role": "user", "content": [0] * values}]])


def tokens(count: int) -> dict[str, Any]:
    return {"tokens": [[5] * count], "masks": [[5] * count], "scores": [1.0]}


@pytest.mark.parametrize(
    ("posted", "places"),
    [
        pytest.param(group(), [], id="small"),
        pytest.param(talk(60_000), ["process"], id="many values"),
        pytest.param([group(1)] * 300, ["process"], id="many objects"),
        pytest.param(talk(140_000), ["process"], id="long"),
    ],
)
@pytest.mark.parametrize("gzipped", [False, True])
async def test_json_is_read_where_it_stalls_nobody(posted: Any, places: list[str], gzipped: bool) -> None:
    body = json.dumps(posted, separators=(",", ":")).encode()
    offload = Noted()
    read = await reading.json_groups(offload, gzip.compress(body) if gzipped else body, gzipped, None)
    assert len(read) == (len(posted) if isinstance(posted, list) else 1)
    assert offload.used == places


async def test_a_second_gzip_member_may_be_of_any_length() -> None:
    body = json.dumps(group()).encode()
    offload = Noted()
    await reading.json_groups(offload, gzip.compress(body[:9]) + gzip.compress(body[9:]), True, None)
    assert offload.used == ["process"]


@pytest.mark.parametrize(
    ("frames", "places"),
    [
        pytest.param([encode_group(group())], [], id="small"),
        pytest.param([encode_group(talk(200_000))], ["process"], id="a few hundred bytes of many values"),
        pytest.param([encode_group(tokens(131_072))] * 2, ["thread"], id="many bytes inside"),
        pytest.param([encode_group(group())] * 40, ["thread"], id="many frames"),
        pytest.param([encode_group(tokens(20_000), codec="none")], ["thread", "thread"], id="long"),
    ],
)
async def test_frames_are_read_where_they_stall_nobody(frames: list[bytes], places: list[str]) -> None:
    offload = Noted()
    assert len(await reading.frame_groups(offload, encode_batch(frames), BATCH_TYPE)) == len(frames)
    assert offload.used == places
    if len(frames) == 1:
        assert len(await reading.frame_groups(offload, frames[0], FRAME_TYPE)) == 1
        assert offload.used == places * 2


@pytest.mark.parametrize("count", [reading.MOST_GROUPS, reading.MOST_GROUPS + 1])
@pytest.mark.parametrize("kind", ["JSON", "frames"])
async def test_a_post_holds_a_bounded_number_of_groups(kind: str, count: int) -> None:
    offload = Noted()
    if kind == "JSON":
        reads = reading.json_groups(offload, json.dumps([group(1)] * count).encode(), False, True)
    else:
        reads = reading.frame_groups(offload, encode_batch([encode_group(group(1))] * count), BATCH_TYPE)
    if count <= reading.MOST_GROUPS:
        assert len(await reads) == count
    else:
        with pytest.raises(WireError) as caught:
            await reads
        assert caught.value.code == "wire.too_large"


def test_objects_are_counted_before_they_are_parsed() -> None:
    body = b"[" + b",".join([b"{}"] * (reading.MOST_OBJECTS + 1)) + b"]"
    with pytest.raises(WireError) as caught:
        reading.read_json(gzip.compress(body), True, True)
    assert (caught.value.code, caught.value.got) == ("wire.too_large", reading.MOST_OBJECTS + 1)
