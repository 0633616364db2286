"""The teacher client against a scripted server: what it sends, what it repeats, what it refuses."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import aiohttp
import numpy as np
import orjson
import pytest

from atroposlib.config.server import APIServerConfig
from atroposlib.errors import TeacherError, TeacherUnreachable, UsageError
from atroposlib.teacher import client, transport
from atroposlib.teacher.client import score
from atroposlib.teacher.persistence import Passing
from atroposlib.teacher.scores import parse_prompt_logprobs
from tests.support.fake_vllm import score_reply, scores_body
from tests.support.recorded import recordings
from tests.support.scripted_server import Reply, ScriptedServer, scripted_server
from tests.support.vllm_cases import IDS as RECORDED_IDS

IDS = [3, 14, 15, 9, 2]
PATH = "/v1/completions"
ROUTED = ["", "/", "/v1", "/v1/"]


def teacher(server: ScriptedServer, **fields: Any) -> APIServerConfig:
    return APIServerConfig(**{"base_url": server.url, "model_name": "fake", "timeout": 20, **fields})


async def test_scores_are_those_of_the_reply(server: ScriptedServer, session: aiohttp.ClientSession) -> None:
    server.answer = score_reply
    got = await score(session, teacher(server), IDS, 4)
    rows = scores_body(IDS, 4)["choices"][0]["prompt_logprobs"]
    wanted = parse_prompt_logprobs(rows, IDS, 4)
    assert np.array_equal(got.ids, wanted.ids)
    assert np.array_equal(got.logprobs, wanted.logprobs)
    assert (got.model, got.start) == ("fake", 1)


async def test_the_request_is_one_token_of_greedy_sampling_with_prompt_logprobs(
    server: ScriptedServer, session: aiohttp.ClientSession
) -> None:
    server.answer = score_reply
    await score(session, teacher(server), IDS, 0)
    assert server.requests[0].body == {
        "model": "fake",
        "prompt": IDS,
        "prompt_logprobs": 0,
        "max_tokens": 1,
        "temperature": 0.0,
    }


@pytest.mark.parametrize("tail", ROUTED)
async def test_base_url_works_with_and_without_v1(
    server: ScriptedServer, session: aiohttp.ClientSession, tail: str
) -> None:
    server.answer = score_reply
    await score(session, teacher(server, base_url=server.url + tail), IDS, 1)
    assert [request.path for request in server.requests] == [PATH]


async def test_the_default_model_name_lets_the_server_choose(
    server: ScriptedServer, session: aiohttp.ClientSession
) -> None:
    server.answer = score_reply
    await score(session, APIServerConfig(base_url=server.url), IDS, 1)
    assert "model" not in server.requests[0].body


async def test_the_key_is_sent_and_never_told(
    server: ScriptedServer, session: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    config = teacher(server, api_key="sk-secret")
    server.then(PATH, Reply({"error": "bad key sk-secret"}, 401))
    with pytest.raises(TeacherError, match="api_key") as caught:
        await score(session, config, IDS, 1)
    assert server.requests[0].headers["Authorization"] == "Bearer sk-secret"
    peer = transport.peer_of(config, transport.TEACHER)
    for text in (str(caught.value), repr(caught.value), repr(config), repr(peer), caplog.text):
        assert "sk-secret" not in text


async def test_without_a_key_no_authorization_is_sent(
    server: ScriptedServer, session: aiohttp.ClientSession
) -> None:
    server.answer = score_reply
    await score(session, teacher(server), IDS, 1)
    assert "Authorization" not in server.requests[0].headers


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("prompt_logprobs_too_many", "restart vLLM with --max-logprobs 4 or lower teacher_top_k"),
        ("prompt_too_long", "--max-model-len"),
        ("prompt_fills_context", "--max-model-len"),
        ("unknown_model", "model_name"),
        ("id_out_of_vocabulary", "tokenizer"),
    ],
)
async def test_a_refusal_is_told_with_its_fix_and_not_repeated(
    server: ScriptedServer, session: aiohttp.ClientSession, name: str, fix: str
) -> None:
    recorded = recordings("refusals")[name]
    server.then(PATH, Reply(recorded["body"], recorded["status"]))
    with pytest.raises(TeacherError) as caught:
        await score(session, teacher(server), IDS, 4)
    error = caught.value
    assert error.code == "teacher.refused"
    assert fix in str(error)
    assert recorded["body"]["error"]["message"][:40] in str(error)
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_a_busy_server_is_asked_again(
    server: ScriptedServer, session: aiohttp.ClientSession, status: int
) -> None:
    server.then(PATH, *[Reply({"error": "later"}, status)] * 3)
    server.answer = score_reply
    assert len((await score(session, teacher(server), IDS, 1)).ids) == 4
    assert len(server.requests) == 4


@pytest.mark.parametrize("reply", [Reply(b"", 500), Reply(action="reset")])
async def test_a_request_that_breaks_the_server_once_is_repeated_once(
    server: ScriptedServer, session: aiohttp.ClientSession, reply: Reply
) -> None:
    server.then(PATH, reply)
    server.answer = score_reply
    assert len((await score(session, teacher(server), IDS, 1)).ids) == 4


async def test_a_request_that_breaks_the_server_twice_is_given_up(
    server: ScriptedServer, session: aiohttp.ClientSession
) -> None:
    server.answer = lambda _: Reply({"error": {"message": "EngineCore encountered an issue"}}, 500)
    with pytest.raises(TeacherError, match="EngineCore") as caught:
        await score(session, teacher(server), IDS, 1)
    assert caught.value.code == "teacher.failed"
    assert len(server.requests) == 2


async def test_a_server_that_stays_down_is_unreachable_when_patience_ends(
    session: aiohttp.ClientSession, unused_tcp_port: int
) -> None:
    config = APIServerConfig(base_url=f"http://127.0.0.1:{unused_tcp_port}/v1")
    with pytest.raises(TeacherUnreachable, match="cannot be reached") as caught:
        await score(session, config, IDS, 1, patience_s=0.3)
    assert not caught.value.timed_out
    assert caught.value.exit_code == 3
    assert caught.value.code == "teacher.unreachable"


async def test_a_server_that_comes_up_in_time_is_used(
    session: aiohttp.ClientSession, unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = asyncio.Event()
    call = client.call

    async def watched(*arguments: Any) -> bytes:
        try:
            return await call(*arguments)
        except Passing:
            failed.set()
            raise

    monkeypatch.setattr(client, "call", watched)
    config = APIServerConfig(base_url=f"http://127.0.0.1:{unused_tcp_port}")
    asked = asyncio.create_task(score(session, config, IDS, 1, patience_s=60))
    await failed.wait()
    async with scripted_server(unused_tcp_port) as server:
        server.answer = score_reply
        assert len((await asked).ids) == 4


async def test_no_answer_within_the_timeout_is_unreachable_and_not_repeated(
    server: ScriptedServer, session: aiohttp.ClientSession
) -> None:
    server.then(PATH, Reply(action="hang"))
    with pytest.raises(TeacherUnreachable, match="no answer for 1 s") as caught:
        await score(session, teacher(server, timeout=1), IDS, 1)
    assert caught.value.timed_out
    assert len(server.requests) == 1


async def test_a_paused_server_is_waited_for(server: ScriptedServer, session: aiohttp.ClientSession) -> None:
    server.then(PATH, Reply(scores_body(IDS, 1), action="hang"))
    asked = asyncio.create_task(score(session, teacher(server), IDS, 1, patience_s=0))
    await server.until(lambda: bool(server.requests))
    server.released.set()
    assert len((await asked).ids) == 4


@pytest.mark.parametrize(
    "body",
    [
        b"not json",
        b'{"choices": [{"prompt_logprobs": [null, {"5": {"logprob": NaN, "rank": 1}}]}]}',
        {},
        [],
        {"choices": []},
        {"choices": [{}, {}]},
        {"choices": [{"prompt_logprobs": None}]},
        {"choices": [{"prompt_logprobs": [None]}]},
    ],
)
async def test_another_answer_than_the_scores_is_refused_at_once(
    server: ScriptedServer, session: aiohttp.ClientSession, body: Any
) -> None:
    server.then(PATH, Reply(body))
    with pytest.raises(TeacherError) as caught:
        await score(session, teacher(server), IDS, 1)
    assert caught.value.code == "teacher.bad_reply"
    assert len(server.requests) == 1


async def test_a_large_reply_is_parsed_off_the_loop(
    server: ScriptedServer, session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []
    to_thread = asyncio.to_thread

    async def spy(function: Any, *arguments: Any) -> Any:
        threads.append(function)
        return await to_thread(function, *arguments)

    monkeypatch.setattr(asyncio, "to_thread", spy)
    body = scores_body(IDS, 1)
    server.then(PATH, Reply(body), Reply({**body, "padding": "x" * transport.OFF_LOOP_BYTES}))
    small = await score(session, teacher(server), IDS, 1)
    assert not threads
    large = await score(session, teacher(server), IDS, 1)
    assert len(threads) == 1
    assert np.array_equal(small.ids, large.ids)


async def test_cancellation_ends_the_request(server: ScriptedServer, session: aiohttp.ClientSession) -> None:
    server.then(PATH, Reply(action="hang"))
    asked = asyncio.create_task(score(session, teacher(server), IDS, 1))
    await server.until(lambda: bool(server.requests))
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked


async def test_a_redirect_is_not_followed(server: ScriptedServer, session: aiohttp.ClientSession) -> None:
    server.then(PATH, Reply({}, 307, headers={"Location": "http://127.0.0.1:9/v1/completions"}))
    with pytest.raises(TeacherError, match="redirects"):
        await score(session, teacher(server, api_key="k"), IDS, 1)


async def test_negative_k_and_no_tokens_are_refused_before_anything_is_sent(
    server: ScriptedServer, session: aiohttp.ClientSession
) -> None:
    with pytest.raises(UsageError):
        await score(session, teacher(server), IDS, -1)
    with pytest.raises(TeacherError):
        await score(session, teacher(server), [], 1)
    assert not server.requests


async def test_the_recorded_reply_of_a_real_vllm_is_accepted(
    server: ScriptedServer, session: aiohttp.ClientSession
) -> None:
    server.then(PATH, Reply(orjson.dumps(recordings("completions")["prompt_logprobs_4"]["body"])))
    scores = await score(session, teacher(server), RECORDED_IDS, 4)
    assert scores.model == "smollm2"
    assert scores.ids[:, 0].tolist() == RECORDED_IDS[1:]
