"""One request to a server: what is sent, what its failures are called, what is never told or followed."""

from __future__ import annotations

import asyncio
import gzip
import logging

import aiohttp
import numpy as np
import pytest

from atroposlib.errors import TeacherError, TeacherUnreachable
from atroposlib.teacher.persistence import Passing
from atroposlib.teacher.transport import TEACHER, Peer, call, send
from tests.support.recorded import recordings
from tests.support.scripted_server import Reply, ScriptedServer

PATH = "/v1/completions"
BODY = {"prompt": [1, 2], "prompt_logprobs": 4}


def peer(server: ScriptedServer, *, timeout_s: float = 20.0, api_key: str = "") -> Peer:
    return Peer(TEACHER, server.url, "fake", timeout_s, api_key)


async def test_the_key_is_sent_and_never_told(
    server: ScriptedServer, session: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server.then(PATH, Reply({"error": "bad key sk-secret"}, 401))
    asked = peer(server, api_key="sk-secret")
    with pytest.raises(TeacherError, match="api_key") as caught:
        await call(session, asked, PATH, BODY)
    assert server.requests[0].headers["Authorization"] == "Bearer sk-secret"
    for text in (str(caught.value), repr(caught.value), repr(asked), caplog.text):
        assert "sk-secret" not in text


async def test_without_a_key_no_authorization_is_sent(
    server: ScriptedServer, session: aiohttp.ClientSession
) -> None:
    server.then(PATH, Reply({}))
    await call(session, peer(server), PATH, BODY)
    assert "Authorization" not in server.requests[0].headers


async def test_arrays_are_sent_as_json_numbers(
    server: ScriptedServer, session: aiohttp.ClientSession
) -> None:
    server.then(PATH, Reply({}))
    rows = np.arange(6, dtype=np.int32).reshape(2, 3)
    await call(session, peer(server), PATH, {"rows": rows, "columns": rows.T})
    assert server.requests[0].body == {"rows": [[0, 1, 2], [3, 4, 5]], "columns": [[0, 3], [1, 4], [2, 5]]}


async def test_bytes_are_sent_as_they_are_with_their_type(
    server: ScriptedServer, session: aiohttp.ClientSession
) -> None:
    server.then(PATH, Reply(b"answer"))
    got = await call(session, peer(server), PATH, b"\x00\x01", media_type="application/x-scores")
    assert got == b"answer"
    assert server.requests[0].body == b"\x00\x01"
    assert server.requests[0].headers["Content-Type"] == "application/x-scores"


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
async def test_a_refusal_of_a_real_vllm_is_final_and_told_with_its_fix(
    server: ScriptedServer, session: aiohttp.ClientSession, name: str, fix: str
) -> None:
    recorded = recordings("refusals")[name]
    server.then(PATH, Reply(recorded["body"], recorded["status"]))
    with pytest.raises(TeacherError) as caught:
        await call(session, peer(server), PATH, BODY)
    assert caught.value.code == "teacher.refused"
    assert fix in str(caught.value)
    assert recorded["body"]["error"]["message"][:40] in str(caught.value)


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        *[(Reply({"error": "later"}, status), "busy") for status in (429, 502, 503, 504)],
        (Reply(b"", 500), "broken"),
        (Reply({"error": {"message": "EngineCore encountered an issue"}}, 500), "broken"),
        (Reply(action="reset"), "broken"),
    ],
)
async def test_a_failure_that_may_pass_says_of_which_kind_it_is(
    server: ScriptedServer, session: aiohttp.ClientSession, reply: Reply, kind: str
) -> None:
    server.then(PATH, reply)
    with pytest.raises(Passing) as caught:
        await call(session, peer(server), PATH, BODY)
    assert caught.value.kind == kind


async def test_a_server_that_is_not_there_is_down(
    session: aiohttp.ClientSession, unused_tcp_port: int
) -> None:
    absent = Peer(TEACHER, f"http://127.0.0.1:{unused_tcp_port}", None, 20.0)
    with pytest.raises(Passing) as caught:
        await send(session, absent, "/health")
    assert caught.value.kind == "down"
    assert isinstance(caught.value.error, TeacherUnreachable)
    assert not caught.value.error.timed_out


@pytest.mark.parametrize("action", ["hang", "drip"])
async def test_no_whole_answer_within_the_timeout_is_unreachable(
    server: ScriptedServer, session: aiohttp.ClientSession, action: str
) -> None:
    server.then(PATH, Reply(b"x" * 1000, action=action))  # type: ignore[arg-type]
    with pytest.raises(TeacherUnreachable, match=r"no answer for 0\.5 s") as caught:
        await call(session, peer(server, timeout_s=0.5), PATH, BODY)
    assert caught.value.timed_out


async def test_an_answer_that_does_not_end_is_refused_while_it_is_read(
    server: ScriptedServer, session: aiohttp.ClientSession
) -> None:
    server.then(PATH, Reply(b"x" * 10_000, action="endless"))
    with pytest.raises(TeacherError, match="longer than any right one"):
        await call(session, peer(server), PATH, BODY, limit=100_000)


async def test_a_small_answer_that_inflates_beyond_the_limit_is_refused(
    server: ScriptedServer, session: aiohttp.ClientSession
) -> None:
    bomb = gzip.compress(b" " * 5_000_000)
    assert len(bomb) < 100_000
    server.then(PATH, Reply(bomb, headers={"Content-Encoding": "gzip"}))
    with pytest.raises(TeacherError, match="longer than any right one"):
        await call(session, peer(server), PATH, BODY, limit=100_000)


async def test_an_answer_of_just_the_limit_is_read(
    server: ScriptedServer, session: aiohttp.ClientSession
) -> None:
    server.then(PATH, Reply(b"x" * 100_000))
    assert len(await call(session, peer(server), PATH, BODY, limit=100_000)) == 100_000


async def test_a_redirect_is_not_followed(server: ScriptedServer, session: aiohttp.ClientSession) -> None:
    server.then(PATH, Reply({}, 307, headers={"Location": "http://127.0.0.1:9/v1/completions"}))
    with pytest.raises(TeacherError, match="redirects"):
        await call(session, peer(server, api_key="k"), PATH, BODY)


async def test_cancellation_ends_the_request(server: ScriptedServer, session: aiohttp.ClientSession) -> None:
    server.then(PATH, Reply(action="hang"))
    asked = asyncio.create_task(call(session, peer(server), PATH, BODY))
    await server.until(lambda: bool(server.requests))
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
