"""The exact calls of a 0.4.0 environment and of its example trainer, with the answers they read."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import aiohttp
import requests

from tests.api.support import ApiClient, env_registration, group, registration


async def call_as_environment(url: str, method: str, path: str, body: Any = None) -> Any:
    """One call of the old client: a session of its own, gzip when the body is long enough to gain by it."""
    async with aiohttp.ClientSession() as session:
        packed = gzip.compress(json.dumps(body).encode()) if method == "POST" else b""
        if method == "POST" and len(json.dumps(body)) >= 1024:
            headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
            request = session.request(method, url + path, data=packed, headers=headers)
        else:
            request = session.request(method, url + path, json=body)
        async with request as answer:
            assert answer.status == 200
            return await answer.json()


def test_an_environment_and_a_trainer_of_0_4_0_meet(api: ApiClient) -> None:
    """Registration in either order of arrival, then groups, status and batches as both clients go on."""
    url = api.url

    def env(method: str, path: str, body: Any = None) -> Any:
        return asyncio.run(call_as_environment(url, method, path, body))

    assert env("GET", "/wandb_info") == {"group": None, "project": None}
    assert env("POST", "/register-env", env_registration()) == {"status": "wait for trainer to start"}

    assert requests.get(f"{url}/info", timeout=2).json() == {"batch_size": -1, "max_token_len": -1}
    uuid = requests.post(f"{url}/register", json=registration(starting_step=5), timeout=10).json()["uuid"]
    assert isinstance(uuid, int)
    assert uuid.bit_length() > 64
    assert env("GET", "/wandb_info") == {"group": "group", "project": "project"}
    assert env("POST", "/register-env", env_registration()) == {"status": "wait for trainer to start"}
    assert requests.get(f"{url}/batch", timeout=10).json() == {"batch": None}

    registered = env("POST", "/register-env", env_registration(desired_name="gsm8k"))
    assert registered == {
        "status": "success",
        "env_id": 0,
        "wandb_name": "gsm8k_0",
        "checkpoint_dir": "checkpoints",
        "starting_step": 5,
        "checkpoint_interval": 100,
        "num_steps": 1000,
    }
    assert env("GET", "/info") == {"batch_size": 8, "max_token_len": 2048}
    idle = {
        "current_step": 5,
        "queue_size": 0,
        "unallocated_fraction": 1.0,
        "self_queue_size": 0,
        "max_group_size": 1,
        "env_weight": 1.0,
    }
    assert env("GET", "/status-env", {"env_id": 0}) == idle

    long = [[{"role": "user", "content": "x" * 2000}]] * 4
    assert env("POST", "/scored_data", group(env_id=0, messages=long)) == {"status": "received"}
    assert env("GET", "/status-env", {"env_id": 0}) == idle | {
        "queue_size": 1,
        "self_queue_size": 1,
        "max_group_size": 4,
    }
    many = [group(token=5, env_id=0), group(token=6, env_id=0)]
    assert env("POST", "/scored_data_list", many) == {"status": "received", "groups_processed": 2}
    assert requests.get(f"{url}/status", timeout=2).json() == {"current_step": 5, "queue_size": 3}

    batch = requests.get(f"{url}/batch", timeout=10).json()["batch"]
    assert [member["tokens"][0][0] for member in batch] == [1, 5]
    assert requests.get(f"{url}/batch", timeout=10).json() == {"batch": None}
    assert env("GET", "/status-env", {"env_id": 0})["current_step"] == 6
    assert requests.get(f"{url}/latest_example", timeout=2).json()["tokens"][0][0] == 6
    assert env("POST", "/disconnect-env", {"env_id": 0}) == {"status": "success"}
    reset = requests.get(f"{url}/reset_data", timeout=2)
    assert (reset.status_code, reset.text) == (200, "Reset successful")


def test_the_root_says_what_answers(api: ApiClient) -> None:
    assert api.get("/") == {"message": "AtroposLib API"}


def test_a_batch_before_registration_is_an_error_text(api: ApiClient) -> None:
    assert api.get("/batch") == {
        "status": "error",
        "message": "Trainer not registered. Call /register first.",
        "batch": [],
    }


def test_status_env_takes_a_body_and_nothing_else(api: ApiClient) -> None:
    assert api.raw("GET", "/status-env?env_id=0").status_code == 422
    assert api.raw("POST", "/status-env", b'{"env_id": 0}').status_code == 405


def test_a_null_among_the_required_fields_is_refused_by_its_path(api: ApiClient) -> None:
    for path, body, name in [
        ("/register", registration(wandb_project=None), "wandb_project"),
        ("/register-env", env_registration(desired_name=None), "desired_name"),
    ]:
        answer = api.raw("POST", path, json.dumps(body).encode())
        assert answer.status_code == 422
        assert answer.json()["detail"][0]["loc"] == ["body", name]


def test_large_answers_are_compressed_on_request_only(api: ApiClient) -> None:
    api.start()
    api.post("/scored_data", group(8, messages=[[{"role": "user", "content": "x" * 5000}]]))
    packed = api.raw("GET", "/latest_example", Accept_Encoding="gzip, deflate")
    plain = api.raw("GET", "/latest_example", Accept_Encoding="identity")
    assert packed.headers["Content-Encoding"] == "gzip"
    assert "Content-Encoding" not in plain.headers
    assert packed.json() == plain.json()
    assert "Content-Encoding" not in api.raw("GET", "/info", Accept_Encoding="gzip").headers


def test_an_unknown_environment_cannot_disconnect(api: ApiClient) -> None:
    assert api.post("/disconnect-env", {"env_id": 3})["status"] == "failure"
