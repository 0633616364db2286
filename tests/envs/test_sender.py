"""Posting of groups: what is repeated, what is dropped, and that nothing is lost or sent twice."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import numpy as np
import pytest

from atroposlib.envs import sender as sender_module
from atroposlib.envs.api_client import TrajectoryApi, encode
from atroposlib.envs.sender import Sender
from tests.envs.fakes import FakeApi, decoded, group_of


class Books:
    """What a sender reported."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.dropped: list[tuple[Any, str]] = []

    async def on_sent(self, group: Any) -> None:
        self.sent.append(group)

    def on_dropped(self, group: Any, reason: str) -> None:
        self.dropped.append((group, reason))

    @property
    def reasons(self) -> list[str]:
        return [reason for _, reason in self.dropped]


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender_module, "LONGEST_PAUSE_SECONDS", 0.01)


async def deliver(api: FakeApi, *groups: Any, as_list: bool = False) -> Books:
    books = Books()
    client = TrajectoryApi(api.url)
    sender = Sender(client, books.on_dropped)
    try:
        await sender.deliver(list(groups), as_list=as_list, on_sent=books.on_sent)
    finally:
        await sender.close()
        await client.close()
    return books


async def test_group_arrives_and_is_reported_sent(api: FakeApi) -> None:
    group = group_of(0.0, 1.0, group_id="one")
    books = await deliver(api, group)
    assert api.groups == [group]
    assert (books.sent, books.dropped) == ([group], [])


async def test_list_arrives_in_one_request(api: FakeApi) -> None:
    groups = [group_of(0.0, 1.0), group_of(1.0, 0.0)]
    await deliver(api, *groups, as_list=True)
    assert api.groups == groups
    assert api.calls["post"] == 1


@pytest.mark.parametrize("status", [500, 502, 503, 429, 408])
async def test_failure_that_may_pass_is_repeated(api: FakeApi, status: int) -> None:
    api.answers.extend([(status, {})] * 2)
    books = await deliver(api, group_of(0.0, 1.0))
    assert api.calls["post"] == 3
    assert len(books.sent) == len(api.groups) == 1


async def test_api_without_a_trainer_is_waited_for(api: FakeApi) -> None:
    api.answers.append((409, {"code": "api.not_registered"}))
    books = await deliver(api, group_of(0.0, 1.0))
    assert len(books.sent) == 1


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_refused_group_is_dropped_once_with_a_reason(api: FakeApi, status: int) -> None:
    api.answers.append((status, {"detail": "no"}))
    books = await deliver(api, group_of(0.0, 1.0))
    assert books.reasons == ["api_refused"]
    assert (api.calls["post"], api.groups, books.sent) == (1, [], [])


async def test_group_that_always_breaks_the_api_is_given_up(api: FakeApi) -> None:
    api.answers.extend([(500, {})] * 50)
    books = await deliver(api, group_of(0.0, 1.0))
    assert books.reasons == ["api_failed"]
    assert api.calls["post"] == sender_module.MOST_FAILED_ATTEMPTS


async def test_waiting_for_a_full_queue_does_not_use_up_the_tries_of_a_failing_api(api: FakeApi) -> None:
    api.answers.extend([(429, {})] * sender_module.MOST_FAILED_ATTEMPTS + [(500, {})])
    books = await deliver(api, group_of(0.0, 1.0))
    assert books.reasons == []
    assert len(books.sent) == len(api.groups) == 1


async def test_api_that_is_away_is_waited_for(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = asyncio.Event()
    monkeypatch.setattr(sender_module, "_tell_first_retry", lambda state: failed.set())
    await api.stop()
    pending = asyncio.create_task(deliver(api, group_of(0.0, 1.0)))
    await failed.wait()
    await api.start()
    books = await pending
    assert len(books.sent) == len(api.groups) == 1


async def test_cancelled_waiter_neither_loses_nor_repeats_the_post(api: FakeApi) -> None:
    books, client = Books(), TrajectoryApi(api.url)
    sender = Sender(client, books.on_dropped)
    api.gate.clear()
    waiter = asyncio.create_task(sender.deliver([group_of(0.0, 1.0)], as_list=False, on_sent=books.on_sent))
    await api.arrived.wait()
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    api.gate.set()
    await sender.close()
    await client.close()
    assert len(api.groups) == len(books.sent) == 1
    assert api.calls["post"] == 1


async def test_failure_to_record_a_stored_group_is_told_although_nobody_waits(
    api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    async def full_disk(group: Any) -> None:
        raise OSError(28, "No space left on device")

    client = TrajectoryApi(api.url)
    sender = Sender(client, Books().on_dropped)
    api.gate.clear()
    waiter = asyncio.create_task(sender.deliver([group_of(0.0, 1.0)], as_list=False, on_sent=full_disk))
    await api.arrived.wait()
    waiter.cancel()
    api.gate.set()
    await sender.close()
    await client.close()
    assert "No space left on device" in caplog.text


async def test_failure_to_record_one_stored_group_leaves_the_others_recorded(api: FakeApi) -> None:
    recorded: list[Any] = []

    async def fails_at_first(group: Any) -> None:
        recorded.append(group["group_id"])
        if group["group_id"] != "c":
            raise ValueError(group["group_id"])

    client = TrajectoryApi(api.url)
    sender = Sender(client, Books().on_dropped)
    groups = [group_of(0.0, 1.0, group_id=name) for name in "abc"]
    with pytest.raises(ValueError, match=r"^a$"):
        await sender.deliver(groups, as_list=True, on_sent=fails_at_first)
    await client.close()
    assert recorded == ["a", "b", "c"]


async def test_close_counts_what_could_not_be_delivered(api: FakeApi) -> None:
    books, client = Books(), TrajectoryApi("http://127.0.0.1:9")
    sender = Sender(client, books.on_dropped)
    waiter = asyncio.create_task(sender.deliver([group_of(0.0, 1.0)], as_list=False, on_sent=books.on_sent))
    await asyncio.sleep(0)
    await sender.close(seconds=0.05)
    with pytest.raises(asyncio.CancelledError):
        await waiter
    await client.close()
    assert books.reasons == ["not_delivered"]


async def test_group_that_json_cannot_hold_is_dropped(api: FakeApi) -> None:
    books = await deliver(api, group_of(0.0, 1.0, images=object()))
    assert books.reasons == ["not_json"]
    assert api.calls["post"] == 0


async def test_large_body_is_compressed_and_small_one_is_not(api: FakeApi) -> None:
    await deliver(api, group_of(0.0, 1.0))
    await deliver(api, group_of(0.0, 1.0, length=2000))
    assert api.encodings == [None, "gzip"]
    assert len(api.groups[1]["tokens"][0]) == 2000


def test_numbers_leave_as_they_are() -> None:
    values = [0.1, -1e-17, 1 / 3, -9999.0, 123456789.123456789]
    body, _ = encode({"scores": values, "numpy": np.float32(0.1), "array": np.arange(3)})
    told = json.loads(decoded(body))
    assert told == {"scores": values, "numpy": pytest.approx(0.1, abs=1e-8), "array": [0, 1, 2]}


def test_non_finite_numbers_reach_the_api_as_what_they_are() -> None:
    body, _ = encode({"scores": [1.0, math.nan], "inference_logprobs": [[-math.inf]]})
    assert b"NaN" in body
    assert b"-Infinity" in body
