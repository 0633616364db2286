"""The canary: a server that comes back with another model is never used silently."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from atroposlib.errors import TeacherError
from atroposlib.teacher import canary
from atroposlib.types import TeacherScores
from tests.support.fake_vllm import score_reply, vllm_answer
from tests.support.scripted_server import Reply, Request
from tests.support.vllm_render import fake_logprobs
from tests.teacher.asked import assert_true, but_questions, canaries, model, questions, teacher_over

IDS = [5, 6, 7, 8]


def answer(ids: np.ndarray, seed: int = 0) -> np.ndarray:
    table = fake_logprobs(ids.tolist(), seed=seed)
    values = table[np.arange(1, len(ids)), ids[1:]][:, None]
    return canary.logprobs(TeacherScores(ids=ids[1:, None], logprobs=values, start=1, model="fake"))


def test_answers_of_one_model_are_the_same_up_to_rounding() -> None:
    mine, other = answer(canary.IDS), answer(canary.IDS, seed=1)
    noise = np.random.default_rng(0).normal(scale=0.03, size=mine.shape).astype(np.float32)
    assert canary.same(mine, mine + noise)
    assert not canary.same(mine, other)
    assert canary.difference(mine, mine + np.float32(0.25)) == pytest.approx(0.25, abs=1e-5)


def test_a_token_that_became_impossible_is_another_answer() -> None:
    mine = answer(canary.IDS)
    silent = mine.copy()
    silent[3] = -np.inf
    assert not canary.same(mine, silent)
    assert canary.same(silent, silent)
    assert not canary.same(mine, mine[1:])


def test_every_vocabulary_has_the_canarys_ids() -> None:
    assert canary.IDS.min() >= 0
    assert canary.IDS.max() < 44
    assert len(canary.IDS) == 33


async def test_a_server_restarted_with_another_model_is_set_aside() -> None:
    async with teacher_over() as (teacher, [server]):
        assert_true(await teacher.score(IDS, 1), IDS)
        server.answer = but_questions(lambda _: Reply(action="reset"), model(1))
        for number in range(2):
            with pytest.raises(TeacherError, match="another model") as caught:
                await teacher.score([number, *IDS], 1)
            assert caught.value.code == "teacher.changed"
        assert questions(server) == [IDS, [0, *IDS]]
        assert teacher.stats.failed == {"teacher.changed": 2}
        assert teacher.stats.aside == {"teacher.changed": 1}


async def test_of_two_servers_that_disagree_only_one_is_used() -> None:
    async with teacher_over(2) as (teacher, servers):
        servers[1].answer = model(1)
        await teacher.connect(1)
        [used] = [index for index, replica in enumerate(teacher.replicas) if replica.way is not None]
        for number in range(4):
            assert_true(await teacher.score([number, *IDS], 1), [number, *IDS], seed=used)
        assert len(questions(servers[used])) == 4
        assert questions(servers[1 - used]) == []
        assert teacher.stats.aside["teacher.changed"] >= 1


async def test_an_answer_that_comes_after_a_server_was_found_to_be_changed_is_thrown_away() -> None:
    def answer(request: Request) -> Reply:
        if request.body["prompt"] == IDS:
            return Reply(score_reply(request, seed=1).body, action="hang")
        return Reply(b"", 503)

    async with teacher_over() as (teacher, [server]):
        await teacher.connect(1)
        server.answer = but_questions(answer, model(1))
        late = asyncio.create_task(teacher.score(IDS, 1))
        await server.until(lambda: questions(server) == [IDS])
        with pytest.raises(TeacherError) as caught:
            await teacher.score([1, *IDS], 1)
        server.released.set()
        with pytest.raises(TeacherError) as caught_late:
            await late
        assert caught.value.code == caught_late.value.code == "teacher.changed"
        assert teacher.stats.scored == 0


async def test_the_right_model_is_used_again_when_it_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atroposlib.teacher.breaker.ASIDE_S", 0.05)
    async with teacher_over() as (teacher, [server]):
        assert_true(await teacher.score(IDS, 1), IDS)
        server.answer = but_questions(lambda _: Reply(action="reset"), model(1))
        with pytest.raises(TeacherError) as caught:
            await teacher.score([1, *IDS], 1)
        assert caught.value.code == "teacher.changed"
        server.answer = vllm_answer
        heard = canaries(server)
        await server.until(lambda: canaries(server) > heard)
        assert_true(await teacher.score([2, *IDS], 1), [2, *IDS])


async def test_after_a_quiet_time_the_canary_is_asked_before_a_question(clock: list[float]) -> None:
    async with teacher_over() as (teacher, [server]):
        for number in range(3):
            await teacher.score([number, *IDS], 1)
        assert canaries(server) == 1
        clock[0] += 5
        await teacher.score([7, *IDS], 1)
        assert canaries(server) == 2
        server.answer = model(1)
        clock[0] += 5
        with pytest.raises(TeacherError) as caught:
            await teacher.score([8, *IDS], 1)
        assert caught.value.code == "teacher.changed"
        assert len(questions(server)) == 4


async def test_a_server_that_comes_back_with_fewer_routes_is_asked_in_another_way(clock: list[float]) -> None:
    async with teacher_over() as (teacher, _):
        await teacher.score(IDS, 1)
        [replica] = teacher.replicas
        assert replica.way is not None
        missing = type("Gone", (), {"name": "gone", "score": staticmethod(_not_found)})()
        replica.way = (missing, replica.way[1])
        clock[0] += 5
        assert_true(await teacher.score([1, *IDS], 1), [1, *IDS])


async def _not_found(*_: object) -> TeacherScores:
    raise TeacherError("no such route", code="teacher.refused")
