"""GET /batch: exact sizes, minimum shares, and what becomes of a batch whose client went away."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest
from starlette.types import Message

from atroposlib.api.context import ApiContext
from atroposlib.api.delivery import BatchAnswer
from atroposlib.config.api import ApiSettings
from atroposlib.store.memory import MemoryStore
from atroposlib.wire.atropos_json import decode_group
from tests.api.support import ApiClient, Clock, group


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


def test_sizes_that_never_add_up_are_told_once(api: ApiClient, caplog: pytest.LogCaptureFixture) -> None:
    api.start(batch_size=8)
    api.post("/scored_data_list", [group(3), group(3)])
    assert api.get("/batch") == {"batch": None}
    assert api.get("/v1/status")["waiting"] is None
    api.post("/scored_data", group(3))
    for _ in range(2):
        assert api.get("/batch") == {"batch": None}
    reason = "3 groups (9 sequences) queued, none add up to a batch of 8"
    assert api.get("/v1/status")["waiting"] == reason
    assert sum(reason in record.message for record in caplog.records) == 1
    api.post("/scored_data", group(2))
    assert api.get("/batch")["batch"]
    assert api.get("/v1/status")["waiting"] is None


def test_a_minimum_that_is_not_there_yet_is_no_reason_to_warn(api: ApiClient) -> None:
    api.start(batch_size=8)
    busy = api.add_env()
    api.add_env(min_batch_allocation=0.5)
    api.post("/scored_data_list", [group(env_id=busy), group(env_id=busy)])
    assert api.get("/batch") == {"batch": None}
    assert api.get("/v1/status")["waiting"] is None


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
    await store.put(decode_group(json.dumps(group(8)).encode()))
    return ApiContext(ApiSettings(**settings), store, Clock())


async def test_a_client_that_is_gone_before_the_answer_costs_nothing() -> None:
    context = await api_with_a_batch()
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    await BatchAnswer(context, context.run, 8)({"type": "http", "headers": []}, receive, send)
    assert all(message.get("more_body", True) for message in sent)
    stats = await context.store.stats()
    assert (stats.queued, stats.leased, stats.trained, context.run.step) == (1, 0, 0, 0)


async def test_a_delivery_that_is_cancelled_costs_nothing() -> None:
    context = await api_with_a_batch()
    stuck = asyncio.Event()

    async def receive() -> Message:
        return await asyncio.Future()

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            stuck.set()
            await asyncio.Future()

    answer = BatchAnswer(context, context.run, 8)
    delivery = asyncio.create_task(answer({"type": "http", "headers": []}, receive, send))
    await stuck.wait()
    assert (await context.store.stats()).leased == 1
    delivery.cancel()
    await asyncio.wait([delivery])
    stats = await context.store.stats()
    assert (stats.queued, stats.leased) == (1, 0)


async def test_a_client_that_stops_reading_gives_its_batch_back() -> None:
    context = await api_with_a_batch(delivery_timeout_s=0.01)

    async def never_returns(*message: Message) -> Message:
        return await asyncio.Future()

    async def send(message: Message) -> None:
        await never_returns()

    answer = BatchAnswer(context, context.run, 8)
    await asyncio.wait_for(answer({"type": "http", "headers": []}, never_returns, send), 20)
    stats = await context.store.stats()
    assert (stats.queued, stats.leased, stats.trained, context.run.step) == (1, 0, 0, 0)


async def test_a_reset_during_delivery_delivers_nothing_whole() -> None:
    context = await api_with_a_batch()
    sent: list[Message] = []

    async def receive() -> Message:
        return await asyncio.Future()

    async def send(message: Message) -> None:
        await context.store.reset()
        sent.append(message)

    await BatchAnswer(context, context.run, 8)({"type": "http", "headers": []}, receive, send)
    assert all(message.get("more_body", True) for message in sent)
    assert context.run.step == 0
