"""Turns at servers: in order of arrival, without overtaking for ever, and given back by whoever goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from atroposlib.config.server import APIServerConfig
from atroposlib.teacher.persistence import Deadline
from atroposlib.teacher.pool import ReplicaPool
from atroposlib.teacher.replica import Replica

LIMIT = 8


@pytest.fixture
async def pool() -> AsyncIterator[ReplicaPool]:
    """Two servers that are fit."""
    replicas = [Replica(APIServerConfig(base_url=f"http://{name}"), 20) for name in ("a", "b")]
    for replica in replicas:
        replica.breaker.close()

    async def fit(_: Replica) -> None:
        pass

    made = ReplicaPool("t", replicas, tokens_in_flight=LIMIT, try_out=fit, on_aside=lambda _: None)
    yield made
    await made.close()


class Turn:
    """A task that holds a turn until it is released."""

    def __init__(self, pool: ReplicaPool, tokens: int, refused: set[Replica] | None = None) -> None:
        self.given: Replica | None = None
        self._release = asyncio.Event()
        self.task = asyncio.create_task(self._hold(pool, tokens, refused or set()))

    async def _hold(self, pool: ReplicaPool, tokens: int, refused: set[Replica]) -> None:
        async with Deadline(20) as deadline, pool.turn(tokens, refused, deadline) as self.given:
            await self._release.wait()

    async def end(self) -> None:
        self._release.set()
        await self.task


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_who_must_not_go_everywhere_is_not_overtaken_for_ever(pool: ReplicaPool) -> None:
    first, second = pool.replicas
    holding = [Turn(pool, LIMIT // 2, {first}) for _ in range(2)]
    other = Turn(pool, LIMIT)
    await settled()
    long = Turn(pool, LIMIT, {first})
    await settled()
    later = [Turn(pool, LIMIT // 2) for _ in range(4)]
    for turn in holding:
        await turn.end()
        await settled()
    assert long.given is second
    assert [turn.given for turn in later] == [None] * 4
    for turn in (other, long, *later):
        await turn.end()
    assert [(one.tokens, one.requests) for one in pool.replicas] == [(0, 0), (0, 0)]


async def test_others_pass_who_waits_for_another_server(pool: ReplicaPool) -> None:
    first, second = pool.replicas
    full = Turn(pool, LIMIT, {first})
    await settled()
    waiting = Turn(pool, LIMIT, {first})
    await settled()
    small = Turn(pool, 1)
    await settled()
    assert (full.given, waiting.given, small.given) == (second, None, first)
    for turn in (full, waiting, small):
        await turn.end()


async def test_who_waited_behind_a_cancelled_one_goes_on_at_once(pool: ReplicaPool) -> None:
    holding = [Turn(pool, LIMIT - 1) for _ in range(2)]
    await settled()
    long = Turn(pool, LIMIT)
    await settled()
    short = Turn(pool, 1)
    await settled()
    assert (long.given, short.given) == (None, None)
    long.task.cancel()
    await settled()
    assert short.given is not None
    for turn in (*holding, short):
        await turn.end()


@pytest.mark.parametrize("steps", range(4))
async def test_a_cancelled_turn_is_given_back(pool: ReplicaPool, steps: int) -> None:
    turns = [Turn(pool, LIMIT) for _ in range(3)]
    for _ in range(steps):
        await asyncio.sleep(0)
    for turn in turns:
        turn.task.cancel()
    await asyncio.wait([turn.task for turn in turns])
    assert [(one.tokens, one.requests) for one in pool.replicas] == [(0, 0), (0, 0)]
