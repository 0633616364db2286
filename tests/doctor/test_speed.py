"""Bytes and tokens of a timing; the times themselves are no matter of a test."""

from __future__ import annotations

import aiohttp
import pytest

from atroposlib.doctor import speed
from atroposlib.doctor.speed import AT_ONCE, Meter, check_speed
from atroposlib.teacher.transport import TEACHER, Peer, send
from tests.doctor.subjects import MadeUpRoute, scoring
from tests.support.scripted_server import Reply, ScriptedServer


@pytest.mark.parametrize("limit", [None, 1 << 20])
async def test_meter_counts_the_bytes_of_answers_once(
    server: ScriptedServer, session: aiohttp.ClientSession, limit: int | None
) -> None:
    meter, peer = Meter(session), Peer(TEACHER, server.url, None, 10.0)
    server.then("/a", Reply(b"x" * 70_000), Reply(b"y" * 30_000))
    await send(session, peer, "/a", limit=limit)
    await send(session, peer, "/a", limit=limit)
    assert meter.take() == 100_000
    assert meter.take() == 0
    server.then("/a", Reply(b"z" * 5))
    await send(session, peer, "/a", limit=limit)
    assert meter.take() == 5


async def test_sequences_are_as_long_as_the_server_takes_and_begin_differently(
    session: aiohttp.ClientSession,
) -> None:
    route = MadeUpRoute()
    found = await check_speed(scoring(route, max_model_len=41), Meter(session))
    assert {len(question.ids) for question in route.asked} == {40}
    assert len(route.asked) == 2 + AT_ONCE
    assert len({tuple(question.ids[:4].tolist()) for question in route.asked}) == AT_ONCE
    assert found.facts["tokens"] == 40
    assert found.facts["bytes_per_1k_tokens"] == 0


async def test_a_slow_server_is_asked_once(
    session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "SLOW_S", -1.0)
    route = MadeUpRoute()
    found = await check_speed(scoring(route), Meter(session))
    assert len(route.asked) == 1
    assert found.facts["ms_per_1k_tokens"] * found.facts["tokens_per_second"] == pytest.approx(1e6)
    assert "one sequence at a time" in found.detail
