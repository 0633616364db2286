"""Each route against a scripted server: what it sends, and that it reads what comes back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import aiohttp
import numpy as np
import pytest

from atroposlib.errors import TeacherError
from atroposlib.teacher.completions import Completions
from atroposlib.teacher.echo import Echo
from atroposlib.teacher.generate import Generate
from atroposlib.teacher.protocol import Capabilities, Question, Route
from atroposlib.teacher.sglang import MOST_NAMED, SGLang
from atroposlib.teacher.transport import TEACHER, Peer
from tests.support import reply_render
from tests.support.reply_render import expected, random_truth
from tests.support.scripted_server import Reply, ScriptedServer

QUESTION = Question(np.array([3, 14, 15, 9, 2, 6], dtype=np.int32), k=4, start=3)
EXTRA = np.array([[1, 2], [2, -1], [8, 1]], dtype=np.int32)
TRUTH = random_truth(np.random.default_rng(5), 6, 20)
IDS = QUESTION.ids.tolist()

Case = tuple[Route, str, Callable[..., dict[str, Any]], dict[str, Any]]
CASES: list[Case] = [
    (
        Completions(),
        "/v1/completions",
        reply_render.completions,
        {"model": "fake", "prompt": IDS, "prompt_logprobs": 4, "max_tokens": 1, "temperature": 0.0},
    ),
    (
        Generate(),
        "/inference/v1/generate",
        reply_render.generate,
        {
            "model": "fake",
            "token_ids": IDS,
            "sampling_params": {
                "prompt_logprobs": 4,
                "max_tokens": 1,
                "temperature": 0.0,
                "detokenize": False,
            },
        },
    ),
    (
        SGLang(),
        "/generate",
        reply_render.sglang,
        {
            "input_ids": IDS,
            "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
            "return_logprob": True,
            "logprob_start_len": 2,
            "top_logprobs_num": 4,
            "return_text_in_logprobs": False,
            "return_flat_raw_top_logprobs": True,
            "return_flat_raw_top_logprobs_b64": True,
            "stream": False,
        },
    ),
    (
        Echo(),
        "/v1/completions",
        reply_render.echo,
        {
            "model": "fake",
            "prompt": IDS,
            "echo": True,
            "logprobs": 4,
            "max_tokens": 0,
            "temperature": 1.0,
            "return_tokens_as_token_ids": True,
        },
    ),
]


def capabilities(route: Route, **fields: Any) -> Capabilities:
    return Capabilities(route.name, "fake 1.0", "m", **fields)


def peer(server: ScriptedServer, model: str | None = "fake") -> Peer:
    return Peer(TEACHER, server.url, model, 20.0)


@pytest.mark.parametrize(
    ("route", "path", "render", "sent"), CASES, ids=lambda case: getattr(case, "name", "")
)
async def test_a_route_asks_for_the_top_k_and_reads_the_answer(
    server: ScriptedServer,
    session: aiohttp.ClientSession,
    route: Route,
    path: str,
    render: Callable[..., dict[str, Any]],
    sent: dict[str, Any],
) -> None:
    server.then(path, Reply(render(TRUTH, QUESTION)))
    scores = await route.score(session, peer(server), QUESTION, capabilities(route))
    wanted = expected(TRUTH, QUESTION)
    assert server.requests[0].body == sent
    assert np.array_equal(scores.ids, wanted.ids)
    assert np.array_equal(scores.logprobs, wanted.logprobs)
    assert (scores.start, scores.server) == (3, "fake 1.0")


@pytest.mark.parametrize(
    ("route", "path", "render", "sent"), CASES, ids=lambda case: getattr(case, "name", "")
)
async def test_the_default_model_name_lets_the_server_choose(
    server: ScriptedServer,
    session: aiohttp.ClientSession,
    route: Route,
    path: str,
    render: Callable[..., dict[str, Any]],
    sent: dict[str, Any],
) -> None:
    server.then(path, Reply(render(TRUTH, QUESTION)))
    await route.score(session, peer(server, model=None), QUESTION, capabilities(route))
    assert "model" not in server.requests[0].body


@pytest.mark.parametrize(
    ("route", "path", "render", "sent"), CASES, ids=lambda case: getattr(case, "name", "")
)
async def test_a_bad_reply_is_told_with_the_server_and_the_row(
    server: ScriptedServer,
    session: aiohttp.ClientSession,
    route: Route,
    path: str,
    render: Callable[..., dict[str, Any]],
    sent: dict[str, Any],
) -> None:
    server.then(path, Reply(render(TRUTH * np.float32(0.5), QUESTION)))
    with pytest.raises(TeacherError, match="exceed 1") as caught:
        await route.score(session, peer(server), QUESTION, capabilities(route))
    assert caught.value.code == "teacher.bad_reply"
    assert str(caught.value.where).startswith(f"{server.url} rows[")


async def test_generate_names_ids_only_to_a_server_that_scores_them(
    server: ScriptedServer, session: aiohttp.ClientSession
) -> None:
    server.answer = lambda _: Reply(reply_render.generate(TRUTH, QUESTION))
    named = replace(QUESTION, extra_ids=EXTRA)
    scores = await Generate().score(session, peer(server), named, capabilities(Generate()))
    assert scores.extra_logprobs is None
    with pytest.raises(TeacherError, match="named ids"):
        await Generate().score(session, peer(server), named, capabilities(Generate(), extra_ids=True))
    first, second = (request.body["sampling_params"] for request in server.requests)
    assert "prompt_logprob_token_ids" not in first
    assert second["prompt_logprob_token_ids"] == EXTRA.tolist()
    assert second["prompt_logprob_start"] == 2


async def test_sglang_is_given_all_named_ids_once(
    server: ScriptedServer, session: aiohttp.ClientSession
) -> None:
    named = replace(QUESTION, extra_ids=EXTRA)
    server.then("/generate", Reply(reply_render.sglang(TRUTH, named)))
    scores = await SGLang().score(session, peer(server), named, capabilities(SGLang()))
    assert server.requests[0].body["token_ids_logprob"] == [1, 2, 8]
    assert scores.extra_logprobs is not None
    assert scores.extra_logprobs[2].tolist() == [TRUTH[5, 8], TRUTH[5, 1]]


async def test_sglang_is_not_asked_for_more_named_ids_than_it_can_answer_in_lists(
    server: ScriptedServer, session: aiohttp.ClientSession
) -> None:
    many = np.arange(3 * MOST_NAMED, dtype=np.int32).reshape(3, MOST_NAMED)
    named = replace(QUESTION, extra_ids=many)
    server.then("/generate", Reply(reply_render.sglang(TRUTH, QUESTION)))
    scores = await SGLang().score(session, peer(server), named, capabilities(SGLang()))
    assert "token_ids_logprob" not in server.requests[0].body
    assert scores.extra_logprobs is None
