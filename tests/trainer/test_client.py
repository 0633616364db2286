"""The trainer's client of the API: what it asks, what it survives, and what it reports."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from atroposlib.errors import ApiError
from atroposlib.trainer.client import TrainerClient
from tests.trainer.support import Reply, Script, make_groups, scripted_http

NOT_REGISTERED = {"status": "error", "message": "Trainer not registered. Call /register first.", "batch": []}


@pytest.fixture
def script() -> Iterator[Script]:
    with scripted_http() as script:
        yield script


@pytest.fixture
def client(script: Script) -> Iterator[TrainerClient]:
    client = TrainerClient(script.url + "/", give_up_after_s=20)
    yield client
    client.close()


def test_batch_arrives_as_the_api_sent_it(script: Script, client: TrainerClient) -> None:
    groups = make_groups(2)
    script.then("/batch", Reply({"batch": groups}))
    assert client.batch() == groups


def test_gzip_answers_are_read(script: Script, client: TrainerClient) -> None:
    groups = make_groups(1)
    body = gzip.compress(json.dumps({"batch": groups}).encode())
    script.then("/batch", Reply(body, headers={"Content-Encoding": "gzip"}))
    assert client.batch() == groups


@pytest.mark.parametrize("answer", [{"batch": None}, {"batch": []}])
def test_no_batch_yet_is_none(script: Script, client: TrainerClient, answer: object) -> None:
    script.then("/batch", Reply(answer))
    assert client.batch() is None


def test_registration_is_posted_whole(script: Script, client: TrainerClient) -> None:
    script.then("/register", Reply({"uuid": 2**127}))
    client.register({"batch_size": 8, "wandb_group": ""})
    assert script.bodies["/register"] == [{"batch_size": 8, "wandb_group": ""}]


def test_an_api_that_forgot_the_trainer_is_registered_with_again(
    script: Script, client: TrainerClient
) -> None:
    client.register({"batch_size": 8})
    script.then("/batch", Reply(NOT_REGISTERED))
    assert client.batch() is None
    assert script.asked == ["POST /register", "GET /batch", "POST /register"]


def test_registering_again_tells_the_step_reached(script: Script, client: TrainerClient) -> None:
    client.register({"batch_size": 8, "starting_step": 0})
    client.step = 5
    script.then("/batch", *[Reply(NOT_REGISTERED)] * 2)
    client.batch()
    client.batch()
    assert [body["starting_step"] for body in script.bodies["/register"]] == [0, 5, 5]


def test_a_server_without_our_status_has_none(script: Script, client: TrainerClient) -> None:
    script.then("/v1/status", Reply({"detail": "Not Found"}, status=404))
    assert client.status() is None


def test_a_trainer_that_never_registered_is_told(script: Script, client: TrainerClient) -> None:
    script.then("/batch", Reply(NOT_REGISTERED))
    with pytest.raises(ApiError, match="not registered") as caught:
        client.batch()
    assert caught.value.code == "api.not_registered"


@pytest.mark.parametrize("fault", [Reply(status=503), Reply({"batch": "x" * 500}, action="cut")])
def test_passing_faults_are_asked_again(script: Script, client: TrainerClient, fault: Reply) -> None:
    groups = make_groups(1)
    script.then("/batch", fault, Reply({"batch": groups}))
    assert client.batch() == groups
    assert len(script.asked) == 2


def test_a_refusal_is_reported_at_once(script: Script, client: TrainerClient) -> None:
    script.then("/register", Reply({"detail": "batch_size must be positive"}, status=422))
    with pytest.raises(ApiError, match="batch_size must be positive") as caught:
        client.register({})
    assert caught.value.code == "api.refused"
    assert len(script.asked) == 1


@pytest.mark.parametrize("body", [b"<html>", b"[]"])
def test_an_answer_that_is_no_json_object_is_refused(
    script: Script, client: TrainerClient, body: bytes
) -> None:
    script.then("/info", Reply(body))
    with pytest.raises(ApiError, match=r"not JSON|not an object"):
        client.info()


def test_an_unreachable_api_is_reported_after_the_deadline() -> None:
    with scripted_http() as script:
        url = script.url
    client = TrainerClient(url, give_up_after_s=0.2)
    with pytest.raises(ApiError, match="no connection") as caught:
        client.info()
    client.close()
    assert caught.value.code == "api.unreachable"
    assert url in str(caught.value)


def test_stopping_ends_the_retries_long_before_the_deadline() -> None:
    with scripted_http() as script:
        url = script.url
    stop = threading.Event()
    client = TrainerClient(url, give_up_after_s=3600, stop=stop)
    timer = threading.Timer(0.2, stop.set)
    timer.start()
    with pytest.raises(ApiError):
        client.info()
    timer.join()
    client.close()


def test_client_and_run_are_importable_where_torch_is_not() -> None:
    program = (
        "import sys; sys.modules['torch'] = None; sys.modules['transformers'] = None\n"
        "import atroposlib.trainer.client, atroposlib.trainer.run, atroposlib.config.trainer"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
