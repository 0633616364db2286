"""What every store promises of leases: order, expiry, renewal, release, and waiting for a batch."""

from __future__ import annotations

import asyncio

import pytest

from atroposlib.store.protocol import MAX_ATTEMPTS, GroupStore
from tests.store.support import OpenStore, asks, conserved, group, leased, names, put, refused, registration


async def test_batches_leave_oldest_first(store: GroupStore) -> None:
    await put(store, "a", "b", "c", "d")
    assert names(await store.lease(asks(), 0.0)) == ["a", "b"]
    assert names(await store.lease(asks(), 0.0)) == ["c", "d"]


async def test_there_is_no_batch_before_it_is_full(store: GroupStore) -> None:
    await put(store, "a")
    assert await store.lease(asks(), 0.0) is None
    assert (await store.stats()).queued == 1


async def test_the_minimum_share_is_kept(store: GroupStore) -> None:
    await put(store, "a", "b")
    await store.put([group("c", env_id=1)], 0.0)
    assert names(await store.lease(asks(minimums={1: 4}), 0.0)) == ["a", "c"]


async def test_a_minimum_that_no_group_size_divides_still_gives_a_batch(store: GroupStore) -> None:
    await store.put([group("a", 5, env_id=1), group("b", 5, env_id=1), group("c", 3)], 0.0)
    assert names(await store.lease(asks(minimums={1: 6}), 0.0)) == ["a", "c"]


async def test_a_lease_tells_its_attempt_and_its_end(store: GroupStore) -> None:
    await put(store, "a", "b")
    lease = await leased(store, now=5.0, lease_s=10.0)
    assert (lease.attempt, lease.expires_at) == (1, 15.0)
    stats = await store.stats()
    assert (stats.leases, stats.leased, stats.due) == (1, 2, 0)


async def test_an_expired_batch_comes_again_under_its_id(store: GroupStore) -> None:
    await put(store, "a", "b", "c", "d")
    first = await leased(store, now=0.0)
    assert names(await store.lease(asks(), 9.0)) == ["c", "d"]
    again = await leased(store, now=10.0, trainer_id="other")
    assert (again.batch_id, again.attempt, again.groups) == (first.batch_id, 2, first.groups)


async def test_a_sweep_makes_expired_batches_due(store: GroupStore) -> None:
    await put(store, "a", "b")
    await leased(store, now=0.0)
    await store.sweep(9.0)
    assert (await store.stats()).leases == 1
    await store.sweep(10.0)
    stats = await store.stats()
    assert (stats.leases, stats.due, stats.leased, stats.expired) == (0, 1, 2, 1)
    assert conserved(stats)


async def test_due_batches_come_before_new_ones_and_the_oldest_first(store: GroupStore) -> None:
    await put(store, *"abcdef")
    first, second = await leased(store), await leased(store)
    await store.nack(second.batch_id, 1, "busy", 1.0)
    await store.nack(first.batch_id, 1, "busy", 2.0)
    order = [(await leased(store)).batch_id for _ in range(2)]
    assert order == [first.batch_id, second.batch_id]
    assert names(await store.lease(asks(), 0.0)) == ["e", "f"]


async def test_a_due_batch_of_another_size_returns_to_its_places(store: GroupStore) -> None:
    await put(store, "a", "b", "c", "d")
    lease = await leased(store)
    await store.nack(lease.batch_id, 1, "wrong size", 0.0)
    assert names(await store.lease(asks(sequences=12), 0.0)) == ["a", "b", "c"]
    assert await refused(store.ack(lease.batch_id, 1, 0.0)) == "api.lease_lost"
    assert conserved(await store.stats())


async def test_released_batches_return_to_their_places(store: GroupStore) -> None:
    await put(store, *"abcdefgh")
    await store.lease(asks(), 0.0)
    first, second, third = [await leased(store) for _ in range(3)]
    assert await store.release(second.batch_id, 1)
    assert await store.release(third.batch_id, 1)
    assert await store.release(first.batch_id, 1)
    assert names(await store.lease(asks(sequences=24), 0.0)) == list("cdefgh")


async def test_a_release_undoes_just_its_lease(store: GroupStore) -> None:
    await put(store, "a", "b")
    first = await leased(store, now=0.0, trainer_id="first")
    second = await leased(store, now=10.0, trainer_id="second")
    assert await store.release(second.batch_id, 2)
    assert [trainer.leased for trainer in (await store.run()).trainers] == [1, 0]
    assert await store.ack(first.batch_id, 1, 11.0) == 1


@pytest.mark.parametrize("end", ["released", "acked", "refused", "expired", "other attempt"])
async def test_only_the_current_lease_can_be_released(store: GroupStore, end: str) -> None:
    await put(store, "a", "b")
    lease = await leased(store)
    if end == "released":
        assert await store.release(lease.batch_id, 1)
    elif end == "acked":
        await store.ack(lease.batch_id, 1, 0.0)
    elif end == "refused":
        await store.nack(lease.batch_id, 1, "busy", 0.0)
    elif end == "expired":
        await store.sweep(10.0)
    before = await store.stats()
    assert not await store.release(lease.batch_id, 2 if end == "other attempt" else 1)
    assert await store.stats() == before


async def test_a_heartbeat_moves_the_end_of_a_lease(store: GroupStore) -> None:
    await put(store, "a", "b")
    lease = await leased(store, now=0.0)
    assert await store.heartbeat(lease.batch_id, 1, 20.0, 9.0) == 29.0
    assert await store.lease(asks(), 28.0) is None
    assert (await leased(store, now=29.0)).attempt == 2


async def test_a_heartbeat_saves_an_expired_lease_that_nobody_took(store: GroupStore) -> None:
    await put(store, "a", "b")
    lease = await leased(store, now=0.0)
    await store.sweep(10.0)
    assert await store.heartbeat(lease.batch_id, 1, 10.0, 11.0) == 21.0
    assert await store.lease(asks(), 12.0) is None


async def test_a_lease_that_was_renewed_late_was_delivered_and_is_not_released(store: GroupStore) -> None:
    await put(store, "a", "b")
    await leased(store, now=0.0)
    lease = await leased(store, now=10.0)
    await store.sweep(20.0)
    await store.heartbeat(lease.batch_id, 2, 10.0, 21.0)
    assert not await store.release(lease.batch_id, 2)
    assert await store.ack(lease.batch_id, 2, 22.0) == 1


async def test_a_late_heartbeat_after_the_ack_is_harmless(store: GroupStore) -> None:
    await put(store, "a", "b")
    lease = await leased(store, now=0.0)
    await store.ack(lease.batch_id, 1, 1.0)
    assert await store.heartbeat(lease.batch_id, 1, 10.0, 2.0) == 2.0
    await store.commit("t", lease.batch_id, 3.0)
    assert await store.heartbeat(lease.batch_id, 1, 10.0, 4.0) == 4.0
    assert (await store.stats()).leases == 0


@pytest.mark.parametrize("loss", ["delivered again", "refused", "released"])
async def test_a_lost_lease_cannot_be_renewed(store: GroupStore, loss: str) -> None:
    await put(store, "a", "b")
    lease = await leased(store, now=0.0)
    if loss == "delivered again":
        await leased(store, now=10.0)
    elif loss == "refused":
        await store.nack(lease.batch_id, 1, "busy", 1.0)
    else:
        await store.release(lease.batch_id, 1)
    assert await refused(store.heartbeat(lease.batch_id, 1, 10.0, 11.0)) == "api.lease_lost"


async def test_an_unknown_batch_has_no_lease(store: GroupStore) -> None:
    assert await refused(store.heartbeat("unknown", 1, 10.0, 0.0)) == "api.unknown_batch"
    assert not await store.release("unknown", 1)


async def test_a_batch_that_expires_too_often_is_dead(store: GroupStore) -> None:
    await put(store, "a", "b")
    for attempt in range(MAX_ATTEMPTS):
        assert (await leased(store, now=10.0 * attempt)).attempt == attempt + 1
    assert await store.lease(asks(), 10.0 * MAX_ATTEMPTS) is None
    stats = await store.stats()
    assert (stats.dead, stats.leased, stats.expired) == (2, 0, MAX_ATTEMPTS)
    assert conserved(stats)


async def test_waiting_ends_when_something_comes(store: GroupStore) -> None:
    assert await store.lease(asks(), 0.0) is None
    waiting = asyncio.create_task(store.wait(60.0))
    await put(store, "a")
    async with asyncio.timeout(10.0):
        await waiting


@pytest.mark.parametrize("how", ["nack", "release", "expiry", "requeue", "register again"])
async def test_waiting_ends_when_a_batch_can_be_had_again(store: GroupStore, how: str) -> None:
    await put(store, "a", "b")
    await store.register_trainer("t", registration(), None, 0.0)
    if how == "requeue":
        for attempt in range(1, MAX_ATTEMPTS + 1):
            await store.nack((await leased(store)).batch_id, attempt, "poison", 0.0)
    lease = None if how == "requeue" else await leased(store)
    assert await store.lease(asks(), 0.0) is None
    waiting = asyncio.create_task(store.wait(60.0))
    if lease is None:
        assert await store.requeue(None, 0.0) == 2
    elif how == "nack":
        await store.nack(lease.batch_id, 1, "busy", 0.0)
    elif how == "release":
        await store.release(lease.batch_id, 1)
    elif how == "expiry":
        await store.sweep(10.0)
    else:
        await store.register_trainer("t", registration(), None, 0.0)
    async with asyncio.timeout(10.0):
        await waiting


async def test_waiting_does_not_miss_what_came_since_the_last_question(store: GroupStore) -> None:
    assert await store.lease(asks(), 0.0) is None
    await put(store, "a")
    async with asyncio.timeout(10.0):
        await store.wait(60.0)


async def test_what_a_question_has_seen_does_not_end_the_waiting(store: GroupStore) -> None:
    await put(store, "a")
    assert await store.lease(asks(), 0.0) is None
    waiting = asyncio.create_task(store.wait(60.0))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()


async def test_waiting_ends_without_news_too(store: GroupStore) -> None:
    assert await store.lease(asks(), 0.0) is None
    async with asyncio.timeout(10.0):
        await store.wait(0.01)


async def test_a_lease_that_nobody_waits_for_is_taken_back(engine: OpenStore) -> None:
    store = await engine()
    await put(store, "a", "b")
    for steps in range(12):
        asking = asyncio.create_task(store.lease(asks(), 0.0))
        for _ in range(steps):
            await asyncio.sleep(0)
        asking.cancel()
        answer = await asyncio.gather(asking, return_exceptions=True)
        if not isinstance(answer[0], BaseException):
            assert answer[0] is not None
            await store.release(answer[0].batch_id, 1)
    # Answered only after what was under way, the taking back included.
    await store.sweep(0.0)
    await store.sweep(0.0)
    assert (await store.stats()).queued == 2
    assert names(await store.lease(asks(), 0.0)) == ["a", "b"]


async def test_a_smaller_batch_than_the_runs_drops_no_groups(store: GroupStore) -> None:
    """A trainer that asks for a few sequences must not destroy what the others need."""
    await store.register_trainer("t", registration(batch_size=8), None, 0.0)
    await store.put([group("a", 8), group("b", 16), group("c", 2)], 0.0)
    assert names(await store.lease(asks(sequences=2), 0.0)) == ["c"]
    assert dict((await store.stats()).dropped) == {"larger_than_batch": 1}
    assert names(await store.lease(asks(sequences=8), 0.0)) == ["a"]
