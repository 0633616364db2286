"""Teacher: questions, equal ones, cancelled ones, deadlines, and the books of what became of each."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from atroposlib.config.server import APIServerConfig
from atroposlib.config.teacher import TeacherLimits
from atroposlib.errors import AtroposError, ConfigError, TeacherError, TeacherUnreachable, UsageError
from atroposlib.teacher.cache import ScoreCache
from atroposlib.teacher.teacher import Teacher
from tests.support.fake_vllm import score_reply
from tests.support.scripted_server import Reply
from tests.teacher.asked import assert_true, but_questions, hang, is_question, questions, teacher_over

IDS = [5, 6, 7, 8]
HANGING = but_questions(lambda request: Reply(score_reply(request).body, action="hang"))


async def test_scores_are_the_models_own() -> None:
    async with teacher_over() as (teacher, _):
        assert_true(await teacher.score(IDS, 3), IDS)
        assert_true(await teacher.score(np.array(IDS, dtype=np.int64), 0), IDS)
        assert_true(await teacher.score(IDS, np.int64(2), np.int64(2)), IDS, start=2)


async def test_rows_before_the_start_are_left_out() -> None:
    async with teacher_over() as (teacher, _):
        assert_true(await teacher.score(IDS, 2, start=3), IDS, start=3)


@pytest.mark.parametrize(("ids", "start"), [([5], 1), (IDS, 4)])
async def test_nobody_is_asked_for_no_rows(ids: list[int], start: int) -> None:
    async with teacher_over() as (teacher, [server]):
        scores = await teacher.score(ids, 2, start)
        assert (scores.ids.shape, scores.logprobs.shape, scores.start) == ((0, 3), (0, 3), start)
        assert server.requests == []
        assert (teacher.stats.asked, teacher.stats.scored) == (1, 1)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"ids": IDS, "k": -1}, UsageError),
        ({"ids": IDS, "k": 1, "start": 0}, UsageError),
        ({"ids": IDS, "k": 1, "start": 5}, UsageError),
        ({"ids": [1, -1], "k": 1}, UsageError),
        ({"ids": [1, 2**31], "k": 1}, UsageError),
        ({"ids": [1.0, 2.0], "k": 1}, UsageError),
        ({"ids": IDS, "k": 1, "extra_ids": np.zeros((2, 1), np.int32)}, UsageError),
        ({"ids": IDS, "k": 1, "extra_ids": np.zeros((3, 0), np.int32)}, UsageError),
        ({"ids": IDS, "k": 1, "extra_ids": np.zeros((3, 1), np.float32)}, UsageError),
        ({"ids": IDS, "k": 1, "extra_ids": np.full((3, 1), 2**32 + 5, np.int64)}, UsageError),
        ({"ids": IDS, "k": 1, "extra_ids": np.full((3, 1), -2, np.int32)}, UsageError),
        ({"ids": [], "k": 1}, TeacherError),
    ],
)
async def test_a_question_that_makes_no_sense_is_refused(
    arguments: dict[str, Any], error: type[AtroposError]
) -> None:
    async with teacher_over() as (teacher, [server]):
        with pytest.raises(error):
            await teacher.score(**arguments)
        assert server.requests == []


async def test_a_teacher_needs_a_server_and_its_cache_steady_weights() -> None:
    with pytest.raises(ConfigError, match="without a server"):
        Teacher("math", [])
    with pytest.raises(ConfigError, match="cannot be kept"):
        Teacher("math", [APIServerConfig(base_url="http://a")], cache=ScoreCache(1), steady=False)


async def test_equal_questions_in_flight_are_asked_once() -> None:
    async with teacher_over() as (teacher, [server]):
        results = await asyncio.gather(*(teacher.score(IDS, 2) for _ in range(5)), teacher.score(IDS, 1))
        for result in results:
            assert_true(result, IDS)
        assert sorted(questions(server)) == [IDS, IDS]
        assert (teacher.stats.joined, teacher.stats.scored) == (4, 6)


async def test_arrays_that_others_may_have_too_cannot_be_written() -> None:
    async with teacher_over() as (teacher, _):
        scores, _same = await asyncio.gather(teacher.score(IDS, 2), teacher.score(IDS, 2))
        for array in (scores.ids, scores.logprobs):
            with pytest.raises(ValueError, match="read-only"):
                array[0, 0] = 0


async def test_who_joined_is_answered_when_the_first_caller_is_cancelled() -> None:
    async with teacher_over() as (teacher, [server]):
        server.answer = HANGING
        first = asyncio.create_task(teacher.score(IDS, 2))
        await server.until(lambda: questions(server) == [IDS])
        second = asyncio.create_task(teacher.score(IDS, 2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        assert first.cancelled()
        server.released.set()
        assert_true(await second, IDS)
        assert questions(server) == [IDS]
        assert (teacher.stats.asked, teacher.stats.scored, teacher.stats.cancelled) == (2, 1, 1)


async def test_cancelling_the_last_caller_frees_its_tokens_before_he_goes_on() -> None:
    async with teacher_over() as (teacher, [server]):
        server.answer = HANGING
        callers = [asyncio.create_task(teacher.score(IDS, 2)) for _ in range(2)]
        await server.until(lambda: questions(server) == [IDS])
        assert teacher.replicas[0].tokens == len(IDS)
        for caller in callers:
            caller.cancel()
        await asyncio.wait(callers)
        assert (teacher.replicas[0].tokens, teacher.replicas[0].requests) == (0, 0)
        server.released.set()


async def test_a_cancelled_waiter_makes_room_for_nobody_twice() -> None:
    limits = TeacherLimits(20, tokens_in_flight=4)
    async with teacher_over(limits=limits) as (teacher, [server]):
        server.answer = HANGING
        held = asyncio.create_task(teacher.score(IDS, 2))
        await server.until(lambda: questions(server) == [IDS])
        waiting = asyncio.create_task(teacher.score([9, *IDS], 2))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert (teacher.replicas[0].tokens, teacher.replicas[0].requests) == (4, 1)
        server.released.set()
        assert_true(await held, IDS)
        assert (teacher.replicas[0].tokens, teacher.replicas[0].requests) == (0, 0)


async def test_the_deadline_is_of_the_whole_call() -> None:
    async with teacher_over(limits=TeacherLimits(0.4)) as (teacher, [server]):
        server.answer = but_questions(lambda _: hang())
        with pytest.raises(TeacherUnreachable, match="no answer") as caught:
            await teacher.score(IDS, 1)
        assert caught.value.timed_out
        assert teacher.stats.failed == {"teacher.unreachable": 1}
        server.released.set()


async def test_a_teacher_that_is_away_is_unreachable_when_patience_ends(unused_tcp_port: int) -> None:
    config = APIServerConfig(base_url=f"http://127.0.0.1:{unused_tcp_port}", timeout=20)
    async with Teacher("math", [config], TeacherLimits(0.4)) as teacher:
        with pytest.raises(TeacherUnreachable, match=str(unused_tcp_port)) as caught:
            await teacher.score(IDS, 1)
        assert not caught.value.timed_out


async def test_waiting_for_a_turn_at_a_busy_server_is_not_counted() -> None:
    limits = TeacherLimits(1.0, tokens_in_flight=4)
    async with teacher_over(limits=limits) as (teacher, [server]):
        # Each answer takes 0.4 s: the fourth one begins after 1.2 s.
        async def slowly() -> None:
            for number in range(1, 5):
                await server.until(lambda number=number: len(questions(server)) >= number)  # type: ignore[misc]
                await asyncio.sleep(0.4)
                server.released.set()
                server.released = asyncio.Event()

        server.answer = HANGING
        release = asyncio.create_task(slowly())
        await asyncio.gather(*(teacher.score([number, *IDS[1:]], 1) for number in range(4)))
        await release
        assert teacher.stats.scored == 4


async def test_asked_is_scored_and_failed_and_cancelled() -> None:
    async with teacher_over() as (teacher, [server]):
        refuse = Reply({"error": {"message": "too long", "param": "input_tokens"}}, 400)
        server.answer = but_questions(
            lambda request: refuse if request.body["prompt"][0] == 9 else score_reply(request)
        )
        results = await asyncio.gather(
            *(teacher.score([first, *IDS], 1) for first in (1, 9, 2, 9)), return_exceptions=True
        )
        assert [isinstance(result, TeacherError) for result in results] == [False, True, False, True]
        stats = teacher.stats
        assert (stats.asked, stats.scored, dict(stats.failed)) == (4, 2, {"teacher.refused": 2})
        assert (stats.asked_tokens, stats.scored_tokens) == (20, 10)


async def test_metrics_are_named_after_the_teacher() -> None:
    async with teacher_over() as (teacher, _):
        await teacher.score(IDS, 1)
        metrics = teacher.stats.metrics()
        assert metrics["teacher/math/scored"] == 1
        assert metrics["teacher/math/scored_tokens"] == 4
        assert metrics["teacher/math/tokens_per_second"] > 0
        assert 0 < metrics["teacher/math/seconds_mean"] <= metrics["teacher/math/seconds_max"]
        assert metrics["teacher/math/received_bytes"] > 100
        assert teacher.stats.metrics()["teacher/math/tokens_per_second"] == 0


async def test_connect_tells_what_the_servers_can() -> None:
    async with teacher_over(2) as (teacher, servers):
        found = await teacher.connect(3)
        assert [one.route for one in found] == ["completions", "completions"]
        assert found == teacher.capabilities
        assert not any(is_question(request) for server in servers for request in server.requests)


async def test_connect_raises_when_no_server_gives_the_top_k() -> None:
    refusal = Reply({"error": {"message": "max allowed: 2", "param": "prompt_logprobs"}}, 400)
    async with teacher_over() as (teacher, [server]):
        healthy = server.answer
        server.answer = lambda request: (
            refusal if (request.body or {}).get("prompt_logprobs", 0) > 2 else healthy(request)
        )
        await teacher.connect(2)
        with pytest.raises(TeacherError, match="--max-logprobs 3 or lower teacher_top_k"):
            await teacher.connect(3)


async def test_connect_goes_on_with_the_servers_that_are_there(
    unused_tcp_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with teacher_over() as (_, [server]):
        urls = [server.url, f"http://127.0.0.1:{unused_tcp_port}"]
        configs = [APIServerConfig(base_url=url, timeout=20) for url in urls]
        async with Teacher("math", configs) as teacher:
            assert len(await teacher.connect(1, patience_s=0.2)) == 1
            assert str(unused_tcp_port) in caplog.text
        async with Teacher("math", configs[1:]) as teacher:
            with pytest.raises(TeacherUnreachable):
                await teacher.connect(1, patience_s=0.2)


async def test_weights_that_change_are_scored_without_a_canary() -> None:
    async with teacher_over(steady=False) as (teacher, _):
        assert_true(await teacher.score(IDS, 1), IDS)
        assert teacher.stats.canaries == 0


async def test_random_cancellations_leave_nothing_in_work() -> None:
    generator = np.random.default_rng(0)
    limits = TeacherLimits(20, tokens_in_flight=12)
    async with teacher_over(2, limits=limits) as (teacher, _):
        tasks = [
            asyncio.create_task(teacher.score(generator.integers(0, 40, 4).tolist(), 1)) for _ in range(200)
        ]
        await asyncio.sleep(0)
        # One that was cancelled before its first step has asked for nothing, and is not counted.
        assert teacher.stats.asked == 200
        for index in generator.permutation(200)[:80].tolist():
            tasks[index].cancel()
            # Some are still in the queue then, some with a server, some have just been given their turn.
            for _ in range(int(generator.integers(0, 30))):
                await asyncio.sleep(0)
        await asyncio.wait(tasks)
        cancelled = sum(task.cancelled() for task in tasks)
        assert (teacher.stats.scored, teacher.stats.cancelled) == (200 - cancelled, cancelled)
        assert cancelled > 0
        assert [(one.tokens, one.requests) for one in teacher.replicas] == [(0, 0), (0, 0)]
        assert_true(await teacher.score(IDS, 1), IDS)
