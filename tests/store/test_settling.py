"""What every store promises of ack, commit, nack and dead letters: trained once, counted once."""

from __future__ import annotations

import pytest

from atroposlib.store import ledger
from atroposlib.store.protocol import MAX_ATTEMPTS, DeadLetter, GroupStore, Lease
from tests.store.support import asks, conserved, group, leased, names, put, refused


async def dead(store: GroupStore, *group_ids: str) -> Lease:
    """A batch that was refused too often."""
    await put(store, *group_ids)
    for attempt in range(1, MAX_ATTEMPTS + 1):
        lease = await leased(store)
        await store.nack(lease.batch_id, attempt, f"refusal {attempt}", float(attempt))
    return lease


async def test_an_acked_batch_is_trained_and_kept_until_it_is_committed(store: GroupStore) -> None:
    await put(store, "a", "b")
    lease = await leased(store)
    assert await store.ack(lease.batch_id, 1, 0.0) == 1
    stats = await store.stats()
    assert (stats.trained, stats.uncommitted, stats.leased, stats.held_bytes) == (2, 2, 0, 4)
    assert await store.commit("t", lease.batch_id, 0.0) == 1
    stats = await store.stats()
    assert (stats.trained, stats.uncommitted, stats.held_bytes) == (2, 0, 0)
    assert conserved(stats)


async def test_an_ack_can_commit_at_once(store: GroupStore) -> None:
    await put(store, *"abcd")
    first, second = await leased(store), await leased(store)
    await store.ack(first.batch_id, 1, 0.0)
    await store.ack(second.batch_id, None, 0.0, commit=True)
    stats = await store.stats()
    assert (stats.trained, stats.uncommitted) == (4, 2)
    (trainer,) = (await store.run()).trainers
    assert (trainer.last_committed, trainer.acked) == (second.batch_id, 1)


async def test_a_repeated_ack_changes_nothing(store: GroupStore) -> None:
    await put(store, "a", "b")
    lease = await leased(store)
    answers = [await store.ack(lease.batch_id, attempt, 0.0) for attempt in (1, 1, None)]
    await store.commit("t", lease.batch_id, 0.0)
    answers += [await store.ack(lease.batch_id, attempt, 0.0) for attempt in (1, None)]
    assert answers == [1, 1, 1, 1, 1]
    assert (await store.stats()).trained == 2


async def test_an_expired_lease_can_be_acked_until_the_batch_is_delivered_again(store: GroupStore) -> None:
    await put(store, *"abcd")
    lease = await leased(store, now=0.0)
    await store.sweep(10.0)
    assert await store.ack(lease.batch_id, 1, 11.0) == 1
    lease = await leased(store, now=20.0)
    again = await leased(store, now=30.0, trainer_id="other")
    assert await refused(store.ack(lease.batch_id, 1, 31.0)) == "api.lease_lost"
    assert await store.ack(again.batch_id, 2, 31.0) == 2


async def test_a_dead_batch_can_be_acked_late(store: GroupStore) -> None:
    lease = await dead(store, "a", "b")
    assert await store.ack(lease.batch_id, MAX_ATTEMPTS, 0.0) == 1
    stats = await store.stats()
    assert (stats.dead, stats.trained) == (0, 2)
    assert await store.dead_letters() == []


async def test_unknown_batches_are_told_apart_from_lost_leases(store: GroupStore) -> None:
    assert await refused(store.ack("unknown", 1, 0.0)) == "api.unknown_batch"
    assert await refused(store.nack("unknown", 1, "", 0.0)) == "api.unknown_batch"
    assert await refused(store.commit("t", "unknown", 0.0)) == "api.unknown_batch"
    assert await refused(store.requeue("unknown", 0.0)) == "api.unknown_batch"


async def test_settled_batches_are_remembered_up_to_a_number(
    store: GroupStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "REMEMBERED_BATCHES", 1)
    await put(store, *"abcd")
    first, second = await leased(store), await leased(store)
    for lease in (first, second):
        await store.ack(lease.batch_id, 1, 0.0, commit=True)
    assert await store.ack(second.batch_id, 1, 0.0) == 2
    assert await refused(store.ack(first.batch_id, 1, 0.0)) == "api.unknown_batch"


async def test_a_commit_takes_what_its_trainer_acked_before(store: GroupStore) -> None:
    await put(store, *"abcdefgh")
    mine = [await leased(store) for _ in range(3)]
    other = await leased(store, trainer_id="other")
    await store.ack(mine[1].batch_id, 1, 0.0)
    await store.ack(other.batch_id, 1, 0.0)
    await store.ack(mine[0].batch_id, 1, 0.0)
    await store.ack(mine[2].batch_id, 1, 0.0)
    assert await store.commit("t", mine[0].batch_id, 0.0) == 2
    assert [(trainer.acked, trainer.last_committed) for trainer in (await store.run()).trainers] == [
        (1, mine[0].batch_id),
        (1, None),
    ]


async def test_a_repeated_ack_keeps_its_place_among_the_acks(store: GroupStore) -> None:
    await put(store, *"abcd")
    first, second = await leased(store), await leased(store)
    for lease in (first, second, first):
        await store.ack(lease.batch_id, 1, 0.0)
    assert await store.commit("t", first.batch_id, 0.0) == 1
    assert (await store.stats()).uncommitted == 2


async def test_a_repeated_commit_commits_nothing(store: GroupStore) -> None:
    await put(store, "a", "b")
    lease = await leased(store)
    await store.ack(lease.batch_id, 1, 0.0)
    assert await store.commit("t", lease.batch_id, 0.0) == 1
    assert await store.commit("t", lease.batch_id, 0.0) == 0


@pytest.mark.parametrize("state", ["leased", "acked by another", "committed by another", "returned"])
async def test_a_commit_of_what_the_trainer_never_acked_is_refused(store: GroupStore, state: str) -> None:
    await put(store, "a", "b")
    lease = await leased(store, trainer_id="t" if state == "leased" else "other")
    if state.endswith("another"):
        await store.ack(lease.batch_id, 1, 0.0, commit=state.startswith("committed"))
    elif state == "returned":
        await store.release(lease.batch_id, 1)
    assert await refused(store.commit("t", lease.batch_id, 0.0)) == "api.unknown_batch"


async def test_a_refused_batch_is_due_at_once(store: GroupStore) -> None:
    await put(store, "a", "b")
    lease = await leased(store)
    await store.nack(lease.batch_id, 1, "busy", 1.0)
    await store.nack(lease.batch_id, None, "the answer got lost", 1.0)
    again = await leased(store, now=1.0)
    assert (again.batch_id, again.attempt) == (lease.batch_id, 2)
    assert await refused(store.nack(lease.batch_id, 1, "late", 2.0)) == "api.lease_lost"


@pytest.mark.parametrize("commit", [False, True])
async def test_a_trained_batch_cannot_be_refused(store: GroupStore, commit: bool) -> None:
    await put(store, "a", "b")
    lease = await leased(store)
    await store.ack(lease.batch_id, 1, 0.0, commit=commit)
    assert await refused(store.nack(lease.batch_id, 1, "busy", 0.0)) == "api.lease_lost"
    assert (await store.stats()).trained == 2


async def test_a_batch_refused_too_often_is_a_dead_letter(store: GroupStore) -> None:
    lease = await dead(store, "a", "b")
    assert await store.lease(asks(), 0.0) is None
    assert await store.dead_letters() == [
        DeadLetter(lease.batch_id, MAX_ATTEMPTS, float(MAX_ATTEMPTS), f"refusal {MAX_ATTEMPTS}", lease.groups)
    ]
    stats = await store.stats()
    assert (stats.dead, stats.leased, stats.held_bytes) == (2, 0, 4)
    assert conserved(stats)
    assert await store.payload("a") == b"{}"


async def test_dead_groups_can_be_put_back_to_their_places(store: GroupStore) -> None:
    first = await dead(store, "a", "b")
    await dead(store, "c", "d")
    await put(store, "e", "f")
    assert await store.requeue(first.batch_id, 0.0) == 2
    assert names(await store.lease(asks(sequences=16), 0.0)) == ["a", "b", "e", "f"]
    assert await store.requeue(None, 0.0) == 2
    assert await store.requeue(None, 0.0) == 0
    assert await refused(store.requeue(first.batch_id, 0.0)) == "api.unknown_batch"
    lease = await leased(store)
    assert (names(lease), lease.attempt) == (["c", "d"], 1)


async def test_dead_groups_return_in_their_order_whatever_their_batches(store: GroupStore) -> None:
    letters = [await dead(store, *pair) for pair in ("ab", "cd", "ef")]
    assert [letter.batch_id for letter in await store.dead_letters()] == [
        letter.batch_id for letter in letters
    ]
    assert await store.requeue(None, 0.0) == 6
    assert names(await store.lease(asks(sequences=24), 0.0)) == list("abcdef")


async def test_groups_in_a_batch_are_not_dropped_for_their_age(store: GroupStore) -> None:
    await store.put([group("a", 8, policy_version=0)], 0.0)
    lease = await leased(store)
    await store.sweep(10.0)
    assert (await leased(store, now=11.0)).batch_id == lease.batch_id
