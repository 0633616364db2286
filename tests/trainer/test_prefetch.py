"""At most one batch is fetched ahead, and none is forgotten at the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from atroposlib.errors import ApiError
from atroposlib.trainer.client import TrainerClient
from atroposlib.trainer.prefetch import BatchPrefetcher
from tests.trainer.support import Reply, Script, make_groups, scripted_http


@pytest.fixture
def script() -> Iterator[Script]:
    with scripted_http() as script:
        yield script


@pytest.fixture
def batches(script: Script) -> Iterator[BatchPrefetcher]:
    batches = BatchPrefetcher(TrainerClient(script.url, give_up_after_s=20), poll_interval_s=0.001)
    yield batches
    batches.close()


def test_polls_until_there_is_a_batch(script: Script, batches: BatchPrefetcher) -> None:
    groups = make_groups(1)
    script.then("/batch", *[Reply({"batch": None})] * 3, Reply({"batch": groups}))
    assert batches.take() == groups
    assert len(script.asked) == 4


def test_one_batch_is_fetched_ahead_and_not_two(script: Script, batches: BatchPrefetcher) -> None:
    first, second = make_groups(2)
    script.then("/batch", Reply({"batch": [first]}), Reply({"batch": [second]}))
    batches.request().result(timeout=20)
    batches.request()
    assert len(script.asked) == 1
    assert batches.take() == [first]
    assert batches.take() == [second]


def test_close_counts_the_groups_that_nobody_took(script: Script, batches: BatchPrefetcher) -> None:
    script.then("/batch", Reply({"batch": make_groups(3)}))
    batches.request().result(timeout=20)
    assert batches.close() == 3


def test_close_ends_a_wait_for_batches_that_never_come(script: Script, batches: BatchPrefetcher) -> None:
    script.always["/batch"] = Reply({"batch": None})
    pending = batches.request()
    assert batches.close() == 0
    assert pending.result(timeout=20) == []


def test_the_api_s_error_reaches_the_one_who_takes(script: Script, batches: BatchPrefetcher) -> None:
    script.then("/batch", Reply({"detail": "gone"}, status=410))
    with pytest.raises(ApiError, match="gone"):
        batches.take()
