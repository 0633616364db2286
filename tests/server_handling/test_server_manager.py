"""ServerManager over scripted servers: choice, bounds, failover, versions, scoring."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import numpy as np
import pytest

from atroposlib.config.server import APIServerConfig
from atroposlib.envs.server_handling.server_manager import ServerManager
from atroposlib.errors import ConfigError, StudentError, TeacherUnreachable, UsageError
from tests.support.fake_vllm import sample_body, vllm_answer
from tests.support.scripted_server import Reply, Request, ScriptedServer, scripted_server
from tests.support.vllm_render import fake_logprobs

PROMPT = [5, 6, 7]
PATH = "/v1/completions"


@asynccontextmanager
async def pool(
    count: int = 1, *, patience_s: float = 20, **fields: Any
) -> AsyncIterator[tuple[ServerManager, list[ScriptedServer]]]:
    """A manager over ``count`` healthy scripted servers; ``fields`` go into every config."""
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(scripted_server()) for _ in range(count)]
        for server in servers:
            server.answer = vllm_answer
        configs = [
            APIServerConfig(**{"base_url": f"{one.url}/v1", "timeout": 20, **fields}) for one in servers
        ]
        manager = await stack.enter_async_context(ServerManager(configs, patience_s=patience_s))
        yield manager, servers


async def test_atroposs_tuple_holds_prompt_ids_sampled_ids_logprobs_and_reasons() -> None:
    async with pool() as (manager, _):
        result = await manager.tokens_and_logprobs_completion(input_ids=PROMPT, prompt="shown only", n=2)
    assert result == (
        PROMPT,
        [[18, 41, 42], [19, 41, 42]],
        [[-0.5, -1.0, -0.25], [-1.5, -1.0, -0.25]],
        ["stop", "stop"],
    )


async def test_a_bare_config_reaches_its_own_base_url() -> None:
    async with scripted_server() as server:
        server.answer = vllm_answer
        async with ServerManager(APIServerConfig(base_url=server.url, timeout=20)) as manager:
            await manager.sample(PROMPT)
        assert len(server.requests) == 1


async def test_requests_spread_over_the_least_loaded_servers() -> None:
    async with pool(3) as (manager, servers):
        for server in servers:
            server.answer = lambda request: Reply(sample_body(request), action="hang")
        asked = [asyncio.create_task(manager.sample(PROMPT)) for _ in range(9)]
        for server in servers:
            await server.until(lambda server=server: server.in_flight == 3)  # type: ignore[misc]
            server.released.set()
        await asyncio.gather(*asked)


async def test_train_and_eval_requests_are_bounded_apart() -> None:
    async with pool(num_max_requests_at_once=2, num_requests_for_eval=1) as (manager, [server]):
        server.answer = lambda request: Reply(sample_body(request), action="hang")
        train = [asyncio.create_task(manager.sample(PROMPT)) for _ in range(5)]
        await server.until(lambda: server.in_flight == 2)
        evaluation = [asyncio.create_task(manager.sample(PROMPT, split="eval")) for _ in range(5)]
        await server.until(lambda: server.in_flight == 3)
        server.released.set()
        await asyncio.gather(*train, *evaluation)
        assert server.most_in_flight == 3
        assert all("split" not in request.body for request in server.requests)


async def test_a_cancelled_waiter_gives_its_claim_back() -> None:
    async with pool(num_max_requests_at_once=1) as (manager, [server]):
        server.answer = lambda request: Reply(sample_body(request), action="hang")
        held = asyncio.create_task(manager.sample(PROMPT))
        await server.until(lambda: server.in_flight == 1)
        waiting = asyncio.create_task(manager.sample(PROMPT))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert manager.servers[0].slots["train"].load == 1.0
        server.released.set()
        await held
        assert manager.servers[0].slots["train"].load == 0.0


async def test_n_is_sent_as_it_is() -> None:
    async with pool() as (manager, [server]):
        drawn = await manager.sample(PROMPT, n=20)
    assert len(drawn.token_ids) == 20
    assert [request.body["n"] for request in server.requests] == [20]


async def test_a_server_that_ignores_n_gets_single_requests_with_their_own_seeds() -> None:
    async with pool(n_kwarg_is_ignored=True) as (manager, [server]):
        drawn = await manager.sample(PROMPT, n=3, seed=7)
        text = await manager.completion(prompt=PROMPT, n=3)
    assert len(drawn.token_ids) == len(drawn.logprobs) == len(drawn.texts) == 3
    assert all("n" not in request.body for request in server.requests)
    assert sorted(request.body["seed"] for request in server.requests[:3]) == [7, 8, 9]
    assert [choice.index for choice in text.choices] == [0, 1, 2]


async def test_a_sample_broken_off_is_drawn_again_whole() -> None:
    def abort_once(request: Request) -> Reply:
        body = sample_body(request)
        if len(server.requests) == 1:
            body["choices"][1].update(
                finish_reason="abort", token_ids=[1], logprobs={"token_logprobs": [-1.0]}
            )
        return Reply(body)

    async with pool() as (manager, [server]):
        server.answer = abort_once
        drawn = await manager.sample(PROMPT, n=2)
        assert manager.servers[0].server_healthy
    assert drawn.finish_reasons == ["stop", "stop"]
    assert [request.body["n"] for request in server.requests] == [2, 2]


async def test_a_dead_server_is_skipped_while_another_lives() -> None:
    async with pool(2) as (manager, [first, second]):
        first.answer = lambda _: Reply(b"", 503)
        for _ in range(6):
            await manager.sample(PROMPT)
        assert len(first.asked(PATH)) == 1
        assert len(second.asked(PATH)) == 6
        assert not manager.servers[0].server_healthy


async def test_a_server_is_used_again_once_its_health_is_back() -> None:
    async with pool(2) as (manager, [first, second]):
        first.then(PATH, Reply(b"", 503))
        await manager.sample(PROMPT)
        assert len(first.asked(PATH)) == len(second.asked(PATH)) == 1
        second.answer = lambda _: Reply(b"", 503)
        await manager.sample(PROMPT)
        assert len(first.asked(PATH)) == 2


async def test_a_request_outlives_the_restart_of_its_only_server(unused_tcp_port: int) -> None:
    config = APIServerConfig(base_url=f"http://127.0.0.1:{unused_tcp_port}", timeout=20)
    async with ServerManager(config) as manager:
        async with scripted_server(unused_tcp_port) as server:
            server.then(PATH, Reply(action="reset"))
            server.answer = lambda _: Reply(b"", 503)
            asked = asyncio.create_task(manager.sample(PROMPT))
            await server.until(lambda: bool(server.asked("/health")))
        async with scripted_server(unused_tcp_port) as server:
            server.answer = vllm_answer
            assert (await asked).finish_reasons == ["stop"]


async def test_all_servers_dead_is_student_unreachable_when_patience_ends(unused_tcp_port: int) -> None:
    config = APIServerConfig(base_url=f"http://127.0.0.1:{unused_tcp_port}/v1", timeout=20)
    async with ServerManager([config, config], patience_s=0.3) as manager:
        with pytest.raises(StudentError, match=str(unused_tcp_port)) as caught:
            await manager.sample(PROMPT)
    assert caught.value.code == "student.unreachable"


async def test_a_dead_teacher_pool_is_teacher_unreachable(unused_tcp_port: int) -> None:
    config = APIServerConfig(base_url=f"http://127.0.0.1:{unused_tcp_port}", timeout=20)
    async with ServerManager([config], patience_s=0.3) as manager:
        with pytest.raises(TeacherUnreachable) as caught:
            await manager.get_logprobs(input_ids=PROMPT, top_k=1)
    assert caught.value.exit_code == 3


async def test_a_refusal_leaves_the_server_healthy() -> None:
    async with pool() as (manager, [server]):
        server.then(PATH, Reply({"error": {"message": "no", "param": None}}, 400))
        with pytest.raises(StudentError, match="no") as caught:
            await manager.sample(PROMPT)
        assert caught.value.code == "student.refused"
        assert manager.servers[0].server_healthy
        assert manager.servers[0].counts == {"failed": 1}


async def test_get_logprobs_answers_atroposs_lists() -> None:
    async with pool() as (manager, _):
        payload = await manager.get_logprobs(input_ids=PROMPT, top_k=2, max_tokens=1, split="eval")
    truth = fake_logprobs(PROMPT)
    assert payload["prompt_tokens"] == PROMPT
    ids, logprobs = payload["prompt_topk_token_ids"], payload["prompt_topk_logprobs"]
    assert (ids[0], logprobs[0]) == ([-1] * 3, [-9999.0] * 3)
    for position in (1, 2):
        assert ids[position][0] == PROMPT[position]
        for token, value in zip(ids[position], logprobs[position], strict=True):
            assert np.float32(value) == (truth[position, token] if token >= 0 else np.float32(-9999.0))


async def test_get_logprobs_of_text_uses_the_servers_own_ids() -> None:
    async with pool() as (manager, [server]):
        payload = await manager.get_logprobs(prompt="!#%", top_k=0)
    assert payload["prompt_tokens"] == [33, 35, 37]
    assert server.asked(PATH)[-1].body["prompt"] == [33, 35, 37]


async def test_a_request_without_a_prompt_is_refused() -> None:
    async with pool() as (manager, _):
        with pytest.raises(UsageError, match="input_ids or prompt"):
            await manager.get_logprobs(top_k=1)


def _version(value: str) -> Callable[[Request], Reply]:
    return lambda _: Reply({"weight_version": value})


@pytest.mark.parametrize(
    ("versions", "wanted"),
    [
        (["default"], 0),
        (["step-7"], 7),
        (["step-7", "step-5"], 5),
        (["step-7", "default"], 0),
        (["step-7", "nightly"], None),
        (["step-"], None),
        (["step--1"], None),
    ],
)
async def test_the_policy_version_is_the_oldest_step(versions: list[str], wanted: int | None) -> None:
    async with pool(len(versions)) as (manager, servers):
        for server, version in zip(servers, versions, strict=True):
            server.answer = _version(version)
        assert await manager.policy_version() == wanted


@pytest.mark.parametrize("status", [404, 405])
async def test_a_server_without_weight_info_has_no_version_and_is_asked_once(status: int) -> None:
    async with pool() as (manager, [server]):
        server.answer = lambda _: Reply({"detail": "Not Found"}, status)
        assert [await manager.policy_version() for _ in range(3)] == [None] * 3
        assert len(server.requests) == 1


async def test_the_version_of_a_dead_server_does_not_count() -> None:
    async with pool(2) as (manager, [first, second]):
        first.answer = lambda _: Reply(b"", 503)
        second.answer = _version("step-3")
        assert await manager.policy_version() == 3


async def test_a_server_that_told_its_version_is_waited_for() -> None:
    async with pool() as (manager, [server]):
        server.answer = _version("step-3")
        assert await manager.policy_version() == 3
        answers = iter([Reply(b"", 503), _version("step-4")(None)])
        server.answer = lambda _: next(answers)
        assert await manager.policy_version() == 4


async def test_the_version_of_servers_that_never_answered_is_an_error_at_once(unused_tcp_port: int) -> None:
    config = APIServerConfig(base_url=f"http://127.0.0.1:{unused_tcp_port}", timeout=20)
    async with ServerManager([config], patience_s=3600) as manager:
        with pytest.raises(StudentError) as caught:
            await manager.policy_version()
    assert caught.value.code == "student.unreachable"


async def test_testing_has_no_servers_and_refuses_requests() -> None:
    async with ServerManager([APIServerConfig(base_url="http://a")], testing=True) as manager:
        assert manager.servers == []
        assert await manager.policy_version() is None
        with pytest.raises(ConfigError, match="no model server"):
            await manager.sample(PROMPT)


async def test_when_one_of_many_single_requests_fails_the_others_end() -> None:
    async with pool(n_kwarg_is_ignored=True) as (manager, [server]):
        server.then(PATH, Reply(action="hang"), Reply({"error": "no"}, 400))
        with pytest.raises(StudentError):
            await manager.sample(PROMPT, n=2)
        assert manager.servers[0].slots["train"].load == 0.0


async def test_metrics_are_of_every_server() -> None:
    async with pool(2) as (manager, [first, _]):
        first.then(PATH, Reply(b"", 503))
        await asyncio.gather(*(manager.sample(PROMPT) for _ in range(4)))
        metrics = manager.metrics()
    assert metrics["server_0/passing"] == 1
    assert metrics["server_0/ok"] + metrics["server_1/ok"] == 4
    assert 0 <= metrics["server_1/seconds_mean"] <= metrics["server_1/seconds_max"]
