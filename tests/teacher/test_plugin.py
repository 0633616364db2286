"""The binary route finds its servers, takes right answers and tells every other one for what it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from aiohttp import web

from atroposlib.config.server import APIServerConfig
from atroposlib.errors import TeacherError
from atroposlib.teacher import plugin
from atroposlib.teacher.binary import CAPABILITIES_PATH, SCORES_PATH, decode_request, encode_answer
from atroposlib.teacher.persistence import Passing
from atroposlib.teacher.plugin import PluginRoute
from atroposlib.teacher.protocol import Capabilities, Question
from atroposlib.teacher.transport import TEACHER, Peer, peer_of
from atroposlib.types import TeacherScores
from tests.support.oracle import Oracle, float64_oracle
from tests.support.questions import answer, question
from tests.support.running_model_server import running_model_server
from tests.support.scripted_server import Reply, ScriptedServer

ROUTE = PluginRoute()
MAX_K = 20
FACTS: dict[str, Any] = {
    "protocol": 1,
    "server": "vllm 0.32.0",
    "model": "big",
    "max_model_len": 4096,
    "max_k": 128,
    "vocab_size": 50,
    "extra_ids": True,
}
CAN = Capabilities("plugin", "fake 1", "fake", binary=True, start=True)


def peer(url: str, model: str = "default", **settings: Any) -> Peer:
    return peer_of(
        APIServerConfig(base_url=f"{url}/v1", model_name=model, server_type="vllm", **settings), TEACHER
    )


@pytest.fixture(scope="module")
def model_server(tiny_model_dir: Path) -> Iterator[str]:
    with running_model_server(tiny_model_dir, served_model_name="tiny", max_logprobs=MAX_K) as url:
        yield url


@pytest.fixture(scope="module")
def oracle(tiny_model_dir: Path) -> Oracle:
    return float64_oracle(tiny_model_dir)


async def test_model_server_tells_what_it_can(model_server: str, session: aiohttp.ClientSession) -> None:
    found = await ROUTE.probe(session, peer(model_server, "tiny"))
    assert found is not None
    assert found.server.startswith("atropos ")
    expected = Capabilities(
        "plugin", found.server, "tiny", 512, MAX_K, extra_ids=True, start=True, binary=True
    )
    assert found == expected


@pytest.mark.parametrize("k", [0, 1, 7, MAX_K])
@pytest.mark.parametrize("start", [1, 23])
async def test_scores_are_those_of_a_float64_pass(
    model_server: str, session: aiohttp.ClientSession, oracle: Oracle, k: int, start: int
) -> None:
    asked = question(24, k, start, extra=3, seed=k, vocabulary=300)
    scores = await ROUTE.score(session, peer(model_server), asked, CAN)
    table = oracle(asked.ids.tolist())[start - 1 : -1]
    ids = asked.ids[start:]
    assert_is_top_k(scores, table, ids, k)
    assert (scores.start, scores.model) == (start, "tiny")
    assert asked.extra_ids is not None
    assert scores.extra_logprobs is not None
    named = np.take_along_axis(table, asked.extra_ids.clip(0), axis=1)
    np.testing.assert_allclose(
        scores.extra_logprobs, np.where(asked.extra_ids < 0, np.nan, named), atol=3e-4, equal_nan=True
    )


def assert_is_top_k(scores: TeacherScores, table: Any, ids: Any, k: int) -> None:
    """Column 0 is the standing token, the rest the best of the table without it, falling."""
    np.testing.assert_array_equal(scores.ids[:, 0], ids)
    truth = np.take_along_axis(table, scores.ids.clip(0), axis=1)
    np.testing.assert_allclose(scores.logprobs, np.where(scores.ids < 0, -np.inf, truth), atol=3e-4)
    best = np.sort(table, axis=1)[:, ::-1][:, :k]
    for row, standing, top in zip(scores.logprobs, truth[:, 0], best, strict=True):
        inside = standing >= top[-1] - 3e-4 if k else False
        others = row[1:][np.isfinite(row[1:])]
        assert len(others) == k - inside
        expected = np.delete(top, np.argmin(np.abs(top - standing))) if inside else top
        np.testing.assert_allclose(others, expected, atol=3e-4)


async def test_float16_rounds_the_top_k_alone(model_server: str, session: aiohttp.ClientSession) -> None:
    asked = [
        question(40, 8, dtype="float32", vocabulary=300),
        question(40, 8, dtype="float16", vocabulary=300),
    ]
    exact, rounded = [await ROUTE.score(session, peer(model_server), one, CAN) for one in asked]
    np.testing.assert_array_equal(rounded.ids, exact.ids)
    np.testing.assert_array_equal(rounded.logprobs[:, 0], exact.logprobs[:, 0])
    np.testing.assert_allclose(rounded.logprobs, exact.logprobs, rtol=5e-4)


@pytest.mark.parametrize(
    ("asked", "model", "said"),
    [
        (question(5, MAX_K + 1), "tiny", f"--max-logprobs {MAX_K + 1}"),
        (question(512, 1), "tiny", "--max-model-len"),
        (Question(np.array([1, 300], np.int32), 1), "tiny", "another tokenizer"),
        (question(5, 1), "nobody", "model_name"),
    ],
    ids=["top_k", "too_long", "vocabulary", "model"],
)
async def test_refusal_is_final_and_names_its_remedy(
    model_server: str, session: aiohttp.ClientSession, asked: Question, model: str, said: str
) -> None:
    with pytest.raises(TeacherError) as caught:
        await ROUTE.score(session, peer(model_server, model), asked, CAN)
    assert caught.value.code == "teacher.refused"
    assert said in (caught.value.fix or "")


async def test_named_ids_outside_the_vocabulary_are_refused(
    model_server: str, session: aiohttp.ClientSession
) -> None:
    asked = Question(np.array([1, 2], np.int32), 1, 1, np.array([[300]], np.int32))
    with pytest.raises(TeacherError, match="out of vocabulary"):
        await ROUTE.score(session, peer(model_server), asked, CAN)


async def test_probe_refuses_a_name_that_the_server_does_not_serve(
    model_server: str, session: aiohttp.ClientSession
) -> None:
    with pytest.raises(TeacherError) as caught:
        await ROUTE.probe(session, peer(model_server, "some/other model?"))
    assert "some/other model?" in str(caught.value)
    assert "model_name" in (caught.value.fix or "")


@pytest.mark.parametrize(
    "reply",
    [
        Reply({"detail": "Not Found"}, 404),
        Reply({"detail": "Method Not Allowed"}, 405),
        Reply({"error": "no such path here"}, 403),
        Reply(b"<html>Welcome</html>"),
        Reply({}),
        Reply({**FACTS, "protocol": 2}),
        Reply({**FACTS, "max_k": "many"}),
    ],
)
async def test_other_servers_do_not_speak_it(
    server: ScriptedServer, session: aiohttp.ClientSession, reply: Reply
) -> None:
    server.then(CAPABILITIES_PATH, reply)
    assert await ROUTE.probe(session, peer(server.url)) is None


async def test_facts_become_capabilities(server: ScriptedServer, session: aiohttp.ClientSession) -> None:
    server.then(CAPABILITIES_PATH, Reply({**FACTS, "something": "new"}))
    expected = Capabilities(
        "plugin", "vllm 0.32.0", "big", 4096, 128, extra_ids=True, start=True, binary=True
    )
    assert await ROUTE.probe(session, peer(server.url, "big")) == expected


async def test_wrong_key_is_told_and_not_taken_for_another_server(
    server: ScriptedServer, session: aiohttp.ClientSession
) -> None:
    server.then(CAPABILITIES_PATH, Reply({"error": "Unauthorized"}, 401))
    with pytest.raises(TeacherError) as caught:
        await ROUTE.probe(session, peer(server.url, api_key="topsecret"))
    assert "api_key" in (caught.value.fix or "")
    assert "topsecret" not in str(caught.value)


@pytest.mark.parametrize(("status", "kind"), [(500, "broken"), (503, "busy"), (429, "busy")])
async def test_failure_of_the_server_may_pass(
    server: ScriptedServer, session: aiohttp.ClientSession, status: int, kind: str
) -> None:
    server.then(CAPABILITIES_PATH, Reply(b"", status))
    server.then(SCORES_PATH, Reply(b"", status))
    with pytest.raises(Passing) as probing:
        await ROUTE.probe(session, peer(server.url))
    assert probing.value.kind == kind


async def scored_by(respond: Any, asked: Question, session: aiohttp.ClientSession) -> TeacherScores:
    """What becomes of the answer that ``respond`` gives to ``asked``."""

    async def handle(request: web.Request) -> web.StreamResponse:
        (got,), _ = decode_request(await request.read())
        return web.Response(body=respond(got))

    app = web.Application()
    app.router.add_post(SCORES_PATH, handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return await ROUTE.score(session, peer(f"http://127.0.0.1:{runner.addresses[0][1]}"), asked, CAN)
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("off_loop_bytes", [0, 1 << 20])
async def test_right_answer_is_taken_on_the_loop_and_off_it(
    session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch, off_loop_bytes: int
) -> None:
    monkeypatch.setattr(plugin, "OFF_LOOP_BYTES", off_loop_bytes)
    asked = question(12, 3, 2, extra=2)
    scores = await scored_by(lambda got: encode_answer([answer(got)], got.dtype), asked, session)
    right = answer(asked)
    np.testing.assert_array_equal(scores.ids, right.ids)
    np.testing.assert_array_equal(scores.logprobs, right.logprobs)
    np.testing.assert_array_equal(scores.extra_logprobs, right.extra_logprobs)


@pytest.mark.parametrize("off_loop_bytes", [0, 1 << 20])
async def test_answer_to_another_question_is_refused_with_the_server_named(
    session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch, off_loop_bytes: int
) -> None:
    monkeypatch.setattr(plugin, "OFF_LOOP_BYTES", off_loop_bytes)
    other = question(12, 3, 2, seed=9)
    with pytest.raises(TeacherError) as caught:
        await scored_by(lambda _: encode_answer([answer(other)], "float32"), question(12, 3, 2), session)
    assert caught.value.code == "teacher.bad_reply"
    assert (caught.value.where or "").startswith("http://127.0.0.1:")


async def test_answer_longer_than_any_right_one_is_not_read_to_its_end(
    session: aiohttp.ClientSession,
) -> None:
    with pytest.raises(TeacherError, match="longer"):
        await scored_by(lambda _: bytes(1 << 20), question(12, 3, 2), session)
