"""The best route is found by asking: what a server is, what it can, and why none works."""

from __future__ import annotations

import aiohttp
import pytest

from atroposlib.errors import TeacherError, TeacherUnreachable
from atroposlib.teacher.persistence import Passing
from atroposlib.teacher.probing import ROUTES, find_route
from atroposlib.teacher.transport import TEACHER, Peer
from tests.support import fake_servers
from tests.support.fake_servers import Answer
from tests.support.recorded import recordings
from tests.support.scripted_server import Reply, Request, ScriptedServer


def peer(server: ScriptedServer, model: str | None = "fake", timeout_s: float = 20.0) -> Peer:
    return Peer(TEACHER, server.url, model, timeout_s, "sk-secret")


def test_the_routes_stand_in_the_order_of_their_cost() -> None:
    assert [route.name for route in ROUTES] == ["plugin", "sglang", "generate", "completions", "echo"]


@pytest.mark.parametrize(
    ("answer", "name", "told"),
    [
        (fake_servers.stock_vllm, "completions", ("vllm 0.32.0", 1024, False, False)),
        (fake_servers.scale_out_vllm, "generate", ("vllm 0.32.0", 1024, False, False)),
        (fake_servers.sglang, "sglang", ("sglang 0.5.9", 2048, True, True)),
        (fake_servers.echo_server, "echo", ("", None, False, False)),
    ],
)
@pytest.mark.parametrize("k", [0, 4])
async def test_each_kind_of_server_is_asked_its_best_way(
    server: ScriptedServer,
    session: aiohttp.ClientSession,
    answer: Answer,
    name: str,
    told: tuple[object, ...],
    k: int,
) -> None:
    server.answer = answer
    route, can = await find_route(session, peer(server), k)
    assert route.name == can.route == name
    assert (can.server, can.max_model_len, can.extra_ids, can.start) == told
    assert can.model == "fake"


async def test_the_model_that_is_served_is_named_where_the_config_names_none(
    server: ScriptedServer, session: aiohttp.ClientSession
) -> None:
    server.answer = fake_servers.stock_vllm
    _, can = await find_route(session, peer(server, model=None), 1)
    assert can.model == "fake"


async def test_generate_that_decodes_texts_is_no_better_than_completions(
    server: ScriptedServer, session: aiohttp.ClientSession
) -> None:
    def answer(request: Request) -> Reply:
        reply = fake_servers.scale_out_vllm(request)
        if request.path == "/inference/v1/generate" and reply.status == 200:
            for row in reply.body["prompt_logprobs"][1:]:
                for member in row.values():
                    member["decoded_token"] = "x"
        return reply

    server.answer = answer
    route, _ = await find_route(session, peer(server), 1)
    assert route.name == "completions"


async def test_a_route_whose_answers_are_wrong_is_passed_over(
    server: ScriptedServer, session: aiohttp.ClientSession
) -> None:
    def answer(request: Request) -> Reply:
        reply = fake_servers.scale_out_vllm(request)
        # More than two tokens: the short question of the probe is answered rightly.
        if request.path == "/inference/v1/generate" and len(request.body["token_ids"]) > 2:
            reply.body["prompt_logprobs"].pop()
        return reply

    server.answer = answer
    route, _ = await find_route(session, peer(server), 1)
    assert route.name == "completions"


async def test_too_large_a_k_is_told_with_the_limit_and_the_fix(
    server: ScriptedServer, session: aiohttp.ClientSession
) -> None:
    recorded = recordings("refusals")["prompt_logprobs_too_many"]

    def answer(request: Request) -> Reply:
        if request.path == "/v1/completions":
            return Reply(recorded["body"], recorded["status"])
        return fake_servers.stock_vllm(request)

    server.answer = answer
    with pytest.raises(TeacherError) as caught:
        await find_route(session, peer(server), 21)
    assert caught.value.code == "teacher.no_route"
    assert "max allowed: 20" in str(caught.value)
    assert "--max-logprobs 21" in str(caught.value)
    assert "not offered: plugin, sglang, generate" in str(caught.value)


async def test_a_server_that_answers_logits_is_not_used(
    server: ScriptedServer, session: aiohttp.ClientSession
) -> None:
    def answer(request: Request) -> Reply:
        reply = fake_servers.stock_vllm(request)
        if request.path == "/v1/completions" and "prompt_logprobs" in request.body:
            for row in reply.body["choices"][0]["prompt_logprobs"][1:]:
                for member in row.values():
                    member["logprob"] += 9.0
        return reply

    server.answer = answer
    with pytest.raises(TeacherError, match=r"logprobs-mode|above 0") as caught:
        await find_route(session, peer(server), 4)
    assert caught.value.code == "teacher.no_route"


async def test_another_model_than_the_configured_one_is_refused_before_any_route_is_tried(
    server: ScriptedServer, session: aiohttp.ClientSession
) -> None:
    server.answer = fake_servers.stock_vllm
    with pytest.raises(TeacherError, match="another model") as caught:
        await find_route(session, peer(server, model="other"), 1)
    assert caught.value.code == "teacher.refused"
    assert {request.path for request in server.requests} == {"/v1/models"}


async def test_a_wrong_key_is_refused_and_not_told(
    server: ScriptedServer, session: aiohttp.ClientSession
) -> None:
    server.answer = lambda _: Reply({"error": "Unauthorized: sk-secret"}, 401)
    with pytest.raises(TeacherError, match="api_key") as caught:
        await find_route(session, peer(server), 1)
    assert caught.value.code == "teacher.refused"
    assert "sk-secret" not in str(caught.value)


async def test_what_is_no_teacher_is_told_what_each_route_found(
    server: ScriptedServer, session: aiohttp.ClientSession
) -> None:
    with pytest.raises(TeacherError, match=r"completions: .*HTTP 404.*echo: .*HTTP 404") as caught:
        await find_route(session, peer(server), 1)
    assert caught.value.code == "teacher.no_route"


@pytest.mark.parametrize("status", [500, 503])
async def test_a_failure_that_may_pass_passes_through(
    server: ScriptedServer, session: aiohttp.ClientSession, status: int
) -> None:
    server.answer = lambda _: Reply(b"", status)
    with pytest.raises(Passing):
        await find_route(session, peer(server), 1)


async def test_a_paused_server_is_unreachable_and_not_without_a_route(
    server: ScriptedServer, session: aiohttp.ClientSession
) -> None:
    def answer(request: Request) -> Reply:
        if request.path == "/v1/completions":
            return Reply(action="hang")
        return fake_servers.stock_vllm(request)

    server.answer = answer
    with pytest.raises(TeacherUnreachable) as caught:
        await find_route(session, peer(server, timeout_s=0.5), 1)
    assert caught.value.timed_out
