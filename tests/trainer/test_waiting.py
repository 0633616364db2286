"""A wait for a batch tells its reason and ends when no environment is left."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from atroposlib.errors import RunError
from atroposlib.trainer.client import TrainerClient
from atroposlib.trainer.waiting import BatchWait
from tests.api.support import Clock
from tests.trainer.support import Reply, Script, scripted_http


@pytest.fixture
def script() -> Iterator[Script]:
    with scripted_http() as script:
        yield script


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def wait(script: Script, clock: Clock) -> Iterator[BatchWait]:
    client = TrainerClient(script.url, give_up_after_s=20)
    yield BatchWait(client, clock)
    client.close()


def status(*connected: bool, received: int = 1, why: str | None = None) -> Reply:
    envs: list[dict[str, Any]] = [{"connected": value} for value in connected]
    waiting = [{"who": "trainer", "for": "a batch", "since": 1.0, "seconds": 30.0, "why": why}] if why else []
    return Reply({"envs": envs, "groups": {"received": received}, "queue": {"groups": 1}, "waiting": waiting})


def poll(wait: BatchWait, clock: Clock, seconds: int) -> None:
    for _ in range(seconds):
        clock.now += 1.0
        wait.no_batch()


def test_the_reason_of_the_api_is_repeated(
    script: Script, wait: BatchWait, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    script.always["/v1/status"] = status(True, why="none add up")
    poll(wait, clock, 31)
    assert [record.message for record in caplog.records] == [
        "waiting for a batch (30 s): trainer waits for a batch: none add up"
    ]


def test_it_ends_a_minute_after_the_last_environment_left(
    script: Script, wait: BatchWait, clock: Clock
) -> None:
    script.always["/v1/status"] = status(True, False)
    poll(wait, clock, 100)
    script.always["/v1/status"] = status(False, False)
    poll(wait, clock, 59)
    with pytest.raises(RunError) as caught:
        poll(wait, clock, 2)
    assert caught.value.code == "train.no_environment"


def test_new_groups_of_unknown_environments_keep_it_waiting(
    script: Script, wait: BatchWait, clock: Clock
) -> None:
    for received in range(10):
        script.always["/v1/status"] = status(False, received=received)
        poll(wait, clock, 30)


@pytest.mark.parametrize("answer", [status(), Reply({"detail": "Not Found"}, status=404)])
def test_without_known_environments_it_waits_on(
    script: Script, wait: BatchWait, clock: Clock, answer: Reply
) -> None:
    script.always["/v1/status"] = answer
    poll(wait, clock, 300)
