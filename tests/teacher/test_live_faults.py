"""Two servers that fail in every way while a teacher asks them: each sequence is scored truly, or counted."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from atroposlib.config.server import APIServerConfig
from atroposlib.config.teacher import TeacherLimits
from atroposlib.errors import TeacherError
from atroposlib.teacher.teacher import Teacher
from atroposlib.types import TeacherScores
from tests.support.fake_servers import stock_vllm
from tests.support.scripted_server import Reply, Request, scripted_server
from tests.teacher.asked import assert_true, is_question

SEQUENCES = 150
CLEAN = 0.75


class Failing:
    """A stock vLLM, of whose answers to questions every fourth is one of the faults."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)
        self.faults: list[str] = []

    def __call__(self, request: Request) -> Reply:
        reply = stock_vllm(request)
        if not is_question(request) or self._generator.random() < CLEAN:
            return reply
        faults = {
            "empty 500": Reply(b"", 500),
            "storm": Reply({"error": "later"}, 503),
            "reset": Reply(action="reset"),
            "hang": Reply(action="hang"),
            "drip": Reply(reply.body, action="drip"),
            "endless": Reply(b" " * 100_000, action="endless"),
            "broken off": Reply(b'{"choices": [{"prompt_logprobs": [null, {'),
            "short": Reply({"choices": [{"prompt_logprobs": _rows(reply)[:-1]}]}),
            "of another": stock_vllm(_other(request)),
        }
        self.faults.append(str(self._generator.choice(list(faults))))
        return faults[self.faults[-1]]


def _rows(reply: Reply) -> list[Any]:
    return reply.body["choices"][0]["prompt_logprobs"]  # type: ignore[no-any-return]


def _other(request: Request) -> Request:
    ids = request.body["prompt"]
    return Request(request.path, {**request.body, "prompt": [ids[0], *ids[2:], ids[1]]}, request.headers)


async def test_each_sequence_is_scored_truly_or_counted_with_its_reason() -> None:
    generator = np.random.default_rng(0)
    sequences = [generator.integers(0, 50, int(generator.integers(9, 16))).tolist() for _ in range(SEQUENCES)]
    failing = [Failing(1), Failing(2)]
    async with scripted_server() as first, scripted_server() as second:
        first.answer, second.answer = failing
        configs = [
            APIServerConfig(base_url=server.url, model_name="fake", timeout=1) for server in (first, second)
        ]
        async with Teacher("t", configs, TeacherLimits(patience_s=6.0, tokens_in_flight=100)) as teacher:
            asked = [teacher.score(ids, 3) for ids in sequences]
            results = await asyncio.gather(*asked, return_exceptions=True)
    scored = 0
    for ids, result in zip(sequences, results, strict=True):
        if isinstance(result, TeacherScores):
            assert_true(result, ids)
            scored += 1
        else:
            assert isinstance(result, TeacherError)
    assert scored == teacher.stats.scored > 0
    assert teacher.stats.asked == SEQUENCES == scored + teacher.stats.failed.total()
    assert set(teacher.stats.failed) <= {
        "teacher.bad_reply",
        "teacher.failed",
        "teacher.quarantined",
        "teacher.unreachable",
    }
    assert len({fault for server in failing for fault in server.faults}) == 9
