"""The trainer's client beside an Atropos 0.4.0 server, which knows neither leases nor frames."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator

import pytest

from atroposlib.errors import ApiError
from atroposlib.trainer.client import TrainerClient
from tests.trainer.support import NOT_FOUND, Reply, Script, ids_of, make_groups, scripted_http

NOT_REGISTERED = {"status": "error", "message": "Trainer not registered. Call /register first.", "batch": []}
RUN = {"batch_size": 8, "wandb_group": "", "starting_step": 0}


@pytest.fixture
def script() -> Iterator[Script]:
    with scripted_http() as script:
        script.always["/v1/status"] = NOT_FOUND
        script.always["/batch"] = Reply({"batch": None})
        yield script


@pytest.fixture
def client(script: Script) -> Iterator[TrainerClient]:
    client = TrainerClient(script.url, give_up_after_s=20)
    yield client
    client.close()


@pytest.mark.parametrize("zipped", [False, True])
def test_json_batch_is_read_as_arrays(script: Script, client: TrainerClient, zipped: bool) -> None:
    groups = make_groups(2)
    reply = Reply({"batch": groups})
    if zipped:
        reply = Reply(gzip.compress(json.dumps(reply.body).encode()), headers={"Content-Encoding": "gzip"})
    script.then("/batch", reply)
    batch = client.lease()
    assert batch is not None
    assert (batch.batch_id, batch.attempt, batch.expires_at) == (None, 1, math.inf)
    assert ids_of(batch.groups) == ["group-0-0", "group-0-1"]
    assert [row.tolist() for row in batch.groups[1].masks] == groups[1]["masks"]


@pytest.mark.parametrize("answer", [{"batch": None}, {"batch": []}])
def test_no_batch_yet_is_none(script: Script, client: TrainerClient, answer: object) -> None:
    script.then("/batch", Reply(answer))
    assert client.lease(wait_s=0) is None


def test_it_is_polled_while_the_caller_waits(script: Script, client: TrainerClient) -> None:
    script.then("/batch", Reply({"batch": None}), Reply({"batch": make_groups(1)}))
    assert client.lease(wait_s=20) is not None


def test_registration_is_atropos_s_and_tells_the_step_of_the_server(
    script: Script, client: TrainerClient
) -> None:
    script.then("/register", Reply({"uuid": 2**127}))
    script.then("/status", Reply({"current_step": 4, "queue_size": 0}))
    assert client.register(RUN, "me", "b7").step == 4
    assert script.bodies["/register"] == [RUN]


def test_ack_nack_and_commit_ask_nothing(script: Script, client: TrainerClient) -> None:
    script.then("/batch", Reply({"batch": make_groups(1)}))
    batch = client.lease()
    assert batch is not None
    asked = len(script.asked)
    assert client.ack(batch) == 1
    client.nack(batch, "why")
    assert client.commit("b") == 0
    client.close()
    assert len(script.asked) == asked


def test_a_server_that_forgot_the_trainer_is_told_the_batches_it_trained(
    script: Script, client: TrainerClient
) -> None:
    client.register(RUN, "me")
    for _ in range(5):
        script.then("/batch", Reply({"batch": make_groups(1)}))
        batch = client.lease()
        assert batch is not None
        client.ack(batch)
    script.then("/batch", *[Reply(NOT_REGISTERED)] * 2)
    client.lease()
    client.lease()
    assert [body["starting_step"] for body in script.bodies["/register"]] == [0, 5, 5]


def test_a_trainer_that_never_registered_is_told(script: Script, client: TrainerClient) -> None:
    script.then("/batch", Reply(NOT_REGISTERED))
    with pytest.raises(ApiError, match="not registered") as caught:
        client.lease()
    assert caught.value.code == "api.not_registered"


def test_there_is_no_status(client: TrainerClient) -> None:
    assert client.status() is None
