"""Several servers behind one teacher: who is asked, what is repeated where, and who is set aside."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from tenacity import wait_none

from atroposlib.config.server import APIServerConfig
from atroposlib.config.teacher import TeacherLimits
from atroposlib.errors import TeacherError, TeacherUnreachable
from atroposlib.teacher.breaker import Breaker
from atroposlib.teacher.teacher import Teacher
from tests.support.fake_vllm import score_reply, vllm_answer
from tests.support.scripted_server import Reply, Request, scripted_server
from tests.teacher.asked import assert_true, but_questions, canaries, hang, questions, teacher_over

IDS = [5, 6, 7, 8]
HANGING = but_questions(lambda request: Reply(score_reply(request).body, action="hang"))
BAD = but_questions(lambda _: Reply({"choices": []}))


def sequences(count: int, length: int = 4) -> list[list[int]]:
    return [[number % 40, *range(1, length)] for number in range(count)]


def named(code: str) -> pytest.RaisesExc[TeacherError]:
    return pytest.RaisesExc(TeacherError, check=lambda error: error.code == code)


async def test_questions_spread_over_the_least_loaded_servers() -> None:
    async with teacher_over(3) as (teacher, servers):
        await teacher.connect(1)
        for server in servers:
            server.answer = HANGING
        asked = [asyncio.create_task(teacher.score(ids, 1)) for ids in sequences(9)]
        for server in servers:
            await server.until(lambda server=server: len(questions(server)) == 3)  # type: ignore[misc]
        for server in servers:
            server.released.set()
        await asyncio.gather(*asked)


async def test_the_load_is_counted_in_tokens() -> None:
    async with teacher_over(2) as (teacher, [first, second]):
        await teacher.connect(1)
        first.answer = second.answer = HANGING
        long = asyncio.create_task(teacher.score(sequences(1, 30)[0], 1))
        await first.until(lambda: len(questions(first)) == 1)
        short = [asyncio.create_task(teacher.score(ids, 1)) for ids in sequences(5)]
        await second.until(lambda: len(questions(second)) == 5)
        assert len(questions(first)) == 1
        first.released.set()
        second.released.set()
        await asyncio.gather(long, *short)


@pytest.mark.parametrize(
    ("limits", "fields", "most"),
    [
        (TeacherLimits(20, tokens_in_flight=9), {}, 2),
        (TeacherLimits(20, tokens_in_flight=3), {}, 1),
        (TeacherLimits(20), {"num_max_requests_at_once": 3}, 3),
    ],
)
async def test_tokens_and_requests_in_flight_are_bounded(
    limits: TeacherLimits, fields: dict[str, int], most: int
) -> None:
    async with teacher_over(limits=limits, **fields) as (teacher, [server]):
        server.answer = HANGING
        asked = [asyncio.create_task(teacher.score(ids, 1)) for ids in sequences(8)]
        await server.until(lambda: server.in_flight == most)
        server.released.set()
        for task, ids in zip(asked, sequences(8), strict=True):
            assert_true(await task, ids)
        assert server.most_in_flight == most
        assert (teacher.replicas[0].tokens, teacher.replicas[0].requests) == (0, 0)


async def test_a_busy_server_hands_its_question_to_another() -> None:
    async with teacher_over(2) as (teacher, [first, second]):
        await teacher.connect(1)
        first.answer = lambda _: Reply(b"", 503)
        for ids in sequences(6):
            assert_true(await teacher.score(ids, 1), ids)
        assert len(questions(first)) == 1
        assert len(questions(second)) == 6
        assert teacher.stats.retries == 1


async def test_a_storm_of_503_loses_nothing() -> None:
    async with teacher_over() as (teacher, [server]):
        replies = iter([True] * 6)
        server.answer = but_questions(
            lambda request: Reply(b"", 503) if next(replies, False) else score_reply(request)
        )
        results = await asyncio.gather(*(teacher.score(ids, 1) for ids in sequences(12)))
        for scores, ids in zip(results, sequences(12), strict=True):
            assert_true(scores, ids)
        assert (teacher.stats.scored, teacher.stats.retries) == (12, 6)


async def test_a_wait_for_a_turn_between_two_failures_does_not_use_up_the_patience(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("atroposlib.teacher.breaker.PAUSE_S", 0.01)
    limits = TeacherLimits(2.0, tokens_in_flight=4)
    others = [[7, 7, 7, 7], [8, 8, 8, 8]]
    async with teacher_over(limits=limits) as (teacher, [server]):
        busy = iter([True, True])

        def answer(request: Request) -> Reply:
            if request.body["prompt"] in others:
                return Reply(score_reply(request).body, action="hang")
            return Reply(b"", 503) if next(busy, False) else score_reply(request)

        server.answer = but_questions(answer)
        asked = asyncio.create_task(teacher.score(IDS, 1))
        await server.until(lambda: questions(server) == [IDS])
        held = [asyncio.create_task(teacher.score(other, 1)) for other in others]
        for other in others:
            await server.until(lambda other=other: questions(server)[-1] == other)  # type: ignore[misc]
            # Only time can show that the clock stands still.
            await asyncio.sleep(1.2)
            assert not asked.done()
            server.released.set()
            server.released = asyncio.Event()
        assert_true(await asked, IDS)
        await asyncio.gather(*held)
        assert teacher.stats.retries == 2


async def test_extra_ids_are_not_sent_to_a_server_that_cannot_score_them() -> None:
    named = np.array([[1], [2], [3]], dtype=np.int32)
    async with teacher_over() as (teacher, _):
        scores = await teacher.score(IDS, 1, extra_ids=named)
        assert_true(scores, IDS)
        assert scores.extra_logprobs is None
        [replica] = teacher.replicas
        assert replica.way is not None
        sent = []

        class Strict:
            """A route that a server without the capability refuses."""

            name = "strict"

            async def score(self, session: Any, peer: Any, question: Any, can: Any) -> Any:
                sent.append(question.extra_ids)
                return await right.score(session, peer, question, can)

        right = replica.way[0]
        replica.way = (Strict(), replica.way[1])  # type: ignore[assignment]
        await teacher.score([1, *IDS[1:]], 1, extra_ids=named)
        assert sent == [None]


async def test_a_question_that_timed_out_is_not_repeated_on_the_same_server() -> None:
    async with teacher_over(2, timeout=1) as (teacher, [first, second]):
        await teacher.connect(1)
        first.answer = lambda _: hang()
        for ids in sequences(2):
            assert_true(await teacher.score(ids, 1), ids)
        assert len(questions(first)) == 1
        second.answer = but_questions(lambda _: hang())
        with pytest.raises(TeacherUnreachable) as caught:
            await teacher.score(IDS, 1)
        assert caught.value.timed_out
        assert questions(second).count(IDS) == 1
        first.released.set()
        second.released.set()


async def test_a_bad_reply_is_asked_again_elsewhere_only() -> None:
    async with teacher_over(2) as (teacher, [first, second]):
        await teacher.connect(1)
        first.answer = BAD
        assert_true(await teacher.score(IDS, 1), IDS)
        second.answer = BAD
        with named("teacher.bad_reply"):
            await teacher.score([1, *IDS], 1)
        assert len(questions(first)) == 2
        assert len(questions(second)) == 2


async def test_a_server_of_bad_replies_is_set_aside_while_another_one_works() -> None:
    async with teacher_over(2) as (teacher, [first, second]):
        await teacher.connect(1)
        first.answer = BAD
        for ids in sequences(20):
            assert_true(await teacher.score(ids, 1), ids)
        assert len(questions(first)) == 3
        assert teacher.stats.aside == {"teacher.bad_reply": 1}
        assert len(questions(second)) == 20


async def test_a_bad_reply_is_asked_again_of_a_server_that_is_still_being_tried_out() -> None:
    async with teacher_over(2) as (teacher, [first, second]):
        first.answer = BAD
        second.answer = lambda request: Reply(vllm_answer(request).body, action="hang")
        asked = asyncio.create_task(teacher.score(IDS, 1))
        await first.until(lambda: questions(first) == [IDS])
        second.answer = vllm_answer
        second.released.set()
        assert_true(await asked, IDS)
        assert questions(second) == [IDS]


async def test_the_only_server_is_not_set_aside_for_bad_replies() -> None:
    async with teacher_over() as (teacher, [server]):
        server.answer = BAD
        for ids in sequences(5):
            with named("teacher.bad_reply"):
                await teacher.score(ids, 1)
        server.answer = vllm_answer
        assert_true(await teacher.score(IDS, 1), IDS)


async def test_a_refused_question_is_final_and_leaves_the_server_in_use() -> None:
    refusal = Reply({"error": {"message": "Token id 99 is out of vocabulary"}}, 400)
    async with teacher_over(2) as (teacher, servers):
        await teacher.connect(1)
        for server in servers:
            server.answer = but_questions(
                lambda request: refusal if 9 in request.body["prompt"] else score_reply(request)
            )
        with named("teacher.refused"):
            await teacher.score([9, *IDS], 1)
        assert sum(len(questions(server)) for server in servers) == 1
        assert_true(await teacher.score(IDS, 1), IDS)
        assert teacher.stats.aside == {}


async def test_a_server_whose_key_was_changed_is_set_aside_and_loses_no_question() -> None:
    async with teacher_over(2) as (teacher, [first, second]):
        await teacher.connect(1)
        first.answer = lambda _: Reply({"error": "Unauthorized"}, 401)
        for ids in sequences(4):
            assert_true(await teacher.score(ids, 1), ids)
        assert teacher.stats.aside == {"teacher.refused": 1}
        assert len(questions(second)) == 4


async def test_a_server_of_another_model_name_is_told_and_the_other_one_works() -> None:
    def cards(name: str) -> Reply:
        return Reply({"data": [{"id": name, "max_model_len": 512}]})

    def serving(name: str) -> dict[str, object]:
        return {
            "answer": lambda request: cards(name) if request.path == "/v1/models" else vllm_answer(request)
        }

    async with teacher_over(2, model_name="right") as (teacher, [first, second]):
        vars(first).update(serving("wrong"))
        vars(second).update(serving("right"))
        for ids in sequences(3):
            assert_true(await teacher.score(ids, 1), ids)
        assert (len(questions(first)), len(questions(second))) == (0, 3)
        assert teacher.stats.aside == {"teacher.refused": 1}


async def test_when_all_servers_are_set_aside_their_trouble_is_told_at_once() -> None:
    async with teacher_over(2, limits=TeacherLimits(3600)) as (teacher, servers):
        for server in servers:
            server.answer = lambda _: Reply({"error": "Unauthorized"}, 401)
        for _ in range(2):
            with named("teacher.refused"):
                await teacher.score(IDS, 1)


async def test_a_server_that_was_set_aside_is_used_again_when_it_is_mended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("atroposlib.teacher.breaker.ASIDE_S", 0.05)
    async with teacher_over() as (teacher, [server]):
        server.answer = lambda _: Reply({"error": "Unauthorized"}, 401)
        with named("teacher.refused"):
            await teacher.score(IDS, 1)
        server.answer = vllm_answer
        await server.until(lambda: canaries(server) == 1)
        assert_true(await teacher.score(IDS, 1), IDS)


async def test_a_question_outlives_the_restart_of_its_only_server(unused_tcp_port: int) -> None:
    config = APIServerConfig(base_url=f"http://127.0.0.1:{unused_tcp_port}", timeout=20)
    async with Teacher("math", [config], TeacherLimits(20)) as teacher:
        async with scripted_server(unused_tcp_port) as server:
            server.answer = but_questions(lambda _: Reply(action="reset"))
            asked = asyncio.create_task(teacher.score(IDS, 1))
            await server.until(lambda: questions(server) == [IDS])
            server.answer = lambda _: Reply(b"", 503)
            await server.until(lambda: bool(server.asked("/health")))
        async with scripted_server(unused_tcp_port) as server:
            server.answer = vllm_answer
            assert_true(await asked, IDS)
            assert canaries(server) == 1


async def test_a_sequence_that_broke_two_engines_is_not_sent_again() -> None:
    def poison(request: Request) -> Reply:
        return Reply(b"", 500) if request.body["prompt"][0] == 9 else score_reply(request)

    async with teacher_over(2) as (teacher, servers):
        await teacher.connect(1)
        for server in servers:
            server.answer = but_questions(poison)
        with named("teacher.failed"):
            await teacher.score([9, *IDS], 1)
        with named("teacher.quarantined"):
            await teacher.score([9, *IDS], 2)
        assert [len(questions(server)) for server in servers] == [1, 1]
        assert_true(await teacher.score(IDS, 1), IDS)


async def test_what_was_in_work_beside_a_culprit_is_asked_alone_and_cleared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # All are asked again at once, as far as they may.
    monkeypatch.setattr("atroposlib.teacher.persistence.wait_random_exponential", lambda **_: wait_none())
    poison, *others = sequences(4)
    async with teacher_over() as (teacher, [server]):
        await teacher.connect(1)

        def answer(request: Request) -> Reply:
            if len(questions(server)) <= 4:
                return Reply(b"", 500, action="hang")
            if request.body["prompt"] == poison:
                return Reply(b"", 500)
            return Reply(score_reply(request).body, action="hang")

        server.answer = but_questions(answer)
        asked = [asyncio.create_task(teacher.score(ids, 1)) for ids in (poison, *others)]
        for count in (4, 5, 6, 7, 8):
            await server.until(lambda count=count: len(questions(server)) == count)  # type: ignore[misc]
            assert count == 4 or teacher.replicas[0].requests <= 1
            server.released.set()
            server.released = asyncio.Event()
        with named("teacher.failed"):
            await asked[0]
        for task, ids in zip(asked[1:], others, strict=True):
            assert_true(await task, ids)
        server.answer = vllm_answer
        with named("teacher.quarantined"):
            await teacher.score(poison, 2)
        assert_true(await teacher.score(others[0], 2), others[0])


async def test_a_sequence_that_was_answered_is_cleared() -> None:
    async with teacher_over() as (teacher, [server]):
        for _ in range(3):
            broken = iter([True])
            server.answer = but_questions(
                lambda request, broken=broken: (  # type: ignore[misc]
                    Reply(b"", 500) if next(broken, False) else score_reply(request)
                )
            )
            assert_true(await teacher.score(IDS, 1), IDS)


async def test_a_defect_of_ours_is_raised_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def defective(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("atroposlib.teacher.replica.find_route", defective)
    async with teacher_over() as (teacher, _):
        with pytest.raises(ZeroDivisionError):
            await teacher.score(IDS, 1)
        assert teacher.stats.failed == {"internal.error": 1}


def test_pauses_grow_with_failures_in_a_row_and_end_with_an_answer() -> None:
    breaker, trouble = Breaker(), TeacherError("no")
    assert breaker.pause_s() == 0
    for failures in range(1, 12):
        breaker.open(trouble)
        breaker.open(trouble)  # the others in flight
        assert breaker.failures == failures
        longest = min(10, 0.25 * 2 ** (failures - 1))
        assert longest / 2 <= breaker.pause_s() <= longest
        breaker.half_open()
    breaker.close()
    assert breaker.trouble is None
    breaker.open(trouble)
    assert breaker.failures == 12
    breaker.set_aside(trouble)
    assert 15 <= breaker.pause_s() <= 30
    breaker.close()
    breaker.answered()
    breaker.open(trouble)
    assert breaker.pause_s() <= 0.25


async def test_closing_cancels_those_who_wait() -> None:
    async with teacher_over(limits=TeacherLimits(3600, tokens_in_flight=4)) as (teacher, [server]):
        server.answer = HANGING
        asked = [asyncio.create_task(teacher.score(ids, 1)) for ids in sequences(3)]
        await server.until(lambda: len(questions(server)) == 1)
        await teacher.close()
        await asyncio.wait(asked)
        assert all(task.cancelled() for task in asked)
        assert teacher.stats.cancelled == 3
        server.released.set()
