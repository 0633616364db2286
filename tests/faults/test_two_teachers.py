"""Teachers on real model servers that die by SIGKILL and come back, with their model or with another one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np
import pytest

from atroposlib.config.server import APIServerConfig
from atroposlib.config.teacher import TeacherLimits
from atroposlib.demo.processes import free_ports
from atroposlib.errors import TeacherError
from atroposlib.teacher.teacher import Teacher
from atroposlib.types import ABSENT_ID, TeacherScores
from tests.faults.teacher_servers import TeacherServers
from tests.support.oracle import Oracle, float64_oracle
from tests.support.tiny import write_tiny_model

K = 4
IN_WORK = 4


@pytest.fixture(scope="module")
def servers() -> Iterator[TeacherServers]:
    made = TeacherServers()
    yield made
    made.close()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("teachers")
    return [write_tiny_model(folder / str(seed), seed=seed) for seed in (3, 4)]


@pytest.fixture(scope="module")
def oracles(models: list[Path]) -> list[Oracle]:
    return [float64_oracle(model) for model in models]


def teacher(name: str, ports: list[int], patience_s: float = 60) -> Teacher:
    configs = [
        APIServerConfig(base_url=f"http://127.0.0.1:{port}", model_name="teacher", timeout=60)
        for port in ports
    ]
    return Teacher(name, configs, TeacherLimits(patience_s))


def sequences(count: int, seed: int) -> list[list[int]]:
    generator = np.random.default_rng(seed)
    return [generator.integers(0, 256, 24).tolist() for _ in range(count)]


def assert_true(scores: TeacherScores, ids: list[int], oracle: Oracle) -> None:
    """Every value is that of a forward pass of its own in float64, and every row has its top-k."""
    table = oracle(ids)[:-1]
    assert scores.ids.shape == (len(ids) - 1, K + 1)
    assert scores.ids[:, 0].tolist() == ids[1:]
    present = scores.ids != ABSENT_ID
    wanted = np.take_along_axis(table, np.where(present, scores.ids, 0).astype(np.int64), axis=1)
    assert np.abs(scores.logprobs - wanted)[present].max() < 2e-4
    assert np.abs(np.sort(table, axis=1)[:, -K:].sum() - _top(scores).sum()) < 1e-2


def _top(scores: TeacherScores) -> np.ndarray:
    """The K likeliest of each row."""
    return np.sort(scores.logprobs, axis=1)[:, -K:]


async def run_all(
    teacher: Teacher, asked: list[list[int]], half: asyncio.Event
) -> list[TeacherScores | TeacherError]:
    """Scores of all sequences, a few at a time; ``half`` is set when half of them are settled."""
    results: list[TeacherScores | TeacherError | None] = [None] * len(asked)
    left = iter(range(len(asked)))

    async def work() -> None:
        for index in left:
            try:
                results[index] = await teacher.score(asked[index], K)
            except TeacherError as error:
                results[index] = error
            if sum(result is not None for result in results) >= len(asked) // 2:
                half.set()

    await asyncio.gather(*(work() for _ in range(IN_WORK)))
    return [result for result in results if result is not None]


def assert_books(
    teacher: Teacher, asked: list[list[int]], results: list[TeacherScores | TeacherError], oracle: Oracle
) -> None:
    """What was scored is true, and the counters tell exactly what is missing and why."""
    assert len(results) == len(asked)
    missing = Counter(result.code for result in results if isinstance(result, TeacherError))
    for ids, result in zip(asked, results, strict=True):
        if isinstance(result, TeacherScores):
            assert_true(result, ids, oracle)
    stats = teacher.stats
    assert stats.failed == missing
    assert (stats.asked, stats.scored) == (len(asked), len(asked) - missing.total())
    assert stats.asked_tokens - stats.scored_tokens == 24 * missing.total()


async def test_one_of_two_teachers_is_killed_and_comes_back(
    servers: TeacherServers, models: list[Path], oracles: list[Oracle]
) -> None:
    ports = free_ports(2)
    for model, port in zip(models, ports, strict=True):
        await asyncio.to_thread(servers.start, model, port)
    asked = [sequences(60, seed) for seed in (0, 1)]
    async with AsyncExitStack() as stack:
        teachers = [
            await stack.enter_async_context(teacher(name, [port]))
            for name, port in zip(("math", "code"), ports, strict=True)
        ]
        halves = [asyncio.Event() for _ in teachers]
        runs = [
            asyncio.create_task(run_all(*arguments))
            for arguments in zip(teachers, asked, halves, strict=True)
        ]
        await halves[0].wait()
        await asyncio.to_thread(servers.kill, ports[0])
        await asyncio.to_thread(servers.start, models[0], ports[0])
        results = await asyncio.gather(*runs)
        for index in range(2):
            assert_books(teachers[index], asked[index], results[index], oracles[index])
        # Everything was scored in the end: the restart was shorter than their patience.
        assert [one.stats.scored for one in teachers] == [60, 60]
        assert teachers[0].stats.canaries >= 2
        assert teachers[1].stats.retries == 0
    for port in ports:
        await asyncio.to_thread(servers.kill, port)


async def test_what_is_missing_while_a_teacher_is_dead_is_told(
    servers: TeacherServers, models: list[Path], oracles: list[Oracle]
) -> None:
    [port] = free_ports(1)
    await asyncio.to_thread(servers.start, models[0], port)
    asked = sequences(24, 2)
    async with teacher("math", [port], patience_s=1.0) as math:
        half = asyncio.Event()
        run = asyncio.create_task(run_all(math, asked, half))
        await half.wait()
        await asyncio.to_thread(servers.kill, port)
        results = await run
        assert_books(math, asked, results, oracles[0])
        assert math.stats.scored > 0
        assert math.stats.failed["teacher.unreachable"] > 0
        await asyncio.to_thread(servers.start, models[0], port)
        await math.connect(K, patience_s=30)
        assert_true(await math.score(asked[-1], K), asked[-1], oracles[0])
    await asyncio.to_thread(servers.kill, port)


async def test_a_replica_that_comes_back_with_another_model_is_set_aside(
    servers: TeacherServers, models: list[Path], oracles: list[Oracle], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atroposlib.teacher.breaker.ASIDE_S", 0.2)
    ports = free_ports(2)
    for port in ports:
        await asyncio.to_thread(servers.start, models[0], port)
    asked = sequences(80, 5)
    async with teacher("math", ports) as math:
        await math.connect(K)
        half = asyncio.Event()
        run = asyncio.create_task(run_all(math, asked, half))
        await half.wait()
        await asyncio.to_thread(servers.kill, ports[0])
        await asyncio.to_thread(servers.start, models[1], ports[0])
        assert_books(math, asked, await run, oracles[0])
        assert math.stats.scored == 80
        # Whether it was found out in the run or is now: no question ever went to the wrong one.
        await math.connect(K)
        assert math.stats.aside["teacher.changed"] >= 1
        given = math.replicas[0].last_turn
        for ids in asked[:6]:
            await math.score(ids, K)
        assert math.replicas[0].last_turn == given
        await asyncio.to_thread(servers.kill, ports[0])
        await asyncio.to_thread(servers.start, models[0], ports[0])
        await math.connect(K, patience_s=30)
        for ids in asked[:6]:
            assert_true(await math.score(ids, K), ids, oracles[0])
        assert math.replicas[0].last_turn > given
    for port in ports:
        await asyncio.to_thread(servers.kill, port)
