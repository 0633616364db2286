"""Defects of 0.4.0 that ours does not have, and that no other test names by what they break."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
from typing import Any

import requests

from atroposlib.api.tokens import Token
from tests.api.support import ApiClient, env_registration, group, serving


def large_group(**changes: Any) -> dict[str, Any]:
    """A group that is worked on in another process."""
    return group(4, messages=[[{"role": "user", "content": "x" * 100_000}]] * 4, **changes)


def post_and_vanish(api: ApiClient, body: bytes) -> None:
    """Post a group and close the connection before the answer comes, as a client does that timed out."""
    host, port = api.url.removeprefix("http://").split(":")
    head = b"POST /scored_data HTTP/1.1\r\nHost: api\r\nContent-Type: application/json\r\n"
    with socket.create_connection((host, int(port))) as client:
        client.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)


def test_9_a_retry_after_a_lost_answer_is_stored_once(api: ApiClient) -> None:
    body = json.dumps(large_group()).encode()
    post_and_vanish(api, body)
    while api.counts()["received"] == 0:
        pass
    assert api.raw("POST", "/scored_data", body).json() == {"status": "received"}
    counts = api.counts()
    assert (counts["received"], counts["duplicates"]) == (1, 1)


def test_9_an_equal_group_after_an_answer_is_another_group(api: ApiClient) -> None:
    for _ in range(3):
        api.post("/scored_data", group())
    assert api.counts()["received"] == 3


def test_18_an_environment_that_restarts_gets_its_place_again(api: ApiClient) -> None:
    api.start()
    first = api.add_env(desired_name="math")
    other = api.add_env(desired_name="math")
    api.clock.now += 61.0
    api.get("/status-env", {"env_id": other})
    assert api.add_env(desired_name="math") == first
    assert api.get("/status-env", {"env_id": other})["env_weight"] == 0.5


def test_18_an_identity_keeps_its_environment(api: ApiClient) -> None:
    api.start()
    ids = [api.add_env(identity=identity) for identity in ("a", "b", "a")]
    assert ids == [0, 1, 0]
    answer = api.post("/v1/envs", env_registration(identity="b"))
    assert (answer["env_id"], answer["wandb_name"]) == (1, "env_1")
    assert api.post("/v1/envs/1/heartbeat", {})["env_weight"] == 0.5
    assert api.raw("POST", "/v1/envs/7/heartbeat").json()["code"] == "api.unknown_env"


def test_an_environment_before_its_trainer_is_told_so_on_v1(api: ApiClient) -> None:
    answer = api.raw("POST", "/v1/envs", json.dumps(env_registration()).encode())
    assert (answer.status_code, answer.json()["code"]) == (409, "api.not_registered")


def test_20_what_teachers_say_rides_along(api: ApiClient) -> None:
    api.start(batch_size=4)
    teacher = {"name": "big", "note": {"anything": [1, "x"]}, "tokens": [[5, 6]] * 4}
    api.post("/scored_data", group(teachers=[teacher], policy_version=7))
    (pulled,) = api.get("/batch")["batch"]
    assert (pulled["teachers"], pulled["policy_version"]) == ([teacher], 7)


def test_21_posting_for_an_environment_needs_its_token() -> None:
    secret = "rollouts"
    token = Token(name="x", role="env", sha256=hashlib.sha256(secret.encode()).hexdigest())
    body = json.dumps(group(env_id=0)).encode()
    with serving(tokens=[token]) as api:
        assert api.raw("POST", "/scored_data", body).status_code == 401
        assert api.raw("POST", "/scored_data", body, Authorization=f"Bearer {secret}").status_code == 200


def test_23_others_are_served_while_large_bodies_are_worked_on(api: ApiClient) -> None:
    api.start(batch_size=16)
    bodies = [json.dumps(large_group(token=token)).encode() for token in range(4)]
    done = threading.Event()

    def work() -> None:
        for body in bodies:
            requests.post(
                f"{api.url}/scored_data", body, headers={"Content-Type": "application/json"}, timeout=60
            )
        assert len(requests.get(f"{api.url}/batch", timeout=60).json()["batch"]) == 4
        done.set()

    worker = threading.Thread(target=work)
    worker.start()
    while not done.is_set() and worker.is_alive():
        assert set(api.get("/status")) == {"current_step", "queue_size"}
    worker.join()
    assert done.is_set()
