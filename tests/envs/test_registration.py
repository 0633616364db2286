"""Registering with the trajectory API and waiting for what is not there yet."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web

from atroposlib.config.env import BaseEnvConfig
from atroposlib.envs import registration
from atroposlib.envs.api_client import TrajectoryApi
from atroposlib.envs.registration import register, status_after_outage, wait_for_wandb_project
from atroposlib.errors import ApiError
from tests.envs.fakes import FakeApi, until

Make = Callable[..., Any]

CONFIG = BaseEnvConfig(group_size=3, max_token_length=77, inference_weight=2.0, min_batch_allocation=0.25)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(registration, "LONGEST_PAUSE_SECONDS", 0.002)


@pytest.fixture
async def client(api: FakeApi) -> AsyncIterator[TrajectoryApi]:
    opened = TrajectoryApi(api.url + "/")
    yield opened
    await opened.close()


async def test_registration_says_what_the_environment_is(api: FakeApi, client: TrajectoryApi) -> None:
    answer = await register(client, CONFIG, "maths", "me")
    assert answer["wandb_name"] == "maths_0"
    assert api.registered == [
        {
            "max_token_length": 77,
            "desired_name": "maths",
            "weight": 2.0,
            "group_size": 3,
            "min_batch_allocation": 0.25,
            "identity": "me",
        }
    ]


@pytest.mark.parametrize("is_atropos", [False, True])
async def test_registration_finds_out_whether_frames_are_taken(
    api: FakeApi, client: TrajectoryApi, is_atropos: bool
) -> None:
    api.is_atropos = is_atropos
    await register(client, CONFIG, "maths", "me")
    assert client.takes_frames is not is_atropos


async def test_trainer_is_waited_for_and_the_log_says_so_once(
    api: FakeApi, client: TrajectoryApi, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    api.not_started = 5
    await register(client, CONFIG, "maths", "me")
    assert api.calls["register-env"] == 6
    waits = [record.message for record in caplog.records if "wait for trainer to start" in record.message]
    assert len(waits) == 1


async def test_api_that_is_not_up_yet_is_waited_for(
    api: FakeApi, client: TrajectoryApi, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await api.stop()
    pending = asyncio.create_task(register(client, CONFIG, "maths", "me"))
    await until(lambda: bool(caplog.records))
    await api.start()
    assert (await pending)["env_id"] == 0
    assert "cannot be reached" in caplog.records[0].message


async def test_refused_registration_ends_the_waiting() -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.json_response({"detail": [{"loc": ["body", "desired_name"], "msg": "no"}]}, status=422)

    app = web.Application()
    app.add_routes([web.post("/register-env", refuse)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    client = TrajectoryApi(f"http://127.0.0.1:{runner.addresses[0][1]}")
    with pytest.raises(ApiError, match="desired_name") as caught:
        await register(client, CONFIG, "maths", "me")
    assert caught.value.code == "api.refused"
    await client.close()
    await runner.cleanup()


async def test_wandb_project_is_the_trainers(api: FakeApi, client: TrajectoryApi) -> None:
    assert await wait_for_wandb_project(client) == ("group", "project")


async def test_trainer_without_a_wandb_project_is_not_waited_for(api: FakeApi, client: TrajectoryApi) -> None:
    api.project = None
    assert await wait_for_wandb_project(client) == (None, None)


async def test_missing_trainer_is_told_while_waiting_for_its_wandb_project(
    api: FakeApi, client: TrajectoryApi, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    api.project, api.batch_size = None, -1
    pending = asyncio.create_task(wait_for_wandb_project(client))
    await until(lambda: bool(caplog.records))
    assert "no trainer that names a wandb project" in caplog.records[0].message
    api.project = "late"
    assert await pending == ("group", "late")


async def test_outage_without_a_restart_keeps_the_registration(api: FakeApi, client: TrajectoryApi) -> None:
    answer = await register(client, CONFIG, "maths", "me")
    await api.stop()
    pending = asyncio.create_task(status_after_outage(client, answer["env_id"], answer["wandb_name"]))
    await asyncio.sleep(0)
    await api.start()
    status = await pending
    assert status is not None
    assert status["current_step"] == 0


async def test_restarted_api_does_not_know_the_environment(api: FakeApi, client: TrajectoryApi) -> None:
    answer = await register(client, CONFIG, "maths", "me")
    api.forgotten = True
    assert await status_after_outage(client, answer["env_id"], answer["wandb_name"]) is None


async def test_id_that_now_is_another_environments_is_not_ours(api: FakeApi, client: TrajectoryApi) -> None:
    await register(client, CONFIG, "maths", "me")
    assert await status_after_outage(client, 0, "poetry_0") is None


async def test_identity_is_kept_over_registrations_of_one_process(api: FakeApi, make_env: Make) -> None:
    env = make_env(rollout_server_url=api.url, total_steps=40, max_num_workers=4)
    run = asyncio.create_task(env.env_manager())
    await until(lambda: env.curr_step >= 3)
    api.step_offset -= 3
    api.forgotten = True
    await run
    first, second = (body["identity"] for body in api.registered)
    assert first == second
    other = make_env(rollout_server_url=api.url)
    assert other.runtime.identity != first


async def test_identity_of_the_settings_is_told(api: FakeApi, make_env: Make) -> None:
    await make_env(rollout_server_url=api.url, identity="maths on node 3").env_manager()
    assert api.registered[0]["identity"] == "maths on node 3"
