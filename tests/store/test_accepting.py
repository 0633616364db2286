"""What every store promises of single groups: accepted once, counted, kept, refused when full."""

from __future__ import annotations

import pytest

from atroposlib.store import memory, sqlite_file
from atroposlib.store.protocol import LARGER_THAN_BATCH, POLICY_LAG, EnvQueue, GroupStore, StoreStats
from tests.store.support import (
    OpenStore,
    asks,
    conserved,
    env_registration,
    group,
    leased,
    names,
    put,
    refused,
    registration,
)


@pytest.mark.parametrize("moment", ["queued", "leased", "acked", "committed", "dropped"])
async def test_a_repeated_group_is_stored_once(store: GroupStore, moment: str) -> None:
    await store.put([group("a", 9 if moment == "dropped" else 8)], 0.0)
    lease = None if moment == "queued" else await store.lease(asks(), 0.0)
    if moment in ("acked", "committed"):
        assert lease is not None
        await store.ack(lease.batch_id, 1, 0.0, commit=moment == "committed")
    (answer,) = await store.put([group("a")], 1.0)
    assert (answer.group_id, answer.new) == ("a", False)
    stats = await store.stats()
    assert (stats.received, stats.duplicates) == (1, 1)
    assert conserved(stats)


async def test_a_group_repeated_within_one_post_is_stored_once(store: GroupStore) -> None:
    answers = await store.put([group("a", payload=b"first"), group("a", payload=b"second")], 0.0)
    assert [answer.new for answer in answers] == [True, False]
    assert await store.payload("a") == b"first"
    assert (await store.stats()).duplicates == 1


async def test_an_equal_body_within_a_minute_is_the_first_ones_duplicate(store: GroupStore) -> None:
    await store.put([group("a", digest="body")], 100.0)
    (answer,) = await store.put([group("b", digest="body")], 159.0)
    assert (answer.group_id, answer.new) == ("a", False)
    (answer,) = await store.put([group("c", digest="body")], 160.0)
    assert (answer.group_id, answer.new) == ("c", True)


async def test_equal_bodies_within_one_post_are_one_group(store: GroupStore) -> None:
    answers = await store.put([group("a", digest="body"), group("b", digest="body")], 0.0)
    assert [(answer.group_id, answer.new) for answer in answers] == [("a", True), ("a", False)]


async def test_an_equal_body_after_the_answer_is_a_new_group(store: GroupStore) -> None:
    await store.put([group("a", digest="body")], 100.0)
    await store.answered(["body", "of nobody"])
    (answer,) = await store.put([group("b", digest="body")], 101.0)
    assert (answer.group_id, answer.new) == ("b", True)
    (answer,) = await store.put([group("c", digest="body")], 102.0)
    assert answer.group_id == "b"


async def test_a_clock_that_was_set_back_makes_no_equal_body_a_repetition(store: GroupStore) -> None:
    await store.put([group("a", digest="body")], 4000.0)
    assert not (await store.put([group("b", digest="body")], 3999.0))[0].new
    assert (await store.put([group("c", digest="body")], 400.0))[0].new


async def test_a_sweep_forgets_bodies_and_no_groups(store: GroupStore) -> None:
    await store.put([group("a", digest="body")], 100.0)
    await store.sweep(159.0)
    assert not (await store.put([group("b", digest="body")], 159.0))[0].new
    await store.sweep(200.0)
    assert (await store.put([group("c", digest="body")], 200.0))[0].new
    assert (await store.stats()).received == 2


async def test_settled_ids_are_forgotten_after_a_day(store: GroupStore) -> None:
    await put(store, "a", "b", now=0.0)
    lease = await leased(store)
    await store.ack(lease.batch_id, 1, 1000.0, commit=True)
    await store.sweep(1000.0 + 24 * 3600 - 1)
    assert not (await store.put([group("a")], 0.0))[0].new
    await store.sweep(1000.0 + 24 * 3600)
    assert (await store.put([group("a")], 0.0))[0].new


async def test_settled_ids_are_forgotten_beyond_their_number(
    store: GroupStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (memory, sqlite_file):
        monkeypatch.setattr(module, "REMEMBERED_IDS", 1)
    for name in ("a", "b"):
        await put(store, name)
        lease = await leased(store, sequences=4)
        await store.ack(lease.batch_id, 1, 0.0, commit=True)
    await store.sweep(0.0)
    assert not (await store.put([group("b")], 0.0))[0].new
    assert (await store.put([group("a")], 0.0))[0].new


@pytest.mark.parametrize(("max_groups", "max_bytes"), [(2, 1 << 20), (1000, 4)])
async def test_a_full_store_refuses_and_takes_nothing(
    engine: OpenStore, max_groups: int, max_bytes: int
) -> None:
    store = await engine(max_groups, max_bytes)
    await put(store, "a", "b")
    assert await refused(store.put([group("a"), group("c"), group("d")], 0.0)) == "api.queue_full"
    stats = await store.stats()
    assert (stats.received, stats.duplicates, stats.held_bytes) == (2, 0, 4)


async def test_a_full_store_still_knows_a_repeated_group(engine: OpenStore) -> None:
    store = await engine(1)
    await put(store, "a")
    assert not (await store.put([group("a")], 0.0))[0].new


async def test_only_a_commit_makes_room_in_a_full_store(engine: OpenStore) -> None:
    store = await engine(2)
    await put(store, "a", "b")
    lease = await leased(store)
    await store.ack(lease.batch_id, 1, 0.0)
    assert await refused(store.put([group("c")], 0.0)) == "api.queue_full"
    await store.commit("t", lease.batch_id, 0.0)
    await put(store, "c")


async def test_a_full_store_names_the_trainer_that_does_not_commit(engine: OpenStore) -> None:
    store = await engine(3)
    await put(store, "a", "b")
    lease = await leased(store, trainer_id="slow saver")
    await store.ack(lease.batch_id, 1, 0.0)
    await put(store, "c")
    with pytest.raises(Exception, match="not committed by trainer 'slow saver'"):
        await store.put([group("d")], 0.0)


async def test_a_group_larger_than_the_batch_is_dropped_with_its_reason(store: GroupStore) -> None:
    await store.put([group("large", 9)], 0.0)
    await put(store, "a", "b")
    assert names(await store.lease(asks(), 0.0)) == ["a", "b"]
    stats = await store.stats()
    assert dict(stats.dropped) == {LARGER_THAN_BATCH: 1}
    assert conserved(stats)
    with pytest.raises(KeyError):
        await store.payload("large")


async def test_groups_of_too_old_a_policy_are_dropped_with_their_reason(store: GroupStore) -> None:
    await store.register(registration(starting_step=10, max_policy_lag=2), 0.0)
    ages = {"old": 7, "just": 8, "new": 10, "unknown": None}
    await store.put([group(name, policy_version=version) for name, version in ages.items()], 0.0)
    assert names(await store.lease(asks(sequences=12), 0.0)) == ["just", "new", "unknown"]
    assert dict((await store.stats()).dropped) == {POLICY_LAG: 1}


async def test_the_lag_is_that_of_the_step_when_the_batch_is_formed(store: GroupStore) -> None:
    await store.register(registration(max_policy_lag=0), 0.0)
    await store.put([group(name, policy_version=0) for name in "abcd"], 0.0)
    lease = await leased(store)
    await store.ack(lease.batch_id, 1, 0.0)
    assert await store.lease(asks(), 0.0) is None
    assert dict((await store.stats()).dropped) == {POLICY_LAG: 2}


async def test_many_unusable_groups_are_all_dropped_before_a_batch_forms(engine: OpenStore) -> None:
    store = await engine(2000)
    await store.put([group(f"large{number}", 9) for number in range(1100)], 0.0)
    await put(store, "a", "b")
    assert names(await store.lease(asks(), 0.0)) == ["a", "b"]
    assert dict((await store.stats()).dropped) == {LARGER_THAN_BATCH: 1100}


async def test_the_queue_is_told_by_environment(store: GroupStore) -> None:
    await store.put([group("a", 4, 0), group("b", 2, 0), group("c", 6, 1), group("d", 1, None)], 5.0)
    stats = await store.stats()
    assert stats.by_env == {0: EnvQueue(6, 4), 1: EnvQueue(6, 6), None: EnvQueue(1, 1)}
    assert (stats.queued_sequences, stats.oldest_queued_at) == (13, 5.0)
    await store.lease(asks(sequences=6), 0.0)
    assert (await store.stats()).by_env == {1: EnvQueue(6, 6), None: EnvQueue(1, 1)}


async def test_the_oldest_queued_group_tells_since_when_it_waits(store: GroupStore) -> None:
    await put(store, "a", "b", now=3.0)
    await put(store, "c", now=4.0)
    assert (await store.stats()).oldest_queued_at == 3.0
    await store.lease(asks(), 5.0)
    assert (await store.stats()).oldest_queued_at == 4.0


async def test_the_latest_group_is_shown_as_long_as_it_is_kept(store: GroupStore) -> None:
    assert await store.latest() is None
    await put(store, "a", "b", "c")
    lease = await leased(store, sequences=12)
    latest = await store.latest()
    assert latest is not None
    assert latest.group_id == "c"
    await store.ack(lease.batch_id, 1, 0.0, commit=True)
    assert await store.latest() is None


async def test_bytes_are_kept_until_the_batch_is_committed(store: GroupStore) -> None:
    await store.put([group("a", 8, payload=b"bytes of a")], 0.0)
    lease = await leased(store)
    await store.ack(lease.batch_id, 1, 0.0)
    assert await store.payload("a") == b"bytes of a"
    assert (await store.stats()).held_bytes == 10
    await store.commit("t", lease.batch_id, 0.0)
    with pytest.raises(KeyError):
        await store.payload("a")
    assert (await store.stats()).held_bytes == 0


async def test_new_groups_count_for_their_environment(store: GroupStore) -> None:
    await store.register_env(env_registration(), 0.0, 60.0)
    await store.put([group("a"), group("b"), group("c", env_id=7), group("d", env_id=None)], 5.0)
    await store.put([group("a")], 6.0)
    (env,) = (await store.run()).envs
    assert (env.groups_received, env.last_group, env.last_seen) == (2, 5.0, 5.0)


async def test_a_reset_forgets_everything(store: GroupStore) -> None:
    await store.register(registration(), 0.0)
    await store.register_env(env_registration(), 0.0, 60.0)
    await store.put([group("a", digest="body"), group("b"), group("c", 8)], 0.0)
    lease = await leased(store)
    settled = await leased(store)
    await store.ack(settled.batch_id, 1, 0.0, commit=True)
    await store.reset()
    assert await refused(store.ack(lease.batch_id, 1, 0.0)) == "api.unknown_batch"
    assert await store.stats() == StoreStats()
    run = await store.run()
    assert (run.registration, run.step, run.envs, run.trainers) == (None, 0, (), ())
    assert await store.latest() is None
    (answer,) = await store.put([group("a", digest="body", payload=b"other")], 0.0)
    assert answer.new
    await store.sweep(0.0)
    assert await store.payload("a") == b"other"
    assert (await store.put([group("c")], 0.0))[0].new
