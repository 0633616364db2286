"""What every store promises of the run: trainers that come back, environments, the step."""

from __future__ import annotations

import pytest

from atroposlib.store.protocol import ATROPOS_TRAINER, MAX_ATTEMPTS, EnvRecord, GroupStore
from tests.store.support import (
    asks,
    conserved,
    env_registration,
    leased,
    names,
    put,
    refused,
    registration,
)

SILENT_S = 60.0


async def trained(store: GroupStore, count: int) -> list[str]:
    """Ids of so many batches, leased and acked by trainer t."""
    for number in range(count):
        await put(store, f"{number}a", f"{number}b")
    ids = [(await leased(store)).batch_id for _ in range(count)]
    for batch_id in ids:
        await store.ack(batch_id, 1, 0.0)
    return ids


async def test_a_new_run_has_nothing(store: GroupStore) -> None:
    run = await store.run()
    assert (run.registration, run.step, run.started, run.envs, run.trainers) == (None, 0, False, (), ())


async def test_the_first_registration_sets_the_run(store: GroupStore) -> None:
    await store.register(registration(starting_step=7), 3.0)
    run = await store.run()
    assert (run.registration, run.step, run.started) == (registration(starting_step=7), 7, False)
    (trainer,) = run.trainers
    assert (trainer.trainer_id, trainer.last_seen) == (ATROPOS_TRAINER, 3.0)


async def test_an_equal_registration_keeps_the_step_and_another_sets_it(store: GroupStore) -> None:
    await store.register(registration(), 0.0)
    await trained(store, 1)
    await store.register(registration(), 1.0)
    assert (await store.run()).step == 1
    await store.register(registration(starting_step=5), 2.0)
    run = await store.run()
    assert (run.step, run.registration) == (5, registration(starting_step=5))


async def test_a_returning_trainer_keeps_the_step_whatever_it_registers(store: GroupStore) -> None:
    await store.register_trainer("t", registration(), None, 0.0)
    (batch_id,) = await trained(store, 1)
    await store.register_trainer("t", registration(starting_step=5), batch_id, 0.0)
    run = await store.run()
    assert (run.step, run.registration) == (1, registration(starting_step=5))
    await store.register_trainer("new", registration(starting_step=9), None, 0.0)
    assert (await store.run()).step == 9


async def test_a_returning_trainer_gets_what_its_checkpoint_lacks(store: GroupStore) -> None:
    await store.register_trainer("t", registration(), None, 0.0)
    ids = await trained(store, 4)
    assert await store.register_trainer("t", registration(), ids[1], 1.0) == 2
    stats = await store.stats()
    assert (stats.trained, stats.uncommitted, stats.due, stats.leased) == (4, 0, 2, 4)
    assert conserved(stats)
    again = [await leased(store, now=1.0) for _ in range(2)]
    assert [(lease.batch_id, lease.attempt) for lease in again] == [(ids[2], 2), (ids[3], 2)]
    assert [await store.ack(lease.batch_id, 2, 1.0) for lease in again] == [4, 4]
    assert (await store.run()).trainers[0].last_committed == ids[1]


@pytest.mark.parametrize("last_committed", [None, "unknown"])
async def test_a_trainer_with_fresh_weights_gets_all_again(
    store: GroupStore, last_committed: str | None
) -> None:
    await store.register_trainer("t", registration(), None, 0.0)
    ids = await trained(store, 2)
    assert await store.register_trainer("t", registration(), last_committed, 1.0) == 2
    assert [(await leased(store)).batch_id for _ in range(2)] == ids


@pytest.mark.parametrize("state", ["leased", "expired", "refused", "dead"])
async def test_what_a_checkpoint_holds_is_not_trained_again_though_its_ack_never_came(
    store: GroupStore, state: str
) -> None:
    """A power cut took the ack, or the trainer was killed between its checkpoint and the ack."""
    await store.register_trainer("t", registration(), None, 0.0)
    (first,) = await trained(store, 1)
    await put(store, "c", "d")
    last = await leased(store)
    if state == "expired":
        await store.sweep(10.0)
    elif state == "refused":
        await store.nack(last.batch_id, 1, "no", 0.0)
    elif state == "dead":
        for attempt in range(1, MAX_ATTEMPTS + 1):
            await store.nack(last.batch_id, attempt, "no", 0.0)
            await store.lease(asks(), 0.0)
    assert await store.register_trainer("t", registration(), last.batch_id, 11.0) == 0
    stats, run = await store.stats(), await store.run()
    assert (stats.trained, stats.uncommitted, stats.leased, stats.dead, run.step) == (4, 0, 0, 0, 2)
    assert conserved(stats)
    assert run.trainers[0].last_committed == last.batch_id
    assert [await store.commit("t", batch_id, 12.0) for batch_id in (first, last.batch_id)] == [0, 0]


async def test_a_checkpoint_that_is_named_late_still_counts(store: GroupStore) -> None:
    """A trainer that was started without its checkpoint by mistake, and again with it."""
    await store.register_trainer("t", registration(), None, 0.0)
    ids = await trained(store, 3)
    assert await store.register_trainer("t", registration(), None, 1.0) == 3
    await leased(store, now=1.0)
    assert await store.register_trainer("t", registration(), ids[1], 2.0) == 1
    assert (await leased(store, now=2.0)).batch_id == ids[2]
    assert ((await store.run()).step, (await store.stats()).trained) == (3, 4)


async def test_what_another_trainer_has_is_not_taken_from_it(store: GroupStore) -> None:
    await store.register_trainer("t", registration(), None, 0.0)
    await put(store, "a", "b")
    lease = await leased(store)
    await leased(store, now=11.0, trainer_id="other")
    await store.register_trainer("t", registration(), lease.batch_id, 12.0)
    assert await store.ack(lease.batch_id, 2, 12.0) == 1


async def test_a_refused_replay_keeps_its_place(store: GroupStore) -> None:
    await store.register_trainer("t", registration(), None, 0.0)
    ids = await trained(store, 3)
    await store.register_trainer("t", registration(), None, 1.0)
    await store.ack((await leased(store, now=1.0)).batch_id, 2, 1.0)
    await store.nack((await leased(store, now=1.0)).batch_id, 2, "the trainer ends", 1.0)
    await store.register_trainer("t", registration(), None, 2.0)
    assert [(await leased(store, now=2.0)).batch_id for _ in range(3)] == ids


async def test_batches_come_again_in_the_order_of_their_acks(store: GroupStore) -> None:
    await store.register_trainer("t", registration(), None, 0.0)
    await put(store, *"abcdef")
    ids = [(await leased(store)).batch_id for _ in range(3)]
    for batch_id in (ids[2], ids[0]):
        await store.ack(batch_id, 1, 0.0)
    assert await store.register_trainer("t", registration(), None, 1.0) == 3
    assert [(await leased(store)).batch_id for _ in range(3)] == [ids[2], ids[0], ids[1]]


async def test_the_order_survives_a_second_restart_in_the_middle(store: GroupStore) -> None:
    await store.register_trainer("t", registration(), None, 0.0)
    await put(store, *"abcdef")
    formed = [(await leased(store)).batch_id for _ in range(3)]
    acked = [formed[1], formed[2], formed[0]]
    for batch_id in acked:
        await store.ack(batch_id, 1, 0.0)
    await store.register_trainer("t", registration(), None, 1.0)
    first = await leased(store)
    await store.ack(first.batch_id, 2, 1.0)
    await leased(store)
    assert await store.register_trainer("t", registration(), None, 2.0) == 3
    assert [(await leased(store)).batch_id for _ in range(3)] == acked


async def test_what_is_due_for_one_trainer_is_not_given_to_another(store: GroupStore) -> None:
    await store.register_trainer("t", registration(), None, 0.0)
    (batch_id,) = await trained(store, 1)
    await store.register_trainer("t", registration(), None, 1.0)
    assert await store.lease(asks("other"), 1.0) is None
    assert (await leased(store, now=1.0)).batch_id == batch_id
    assert (await leased(store, now=11.0, trainer_id="other")).batch_id == batch_id


async def test_acked_batches_come_again_whatever_size_is_asked_for(store: GroupStore) -> None:
    await store.register_trainer("t", registration(), None, 0.0)
    (batch_id,) = await trained(store, 1)
    await put(store, "c", "d")
    open_lease = await leased(store)
    await store.register_trainer("t", registration(batch_size=12), None, 1.0)
    await put(store, "e")
    assert (await leased(store, sequences=12)).batch_id == batch_id
    assert names(await store.lease(asks(sequences=12), 1.0)) == ["c", "d", "e"]
    assert await refused(store.ack(open_lease.batch_id, 1, 1.0)) == "api.lease_lost"


@pytest.mark.parametrize("call", ["ack", "ack current", "nack", "heartbeat"])
@pytest.mark.parametrize("state", ["leased", "acked", "expired"])
async def test_the_former_life_of_a_trainer_has_no_say(store: GroupStore, state: str, call: str) -> None:
    await store.register_trainer("t", registration(), None, 0.0)
    await put(store, "a", "b")
    lease = await leased(store)
    if state == "acked":
        await store.ack(lease.batch_id, 1, 0.0)
    elif state == "expired":
        await store.sweep(10.0)
    assert await store.register_trainer("t", registration(), None, 11.0) == 1
    calls = {
        "ack": lambda: store.ack(lease.batch_id, 1, 12.0),
        "ack current": lambda: store.ack(lease.batch_id, None, 12.0),
        "nack": lambda: store.nack(lease.batch_id, 1, "busy", 12.0),
        "heartbeat": lambda: store.heartbeat(lease.batch_id, 1, 10.0, 12.0),
    }
    assert await refused(calls[call]()) == "api.lease_lost"
    assert (await leased(store, now=13.0)).batch_id == lease.batch_id


async def test_replays_that_were_acked_are_not_counted_as_failures(store: GroupStore) -> None:
    await store.register_trainer("t", registration(), None, 0.0)
    await put(store, "a", "b")
    for attempt in range(1, MAX_ATTEMPTS + 3):
        lease = await leased(store)
        assert lease.attempt == attempt
        assert await store.ack(lease.batch_id, attempt, 0.0) == 1
        await store.register_trainer("t", registration(), None, 0.0)
    assert (await store.stats()).dead == 0


async def test_a_batch_that_kills_its_trainer_again_and_again_is_dead(store: GroupStore) -> None:
    await store.register_trainer("t", registration(), None, 0.0)
    await put(store, "a", "b")
    for _ in range(MAX_ATTEMPTS):
        await leased(store)
        replayed = await store.register_trainer("t", registration(), None, 0.0)
    assert replayed == 0
    (letter,) = await store.dead_letters()
    assert await refused(store.ack(letter.batch_id, MAX_ATTEMPTS, 0.0)) == "api.lease_lost"


async def test_a_forgotten_trainers_acks_are_committed_and_its_leases_due_for_others(
    store: GroupStore,
) -> None:
    await store.register_trainer("t", registration(), None, 0.0)
    await trained(store, 1)
    await put(store, "c", "d")
    lease = await leased(store)
    await store.forget_trainer("t", 1.0)
    stats = await store.stats()
    assert (stats.trained, stats.uncommitted, stats.due) == (2, 0, 1)
    assert (await store.run()).trainers == ()
    assert await refused(store.ack(lease.batch_id, 1, 1.0)) == "api.lease_lost"
    assert (await leased(store, now=1.0, trainer_id="other")).batch_id == lease.batch_id
    assert await refused(store.forget_trainer("t", 1.0)) == "api.unknown_trainer"


async def test_what_was_reserved_for_a_forgotten_trainer_is_for_all(store: GroupStore) -> None:
    await store.register_trainer("t", registration(), None, 0.0)
    (batch_id,) = await trained(store, 1)
    await store.register_trainer("t", registration(), None, 1.0)
    await store.forget_trainer("t", 2.0)
    assert (await leased(store, trainer_id="other")).batch_id == batch_id


async def test_the_first_question_for_a_batch_starts_the_run(store: GroupStore) -> None:
    await store.register(registration(), 0.0)
    await store.start(ATROPOS_TRAINER, 5.0)
    await store.start(ATROPOS_TRAINER, 6.0)
    await store.start("other", 7.0)
    run = await store.run()
    assert run.started
    assert [(trainer.trainer_id, trainer.last_seen) for trainer in run.trainers] == [
        (ATROPOS_TRAINER, 6.0),
        ("other", 7.0),
    ]


async def test_environments_are_numbered_and_namesakes_told_apart(store: GroupStore) -> None:
    records = [
        await store.register_env(env_registration(desired_name=name), 1.0, SILENT_S)
        for name in ("math", "code", "math")
    ]
    assert [(record.env_id, record.name) for record in records] == [
        (0, "math_0"),
        (1, "code_0"),
        (2, "math_1"),
    ]
    assert (await store.run()).envs == tuple(records)
    assert records[0] == EnvRecord(0, "math_0", env_registration(desired_name="math"), 1.0, 1.0)


async def test_an_identity_gets_its_record_again(store: GroupStore) -> None:
    first = await store.register_env(env_registration(identity="me"), 0.0, SILENT_S)
    other = await store.register_env(env_registration(identity="you"), 0.0, SILENT_S)
    await store.leave_env(first.env_id)
    again = await store.register_env(env_registration(identity="me", weight=2.0), 1.0, SILENT_S)
    assert (again.env_id, again.name, again.left, again.registration.weight) == (0, "env_0", False, 2.0)
    assert other.env_id == 1


@pytest.mark.parametrize("gone", ["left", "silent", "neither"])
async def test_the_record_of_a_namesake_that_is_gone_is_taken_over(store: GroupStore, gone: str) -> None:
    first = await store.register_env(env_registration(), 0.0, SILENT_S)
    if gone == "left":
        await store.leave_env(first.env_id)
    again = await store.register_env(env_registration(), 60.0 if gone == "silent" else 59.0, SILENT_S)
    assert again.env_id == (1 if gone == "neither" else 0)


@pytest.mark.parametrize("other", [{"group_size": 8}, {"desired_name": "other"}, {"identity": "me"}])
async def test_only_a_like_environment_takes_a_record_over(
    store: GroupStore, other: dict[str, object]
) -> None:
    first = await store.register_env(env_registration(**other), 0.0, SILENT_S)
    await store.leave_env(first.env_id)
    assert (await store.register_env(env_registration(), 100.0, SILENT_S)).env_id == 1


async def test_a_renamed_environment_leaves_no_two_of_one_name(store: GroupStore) -> None:
    await store.register_env(env_registration(desired_name="a", identity="me"), 0.0, SILENT_S)
    await store.register_env(env_registration(desired_name="b", identity="me"), 0.0, SILENT_S)
    record = await store.register_env(env_registration(desired_name="a"), 0.0, SILENT_S)
    assert record.name == "a_1"


async def test_a_call_is_a_sign_of_life(store: GroupStore) -> None:
    env = await store.register_env(env_registration(), 0.0, SILENT_S)
    assert await store.leave_env(env.env_id)
    assert (await store.run()).envs[0].left
    for env_id in (env.env_id, None, 5, -1):
        await store.see_env(env_id, 7.0)
    assert [(env.last_seen, env.left) for env in (await store.run()).envs] == [(7.0, False)]


async def test_an_unknown_environment_cannot_leave(store: GroupStore) -> None:
    await store.register_env(env_registration(), 0.0, SILENT_S)
    assert not await store.leave_env(1)
    assert not await store.leave_env(-1)
