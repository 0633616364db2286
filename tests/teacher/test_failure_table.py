"""What becomes of a question when its server fails in each of the ways that a stock vLLM knows."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from atroposlib.config.teacher import TeacherLimits
from atroposlib.errors import TeacherError
from tests.support.fake_vllm import score_reply, vllm_answer
from tests.support.recorded import recordings
from tests.support.scripted_server import Reply, Request
from tests.teacher.asked import assert_true, but_questions, canaries, hang, questions, teacher_over

IDS = [5, 6, 7, 8]
RECORDED = recordings("refusals")


def recorded(name: str) -> Reply:
    return Reply(RECORDED[name]["body"], RECORDED[name]["status"])


def failure(message: str, status: int, kind: str, param: str | None = None) -> Reply:
    """An error as vLLM 0.32 words it."""
    return Reply({"error": {"message": message, "type": kind, "param": param, "code": status}}, status)


OVERLONG_GENERATE = failure(
    "The decoder prompt (length 600) is longer than the maximum model length of 512.", 400, "BadRequestError"
)
FINAL = {
    "k above --max-logprobs": (recorded("prompt_logprobs_too_many"), "--max-logprobs 2 or lower"),
    "prompt too long": (recorded("prompt_too_long"), "--max-model-len"),
    "prompt too long, generate": (OVERLONG_GENERATE, "--max-model-len"),
    "prompt fills the context": (recorded("prompt_fills_context"), "--max-model-len"),
    "id out of vocabulary": (recorded("id_out_of_vocabulary"), "another tokenizer"),
}


@pytest.mark.parametrize("name", FINAL)
async def test_a_refused_question_is_asked_once_and_told_with_its_fix(name: str) -> None:
    refusal, fix = FINAL[name]
    async with teacher_over(2) as (teacher, servers):
        await teacher.connect(1)
        for server in servers:
            server.answer = but_questions(lambda _: refusal)
        with pytest.raises(TeacherError, match=fix) as caught:
            await teacher.score(IDS, 2)
        assert (caught.value.code, caught.value.servers_at_fault) == ("teacher.refused", False)
        assert sum(len(questions(server)) for server in servers) == 1
        assert (teacher.stats.failed, teacher.stats.aside) == ({"teacher.refused": 1}, {})


AT_FAULT = {
    "unknown model": (recorded("unknown_model"), "model_name"),
    "unknown path": (Reply({"detail": "Not Found"}, 404), None),
    "wrong key": (Reply({"error": "Unauthorized"}, 401), "api_key"),
}


@pytest.mark.parametrize("name", AT_FAULT)
async def test_a_server_that_refuses_everything_is_set_aside_with_its_fix(name: str) -> None:
    refusal, fix = AT_FAULT[name]
    async with teacher_over(2) as (teacher, [first, second]):
        await teacher.connect(1)
        first.answer = lambda _: refusal
        for ids in (IDS, [1, *IDS]):
            assert_true(await teacher.score(ids, 1), ids)
        assert len(questions(first)) == 1
        second.answer = lambda _: refusal
        with pytest.raises(TeacherError) as caught:
            await teacher.score([2, *IDS], 1)
        assert caught.value.code in ("teacher.refused", "teacher.no_route")
        assert fix is None or fix in str(caught.value)
        assert teacher.stats.aside.total() == 2
        assert caught.value.servers_at_fault


@pytest.mark.parametrize(
    "reply",
    [
        failure("EngineCore encountered an issue.", 500, "InternalServerError"),
        Reply(b"", 500),
        Reply(action="reset"),
    ],
)
async def test_an_engine_that_died_is_asked_once_more_after_its_health_is_back(reply: Reply) -> None:
    async with teacher_over() as (teacher, [server]):
        await teacher.connect(1)
        health = iter([503, 503, 200])
        broken = iter([True])

        def answer(request: Request) -> Reply:
            return reply if next(broken, False) else score_reply(request)

        def others(request: Request) -> Reply:
            return Reply(b"", next(health, 200)) if request.path == "/health" else vllm_answer(request)

        server.answer = but_questions(answer, others)
        assert_true(await teacher.score(IDS, 1), IDS)
        assert questions(server) == [IDS, IDS]
        assert len(server.asked("/health")) == 3
        assert canaries(server) == 2


async def test_nan_of_the_encoder_is_given_up_after_the_second_time() -> None:
    nan = failure("Out of range float values are not JSON compliant: nan", 500, "InternalServerError")
    async with teacher_over() as (teacher, [server]):
        server.answer = but_questions(lambda _: nan)
        with pytest.raises(TeacherError, match="not JSON compliant") as caught:
            await teacher.score(IDS, 1)
        assert caught.value.code == "teacher.failed"
        assert len(questions(server)) == 2


@pytest.mark.parametrize("status", [429, 503])
async def test_a_full_queue_is_asked_again_elsewhere_first(status: int) -> None:
    full = failure("The queue is full", status, "Service Unavailable")
    async with teacher_over(2) as (teacher, [first, second]):
        await teacher.connect(1)
        first.answer = but_questions(lambda _: full)
        assert_true(await teacher.score(IDS, 1), IDS)
        assert (len(questions(first)), len(questions(second))) == (1, 1)
        assert teacher.stats.failed == {}


async def test_a_paused_server_is_bounded_by_its_timeout() -> None:
    async with teacher_over(timeout=1) as (teacher, [server]):
        await teacher.connect(1)
        server.answer = lambda _: hang()
        with pytest.raises(TeacherError, match="paused") as caught:
            await teacher.score(IDS, 1)
        assert caught.value.timed_out
        assert questions(server) == [IDS]
        server.released.set()


async def test_a_limit_below_the_top_k_is_told_whenever_it_is_met() -> None:
    """At the first question, when the server comes back with a smaller limit, and by ``connect``."""

    def limited(request: Request) -> Reply:
        k = (request.body or {}).get("prompt_logprobs", 0)
        return recorded("prompt_logprobs_too_many") if k > 20 else vllm_answer(request)

    async with teacher_over(limits=TeacherLimits(20)) as (teacher, [server]):
        server.answer = limited
        told: list[Any] = [
            await asyncio.gather(ask, return_exceptions=True)
            for ask in (teacher.score(IDS, 21), teacher.connect(21), teacher.score(IDS, 20))
        ]
        for [error] in told[:2]:
            assert isinstance(error, TeacherError)
            assert error.code == "teacher.refused"
            assert "--max-logprobs 21 or lower teacher_top_k" in str(error)
        [scores] = told[2]
        assert_true(scores, IDS)
        assert np.isfinite(scores.logprobs[:, :20]).all()
