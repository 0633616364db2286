"""What every store promises: order, leases, duplicates, limits, counts. Engines are added to ``stores``."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from atroposlib.errors import ApiError
from atroposlib.store.memory import MemoryStore
from atroposlib.store.protocol import LARGER_THAN_BATCH, EnvQueue, GroupStore, Lease, StoreStats
from atroposlib.wire.posted import PostedGroup

ENGINES: dict[str, Callable[[int, int], GroupStore]] = {"memory": MemoryStore}


@pytest.fixture(params=sorted(ENGINES))
def engine(request: pytest.FixtureRequest) -> Callable[[int, int], GroupStore]:
    """Makes a store of the engine with its limits in groups and bytes."""
    return ENGINES[request.param]


@pytest.fixture
def store(engine: Callable[[int, int], GroupStore]) -> GroupStore:
    """An empty store with room for all of a test."""
    return engine(1000, 1 << 20)


def group(name: str, sequences: int = 4, env_id: int | None = 0, payload: bytes = b"{}") -> PostedGroup:
    return PostedGroup(name, env_id, sequences, None, payload)


def names(lease: Lease | None) -> list[str]:
    assert lease is not None
    return [group.group_id for group in lease.groups]


async def put(store: GroupStore, *group_ids: str) -> None:
    assert len(await store.put([group(name) for name in group_ids])) == len(group_ids)


def conserved(stats: StoreStats) -> bool:
    places = stats.queued + stats.leased + stats.trained + sum(stats.dropped.values()) + stats.dead
    return stats.received == places


async def test_batches_leave_oldest_first(store: GroupStore) -> None:
    await put(store, "a", "b", "c", "d")
    assert names(await store.lease(8, {})) == ["a", "b"]
    assert names(await store.lease(8, {})) == ["c", "d"]


async def test_there_is_no_batch_before_it_is_full(store: GroupStore) -> None:
    await put(store, "a")
    assert await store.lease(8, {}) is None
    assert (await store.stats()).queued == 1


async def test_an_acknowledged_batch_is_trained_and_gone(store: GroupStore) -> None:
    await put(store, "a", "b")
    lease = await store.lease(8, {})
    assert lease is not None
    assert await store.ack(lease.batch_id)
    stats = await store.stats()
    assert (stats.trained, stats.leased, stats.queued) == (2, 0, 0)
    assert conserved(stats)


async def test_released_batches_return_to_their_places(store: GroupStore) -> None:
    await put(store, "a", "b", "c", "d", "e", "f")
    first, second = await store.lease(8, {}), await store.lease(8, {})
    assert first is not None
    assert second is not None
    assert await store.release(first.batch_id)
    assert await store.release(second.batch_id)
    assert names(await store.lease(24, {})) == ["a", "b", "c", "d", "e", "f"]


async def test_a_lease_is_settled_once(store: GroupStore) -> None:
    await put(store, "a", "b")
    lease = await store.lease(8, {})
    assert lease is not None
    assert await store.release(lease.batch_id)
    assert not await store.ack(lease.batch_id)
    assert not await store.release(lease.batch_id)
    assert (await store.stats()).queued == 2


async def test_a_group_larger_than_the_batch_is_dropped_with_its_reason(store: GroupStore) -> None:
    await store.put([group("large", 9)])
    await put(store, "a", "b")
    assert names(await store.lease(8, {})) == ["a", "b"]
    stats = await store.stats()
    assert dict(stats.dropped) == {LARGER_THAN_BATCH: 1}
    assert conserved(stats)


async def test_the_minimum_share_is_kept(store: GroupStore) -> None:
    await put(store, "a", "b")
    await store.put([group("c", env_id=1)])
    assert names(await store.lease(8, {1: 4})) == ["a", "c"]


@pytest.mark.parametrize("moment", ["queued", "leased", "trained", "dropped"])
async def test_a_repeated_group_is_stored_once(store: GroupStore, moment: str) -> None:
    await store.put([group("a", 9 if moment == "dropped" else 8)])
    lease = None if moment == "queued" else await store.lease(8, {})
    if moment == "trained":
        assert lease is not None
        await store.ack(lease.batch_id)
    assert len(await store.put([group("a")])) == 0
    stats = await store.stats()
    assert (stats.received, stats.duplicates) == (1, 1)
    assert conserved(stats)


async def test_a_group_repeated_within_one_post_is_stored_once(store: GroupStore) -> None:
    assert len(await store.put([group("a", payload=b"first"), group("a", payload=b"second")])) == 1
    latest = await store.latest()
    assert latest is not None
    assert latest.payload == b"first"
    assert (await store.stats()).duplicates == 1


@pytest.mark.parametrize(("max_groups", "max_bytes"), [(2, 1 << 20), (1000, 4)])
async def test_a_full_store_refuses_and_takes_nothing(
    engine: Callable[[int, int], GroupStore], max_groups: int, max_bytes: int
) -> None:
    store = engine(max_groups, max_bytes)
    await put(store, "a", "b")
    with pytest.raises(ApiError) as caught:
        await store.put([group("c"), group("d")])
    assert caught.value.code == "api.queue_full"
    assert (await store.stats()).received == 2


async def test_a_full_store_still_knows_a_repeated_group(engine: Callable[[int, int], GroupStore]) -> None:
    store = engine(1, 1 << 20)
    await put(store, "a")
    assert len(await store.put([group("a")])) == 0


async def test_a_full_store_has_room_again_after_training(engine: Callable[[int, int], GroupStore]) -> None:
    store = engine(2, 1 << 20)
    await put(store, "a", "b")
    lease = await store.lease(8, {})
    assert lease is not None
    with pytest.raises(ApiError):
        await store.put([group("c")])
    await store.ack(lease.batch_id)
    assert len(await store.put([group("c")])) == 1


async def test_the_queue_is_told_by_environment(store: GroupStore) -> None:
    await store.put([group("a", 4, 0), group("b", 2, 0), group("c", 6, 1), group("d", 1, None)])
    stats = await store.stats()
    assert stats.by_env == {0: EnvQueue(6, 4), 1: EnvQueue(6, 6), None: EnvQueue(1, 1)}
    assert stats.queued_sequences == 13
    await store.lease(6, {})
    assert (await store.stats()).by_env == {1: EnvQueue(6, 6), None: EnvQueue(1, 1)}


async def test_the_latest_group_is_shown_wherever_it_is(store: GroupStore) -> None:
    assert await store.latest() is None
    await put(store, "a", "b")
    await store.lease(8, {})
    latest = await store.latest()
    assert latest is not None
    assert latest.group_id == "b"


async def test_a_reset_forgets_groups_leases_counts_and_ids(store: GroupStore) -> None:
    await put(store, "a", "b", "c")
    lease = await store.lease(8, {})
    assert lease is not None
    await store.reset()
    assert not await store.ack(lease.batch_id)
    assert await store.stats() == StoreStats()
    assert await store.latest() is None
    assert len(await store.put([group("a")])) == 1


async def test_settled_ids_are_forgotten_beyond_their_number(
    store: GroupStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atroposlib.store.memory.REMEMBERED_IDS", 1)
    for name in ("a", "b"):
        await put(store, name)
        lease = await store.lease(4, {})
        assert lease is not None
        await store.ack(lease.batch_id)
    assert len(await store.put([group("b")])) == 0
    assert len(await store.put([group("a")])) == 1
