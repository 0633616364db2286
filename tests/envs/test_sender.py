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
from tests.envs.fakes import FakeApi, decoded, group_of, until


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


async def test_groups_of_a_list_are_posted_one_by_one_so_that_none_takes_another_with_it(
    api: FakeApi,
) -> None:
    groups = [group_of(0.0, 1.0), group_of(1.0, 0.0)]
    api.answers.append((422, {"detail": "no"}))
    books = await deliver(api, *groups, as_list=True)
    assert (books.sent, books.dropped) == ([groups[1]], [(groups[0], "api_refused")])
    assert api.groups == [groups[1]]


async def test_atropos_gets_a_list_as_json_in_one_request(api: FakeApi) -> None:
    api.is_atropos = True
    groups = [group_of(0.0, 1.0), group_of(1.0, 0.0)]
    await deliver(api, *groups, as_list=True)
    assert api.groups == groups
    assert api.calls["post"] == 1


async def test_what_the_api_takes_is_asked_once(api: FakeApi) -> None:
    books, client = Books(), TrajectoryApi(api.url)
    sender = Sender(client, books.on_dropped)
    for _ in range(3):
        await sender.deliver([group_of(0.0, 1.0)], as_list=False, on_sent=books.on_sent)
    await client.close()
    assert api.calls["v1-status"] == 1


async def test_row_that_is_no_distribution_is_masked_and_told_and_its_group_sent(api: FakeApi) -> None:
    masked: list[Any] = []
    group = group_of(0.0, group_id="one")
    group["distill_token_ids"] = [[[-1, -1], [2, 5], [3, 6], [4, 7]]]
    group["distill_logprobs"] = [[[-9999.0, -9999.0], [-1.0, -2.0], [-0.1, -0.1], [-1.0, math.nan]]]
    client = TrajectoryApi(api.url)
    sender = Sender(client, Books().on_dropped, lambda group, rows: masked.append((group, rows)), "float32")
    await sender.deliver([group], as_list=False, on_sent=Books().on_sent)
    await client.close()
    assert masked == [(group, {"not_probabilities": 2})]
    (sent,) = api.groups
    assert sent["distill_token_ids"] == [[[-1, -1], [2, 5], [-1, -1], [-1, -1]]]
    assert sent["distill_logprobs"][0][1] == [-1.0, -2.0]


async def test_a_full_queue_is_told_until_there_is_room(api: FakeApi) -> None:
    books, client = Books(), TrajectoryApi(api.url)
    sender = Sender(client, books.on_dropped)
    api.answers.extend([(429, {"code": "api.queue_full"})] * 3)
    post = asyncio.create_task(sender.deliver([group_of(0.0, 1.0)], as_list=False, on_sent=books.on_sent))
    await until(lambda: sender.is_blocked)
    await post
    await client.close()
    assert not sender.is_blocked
    assert len(books.sent) == 1


async def test_retry_after_is_waited_for(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    pause = sender_module._pause
    monkeypatch.setattr(sender_module, "_pause", lambda state: waited.append(pause(state)) or 0.0)
    api.answers.extend([(503, {"code": "api.draining"})] * 9)
    api.retry_after = "7"
    books = await deliver(api, group_of(0.0, 1.0))
    assert waited == [7.0] * 9
    assert len(books.sent) == 1


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


@pytest.mark.parametrize(("is_atropos", "reason"), [(True, "not_json"), (False, "invalid_group")])
async def test_group_that_json_cannot_hold_is_dropped(api: FakeApi, is_atropos: bool, reason: str) -> None:
    api.is_atropos = is_atropos
    books = await deliver(api, group_of(0.0, 1.0, images=object()))
    assert books.reasons == [reason]
    assert api.calls["post"] == 0


async def test_large_json_body_is_compressed_and_small_one_is_not(api: FakeApi) -> None:
    api.is_atropos = True
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


async def test_groups_that_a_defect_keeps_from_being_sent_are_counted(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    def defect(group: Any, logprob_dtype: str) -> Any:
        raise AssertionError(logprob_dtype)

    monkeypatch.setattr("atroposlib.envs.frames.frame_of", defect)
    groups, books, client = [group_of(0.0), group_of(1.0)], Books(), TrajectoryApi(api.url)
    sender = Sender(client, books.on_dropped)
    with pytest.raises(AssertionError):
        await sender.deliver(list(groups), as_list=True, on_sent=books.on_sent)
    await sender.close()
    await client.close()
    assert books.dropped == [(group, "not_delivered") for group in groups]


async def test_an_answer_that_sends_elsewhere_is_no_success(api: FakeApi) -> None:
    api.answers.extend([(301, {})] * sender_module.MOST_FAILED_ATTEMPTS)
    books = await deliver(api, group_of(1.0))
    assert (books.sent, books.reasons) == ([], ["api_failed"])
