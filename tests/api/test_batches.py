"""GET /batch: exact sizes, minimum shares, and what becomes of a batch whose client went away."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest
from starlette.types import Message

from atroposlib.api.atropos_batch import BatchAnswer
from atroposlib.api.context import ApiContext
from atroposlib.api.lease_answer import Asked, LeaseAnswer
from atroposlib.config.api import ApiSettings
from atroposlib.store.memory import MemoryStore
from atroposlib.wire import jobs
from atroposlib.wire.frame import encode_group
from atroposlib.wire.jobs import read_json
from atroposlib.wire.media import FRAME_TYPE
from atroposlib.wire.registrations import Registration
from tests.api.support import ApiClient, Clock, group, registration


def tokens_of(batch: list[dict[str, Any]]) -> list[int]:
    return [member["tokens"][0][0] for member in batch]


def test_an_oversize_group_is_dropped_with_its_reason_and_blocks_nobody(api: ApiClient) -> None:
    """Defects 15 and 16: it made GET /batch null for ever."""
    api.start(batch_size=8)
    api.post("/scored_data", group(16))
    api.post("/scored_data_list", [group(token=2), group(token=3)])
    assert tokens_of(api.get("/batch")["batch"]) == [2, 3]
    assert api.counts()["dropped"] == {"larger_than_batch": 1}


def test_sizes_that_differ_from_the_group_size_are_delivered(api: ApiClient) -> None:
    """Defect 15: groups of 3, 3, 3 for a group size of 4 were buffered for ever."""
    api.start(batch_size=8)
    env_id = api.add_env(group_size=4)
    posted = [group(size, token=size, env_id=env_id) for size in (3, 3, 3, 2)]
    assert all(api.post("/scored_data", body) == {"status": "received"} for body in posted)
    assert tokens_of(api.get("/batch")["batch"]) == [3, 3, 2]
    assert api.get("/status")["queue_size"] == 1


def test_a_group_that_did_not_fit_heads_the_next_batch(api: ApiClient) -> None:
    api.start(batch_size=8)
    api.post("/scored_data_list", [group(size, token=size * 10) for size in (5, 4, 4, 3)])
    assert tokens_of(api.get("/batch")["batch"]) == [50, 30]
    assert tokens_of(api.get("/batch")["batch"]) == [40, 40]


def test_a_silent_environments_minimum_is_waived(api: ApiClient) -> None:
    """Defect 17: an environment registered with 0.5 that posts nothing stopped all others for ever."""
    api.start(batch_size=8)
    busy = api.add_env()
    api.add_env(min_batch_allocation=0.5)
    api.post("/scored_data_list", [group(env_id=busy), group(env_id=busy), group()])
    assert api.get("/batch") == {"batch": None}
    api.clock.now += 31.0
    api.post("/scored_data", group(env_id=busy))
    assert len(api.get("/batch")["batch"]) == 2


def test_an_active_environment_gets_its_minimum(api: ApiClient) -> None:
    api.start(batch_size=8)
    busy, entitled = api.add_env(), api.add_env(min_batch_allocation=0.5)
    api.post("/scored_data_list", [group(token=1, env_id=busy), group(token=2, env_id=busy)])
    api.post("/scored_data", group(token=3, env_id=entitled))
    assert tokens_of(api.get("/batch")["batch"]) == [1, 3]


def test_minimums_beyond_the_whole_are_scaled(api: ApiClient) -> None:
    api.start(batch_size=8)
    first, second = (api.add_env(min_batch_allocation=1.0) for _ in range(2))
    api.post("/scored_data_list", [group(token=1, env_id=first), group(token=2, env_id=first)])
    api.post("/scored_data", group(token=3, env_id=second))
    assert tokens_of(api.get("/batch")["batch"]) == [1, 3]


def why_waiting(api: ApiClient) -> list[str]:
    """Why each of those that /v1/status tells of waits."""
    return [wait["why"] for wait in api.get("/v1/status")["waiting"]]


def test_sizes_that_never_add_up_are_told_once(api: ApiClient, caplog: pytest.LogCaptureFixture) -> None:
    """Defect 16: GET /batch was null for ever, and nobody could see why."""
    api.start(batch_size=8)
    api.post("/scored_data_list", [group(3), group(3, token=2)])
    assert api.get("/batch") == {"batch": None}
    assert why_waiting(api) == ["6 of 8 sequences are queued"]
    api.post("/scored_data", group(3, token=3))
    for _ in range(2):
        assert api.get("/batch") == {"batch": None}
    reason = "3 groups (9 sequences) queued, none add up to a batch of 8"
    assert why_waiting(api) == [reason]
    assert sum(reason in record.message for record in caplog.records) == 1
    api.post("/scored_data", group(2))
    assert api.get("/batch")["batch"]
    assert why_waiting(api) == []


def test_a_wait_for_a_minimum_share_names_the_environment(api: ApiClient) -> None:
    api.start(batch_size=8)
    busy = api.add_env()
    late = api.add_env(min_batch_allocation=0.5)
    api.post("/scored_data_list", [group(env_id=busy), group(env_id=busy, token=2)])
    since = api.clock.now
    for _ in range(2):
        assert api.get("/batch") == {"batch": None}
        api.clock.now += 5.0
    (wait,) = api.get("/v1/status")["waiting"]
    assert wait == {
        "who": "trainer atropos",
        "for": "a batch",
        "since": since,
        "seconds": 10.0,
        "why": f"environment {late} has 0 of the 4 sequences of its minimum share",
    }


def large(token: int) -> dict[str, Any]:
    """A group of 8 MB, so that two of them do not fit into the buffers between server and client."""
    return group(token=token, messages=[[{"role": "user", "content": "x" * (8 << 20)}]])


def test_a_batch_whose_client_went_away_returns_to_the_front(api: ApiClient) -> None:
    """Defect 4: a trainer's time-out cost it the batch, and the step had been counted."""
    api.start(batch_size=8)
    api.post("/scored_data_list", [large(1), large(2)])
    api.post("/scored_data_list", [group(token=3), group(token=4)])
    host, port = api.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as trainer:
        trainer.sendall(b"GET /batch HTTP/1.1\r\nHost: api\r\n\r\n")
        assert trainer.recv(100).startswith(b"HTTP/1.1 200")
        assert api.counts()["leased"] == 2
    while api.counts()["leased"]:
        pass
    assert api.get("/status") == {"current_step": 0, "queue_size": 4}
    assert tokens_of(api.get("/batch")["batch"]) == [1, 2]
    assert tokens_of(api.get("/batch")["batch"]) == [3, 4]
    assert api.counts()["trained"] == 4


async def api_with_a_batch(**settings: Any) -> ApiContext:
    store = MemoryStore(100, 1 << 20)
    await store.register(Registration.model_validate(registration()), 0.0)
    await store.put(read_json(json.dumps(group(8)).encode(), False, False), 0.0)
    return ApiContext(ApiSettings(**settings), store, Clock())


async def answer(context: ApiContext) -> BatchAnswer:
    return BatchAnswer(context, await context.store.run(), 8)


async def places(context: ApiContext) -> tuple[int, int, int, int]:
    """Queued, leased, trained groups, and the step."""
    stats = await context.store.stats()
    return stats.queued, stats.leased, stats.trained, (await context.store.run()).step


async def test_a_client_that_is_gone_before_the_answer_costs_nothing() -> None:
    context = await api_with_a_batch()
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    await (await answer(context))({"type": "http", "headers": []}, receive, send)
    assert all(message.get("more_body", True) for message in sent)
    assert await places(context) == (1, 0, 0, 0)


async def test_a_delivery_that_is_cancelled_costs_nothing() -> None:
    context = await api_with_a_batch()
    stuck = asyncio.Event()

    async def receive() -> Message:
        return await asyncio.Future()

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            stuck.set()
            await asyncio.Future()

    batch = await answer(context)
    delivery = asyncio.create_task(batch({"type": "http", "headers": []}, receive, send))
    await stuck.wait()
    assert await places(context) == (0, 1, 0, 0)
    delivery.cancel()
    await asyncio.wait([delivery])
    assert await places(context) == (1, 0, 0, 0)
    assert context.deliveries == set()


async def test_a_client_that_stops_reading_gives_its_batch_back() -> None:
    context = await api_with_a_batch(delivery_timeout_s=0.01)

    async def never_returns(*message: Message) -> Message:
        return await asyncio.Future()

    async def send(message: Message) -> None:
        await never_returns()

    batch = await answer(context)
    await asyncio.wait_for(batch({"type": "http", "headers": []}, never_returns, send), 20)
    assert await places(context) == (1, 0, 0, 0)


async def test_a_reset_during_delivery_delivers_nothing_whole() -> None:
    context = await api_with_a_batch()
    sent: list[Message] = []

    async def receive() -> Message:
        return await asyncio.Future()

    async def send(message: Message) -> None:
        await context.store.reset()
        sent.append(message)

    await (await answer(context))({"type": "http", "headers": []}, receive, send)
    assert all(message.get("more_body", True) for message in sent)
    assert await places(context) == (0, 0, 0, 0)


async def test_a_lease_is_renewed_while_its_answer_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    context = await api_with_a_batch()
    monkeypatch.setattr("atroposlib.api.atropos_batch.LEASE_S", 0.03)
    renewed = asyncio.Event()

    async def heartbeat(batch_id: str, attempt: int, lease_s: float, now: float) -> float:
        renewed.set()
        return now + lease_s

    monkeypatch.setattr(context.store, "heartbeat", heartbeat)

    async def receive() -> Message:
        return await asyncio.Future()

    async def send(message: Message) -> None:
        await renewed.wait()

    batch = await answer(context)
    await asyncio.wait_for(batch({"type": "http", "headers": []}, receive, send), 20)
    assert await places(context) == (0, 0, 1, 1)


def test_a_batch_that_cannot_be_sent_becomes_a_dead_letter(
    api: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were it queued again each time, it would head every batch and the run would stand still for ever."""
    frame_to_json = jobs.frame_to_json

    def fails(frame: bytes) -> bytes:
        if b"poison" in frame:
            raise ValueError("it cannot be converted")
        return frame_to_json(frame)

    monkeypatch.setattr(jobs, "frame_to_json", fails)
    api.start(batch_size=4)
    for name in ("poison", "sound"):
        frame = encode_group({**group(), "group_id": name}, codec="none")
        assert api.raw("POST", "/v1/groups", frame, Content_Type=FRAME_TYPE).status_code == 201
    for _ in range(5):
        assert api.raw("GET", "/batch", Connection="close").status_code == 500
        api.counts()
    assert [member["group_id"] for member in api.get("/batch")["batch"]] == ["sound"]
    (letter,) = api.get("/v1/dead-letters")["dead_letters"]
    assert letter["groups"] == ["poison"]
    assert letter["reason"] == "it could not be sent: it cannot be converted"


async def test_a_lease_survives_a_cancellation_at_any_moment() -> None:
    """Of each turn of the loop, one lease is cancelled in it; none may stay out with nobody."""
    for turns in range(60):
        context = await api_with_a_batch()
        await context.store.register_trainer("t", Registration.model_validate(registration()), None, 0.0)
        asked = LeaseAnswer(context, Asked("t", 8, 1.0, 3600.0))

        async def receive() -> Message:
            return await asyncio.Future()

        ended = False

        async def send(message: Message) -> None:
            nonlocal ended
            ended = message["type"] == "http.response.body" and not message.get("more_body", False)
            await asyncio.sleep(0)

        delivery = asyncio.create_task(asked({"type": "http", "headers": []}, receive, send))
        for _ in range(turns):
            await asyncio.sleep(0)
        delivery.cancel()
        await asyncio.wait([delivery])
        for _ in range(5):
            await asyncio.sleep(0)
        assert (await places(context))[:2] == ((0, 1) if ended else (1, 0)), turns
