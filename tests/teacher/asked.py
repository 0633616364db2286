"""A teacher over scripted servers, and what was asked of them beside probes and canaries."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import numpy as np

from atroposlib.config.server import APIServerConfig
from atroposlib.config.teacher import TeacherLimits
from atroposlib.teacher import canary
from atroposlib.teacher.cache import ScoreCache
from atroposlib.teacher.probing import PROBE_IDS
from atroposlib.teacher.teacher import Teacher
from atroposlib.types import ABSENT_ID, TeacherScores
from tests.support.fake_vllm import score_reply, vllm_answer
from tests.support.scripted_server import Reply, Request, ScriptedServer, scripted_server
from tests.support.vllm_render import fake_logprobs

PATH = "/v1/completions"
SMALL = [list(PROBE_IDS), canary.IDS.tolist()]

Answer = Callable[[Request], Reply]


def is_question(request: Request) -> bool:
    """Whether this scores a sequence of a caller."""
    return request.path == PATH and request.body["prompt"] not in SMALL


def questions(server: ScriptedServer) -> list[list[int]]:
    """The callers' sequences that ``server`` was asked for, in order of arrival."""
    return [request.body["prompt"] for request in server.requests if is_question(request)]


def canaries(server: ScriptedServer) -> int:
    """Times that ``server`` was asked for the canary."""
    return sum(request.body["prompt"] == SMALL[1] for request in server.asked(PATH))


def but_questions(answer: Answer, others: Answer = vllm_answer) -> Answer:
    """A healthy server that gives ``answer`` to questions."""
    return lambda request: answer(request) if is_question(request) else others(request)


def model(seed: int) -> Answer:
    """A healthy server with another model; 0 is that of ``vllm_answer``."""

    def answer(request: Request) -> Reply:
        scores = request.path == PATH and "prompt_logprobs" in request.body
        return score_reply(request, seed) if scores else vllm_answer(request)

    return answer


hang = partial(Reply, action="hang")


@asynccontextmanager
async def teacher_over(
    count: int = 1,
    *,
    limits: TeacherLimits | None = None,
    cache: ScoreCache | None = None,
    steady: bool = True,
    **fields: Any,
) -> AsyncIterator[tuple[Teacher, list[ScriptedServer]]]:
    """A teacher over ``count`` healthy scripted servers; ``fields`` go into every config."""
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(scripted_server()) for _ in range(count)]
        for server in servers:
            server.answer = vllm_answer
        configs = [APIServerConfig(**{"base_url": one.url, "timeout": 20, **fields}) for one in servers]
        made = Teacher("math", configs, limits or TeacherLimits(20), cache=cache, steady=steady)
        yield await stack.enter_async_context(made), servers


def assert_true(scores: TeacherScores, ids: list[int], *, start: int = 1, seed: int = 0) -> None:
    """Every value is the fake model's own, and no position or candidate is missing."""
    truth = fake_logprobs(ids, seed=seed)
    assert (scores.start, len(scores.ids)) == (start, len(ids) - start)
    k = scores.ids.shape[1] - 1
    for position, (row, values) in enumerate(zip(scores.ids, scores.logprobs, strict=True), start=start):
        assert row[0] == ids[position]
        top = set(np.argsort(-truth[position], kind="stable")[:k].tolist())
        assert set(row[row != ABSENT_ID].tolist()) == top | {ids[position]}
        present = row != ABSENT_ID
        assert values[present].tolist() == truth[position][row[present]].tolist()
