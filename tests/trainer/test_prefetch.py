"""At most one batch is leased ahead, and none is forgotten at the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from atroposlib.errors import ApiError
from atroposlib.trainer.client import TrainerClient
from atroposlib.trainer.prefetch import BatchPrefetcher
from tests.trainer.support import NO_BATCH, Reply, Script, lease_reply, make_groups, scripted_http

LEASE = "/v1/batches/lease"


@pytest.fixture
def script() -> Iterator[Script]:
    with scripted_http() as script:
        script.always[LEASE] = NO_BATCH
        yield script


@pytest.fixture
def batches(script: Script) -> Iterator[BatchPrefetcher]:
    client = TrainerClient(script.url, give_up_after_s=20)
    batches = BatchPrefetcher(client, poll_interval_s=0.001, lease_s=60)
    yield batches
    batches.close()


def test_polls_until_there_is_a_batch(script: Script, batches: BatchPrefetcher) -> None:
    script.then(LEASE, *[NO_BATCH] * 3, lease_reply(*make_groups(1), batch_id="b"))
    assert batches.take().batch_id == "b"
    assert len(script.bodies[LEASE]) == 4
    assert {body["lease_s"] for body in script.bodies[LEASE]} == {60}


def test_one_batch_is_fetched_ahead_and_not_two(script: Script, batches: BatchPrefetcher) -> None:
    for name, group in zip(("first", "second"), make_groups(2), strict=True):
        script.then(LEASE, lease_reply(group, batch_id=name))
    batches.request().result(timeout=20)
    batches.request()
    assert len(script.bodies[LEASE]) == 1
    assert batches.take().batch_id == "first"
    assert batches.take().batch_id == "second"


def test_close_counts_the_groups_that_nobody_took_and_gives_them_back(
    script: Script, batches: BatchPrefetcher
) -> None:
    script.then(LEASE, lease_reply(*make_groups(3), batch_id="b"))
    batches.request().result(timeout=20)
    assert batches.close() == 3
    assert script.asked.count("POST /v1/batches/b/nack") == 1


def test_close_gives_back_the_batch_of_a_step_that_was_cut_short(
    script: Script, batches: BatchPrefetcher
) -> None:
    script.then(LEASE, lease_reply(*make_groups(3), batch_id="b"))
    batches.take()
    assert batches.close() == 0
    assert script.asked.count("POST /v1/batches/b/nack") == 1


def test_close_ends_a_wait_for_batches_that_never_come(script: Script, batches: BatchPrefetcher) -> None:
    pending = batches.request()
    assert batches.close() == 0
    assert pending.result(timeout=20) is None


def test_the_api_s_error_reaches_the_one_who_takes(script: Script, batches: BatchPrefetcher) -> None:
    script.then(LEASE, Reply({"detail": "gone"}, status=410))
    with pytest.raises(ApiError, match="gone"):
        batches.take()
