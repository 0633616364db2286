"""Operations on the run: trainers and environments come, come back and leave."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from atroposlib.errors import ApiError
from atroposlib.store.leasing import due_again, seen_trainer
from atroposlib.store.ledger import Ledger
from atroposlib.store.protocol import ATROPOS_TRAINER, EnvRecord
from atroposlib.store.records import (
    Batch,
    BatchChanged,
    Change,
    EnvChanged,
    Planned,
    RunChanged,
    RunFacts,
    TrainerChanged,
    TrainerForgotten,
)
from atroposlib.store.settling import acked_by, committed
from atroposlib.wire.registrations import EnvRegistration, Registration


def register(ledger: Ledger, registration: Registration, now: float) -> Planned[None]:
    """Take a registration of POST /register."""
    run = _new_run(ledger, registration, False)
    changes: list[Change] = [] if run == ledger.run else [RunChanged(run)]
    return None, [*changes, seen_trainer(ledger, ATROPOS_TRAINER, now)]


def register_trainer(
    ledger: Ledger, trainer_id: str, registration: Registration, last_committed: str | None, now: float
) -> Planned[int]:
    """Take a registration of POST /v1/trainers; returns how many batches are reserved for it."""
    run = _new_run(ledger, registration, trainer_id in ledger.trainers)
    trainer = seen_trainer(ledger, trainer_id, now).trainer
    done = _trained_up_to(ledger, trainer_id, last_committed)
    if done:
        trainer = replace(trainer, last_committed=last_committed)
        run = replace(run, step=run.step + sum(batch.acked_attempt == 0 for batch in done))
    changes: list[Change] = [] if run == ledger.run else [RunChanged(run)]
    changes += [change for batch in done for change in committed(ledger, batch, now)]
    changes += _withdraw_dead(ledger, trainer_id, done)
    later = [
        batch for batch in [*acked_by(ledger, trainer_id), *_out(ledger, trainer_id)] if batch not in done
    ]
    again = [
        due_again(batch, "withdrawn", "its trainer started again", now, ledger.next_order + index)
        for index, batch in enumerate(later)
    ]
    reserved = sum(change.batch.state == "due" for change in again)
    return reserved, [*changes, *again, TrainerChanged(trainer)]


def forget_trainer(ledger: Ledger, trainer_id: str, now: float) -> Planned[None]:
    """The trainer will not come back: its acks are committed, its leases are due for others."""
    if trainer_id not in ledger.trainers:
        raise ApiError("no such trainer", code="api.unknown_trainer", where=trainer_id)
    changes = [change for batch in acked_by(ledger, trainer_id) for change in committed(ledger, batch, now)]
    changes += _withdraw_dead(ledger, trainer_id)
    changes += [due_again(batch, "withdrawn", "its trainer left", now) for batch in _out(ledger, trainer_id)]
    return None, [*changes, TrainerForgotten(trainer_id)]


def start(ledger: Ledger, trainer_id: str, now: float) -> Planned[None]:
    """A trainer asks for a batch."""
    if not ledger.run.started:
        run = replace(ledger.run, started=True)
        return None, [RunChanged(run), seen_trainer(ledger, trainer_id, now)]
    if trainer_id not in ledger.trainers:
        return None, [seen_trainer(ledger, trainer_id, now)]
    ledger.see_trainer(trainer_id, now)
    return None, []


def register_env(
    ledger: Ledger, registration: EnvRegistration, now: float, silent_s: float
) -> Planned[EnvRecord]:
    """Give an environment its id and name, new ones or those that it had."""
    known = _known_env(ledger, registration, now, silent_s)
    if known is None:
        name = _free_name(ledger, registration.desired_name)
        record = EnvRecord(len(ledger.envs), name, registration, last_seen=now, last_group=now)
    else:
        record = replace(known, registration=registration, last_seen=now, last_group=now, left=False)
    return record, [EnvChanged(record)]


def leave_env(ledger: Ledger, env_id: int) -> Planned[bool]:
    """An environment disconnects; False when it is unknown."""
    if not 0 <= env_id < len(ledger.envs):
        return False, []
    return True, [EnvChanged(replace(ledger.envs[env_id], left=True))]


def _new_run(ledger: Ledger, registration: Registration, known: bool) -> RunFacts:
    if registration == ledger.run.registration:
        return ledger.run
    goes_on = known and ledger.run.registration is not None
    step = ledger.run.step if goes_on else registration.starting_step
    return replace(ledger.run, registration=registration, step=step)


def _trained_up_to(ledger: Ledger, trainer_id: str, batch_id: str | None) -> list[Batch]:
    """A trainer's batches that are in the weights of a checkpoint which ends with ``batch_id``, in order."""
    last = None if batch_id is None else ledger.batches.get(batch_id)
    if last is None or last.trainer_id != trainer_id:
        return []
    acked = acked_by(ledger, trainer_id)
    if last.state == "acked":
        return [batch for batch in acked if batch.order <= last.order]
    # Its ack never came or was lost with the machine's power, so it is the trainer's latest; or the trainer
    # came back before without its checkpoint, so it waits to be replayed, as do those acked before it.
    place = _place(trainer_id)
    replayed = [
        batch for batch in _out(ledger, trainer_id) if batch.acked_attempt > 0 and place(batch) < place(last)
    ]
    return [*acked, *replayed, last]


def _out(ledger: Ledger, trainer_id: str) -> list[Batch]:
    """Batches that a trainer has or had last and that are not acked, in the order of their delivery."""
    states = (ledger.by_state["leased"], ledger.by_state["due"])
    out = (batch for state in states for batch in state.values() if batch.trainer_id == trainer_id)
    return sorted(out, key=_place(trainer_id))


def _place(trainer_id: str) -> Callable[[Batch], tuple[bool, int]]:
    """The key that sorts a trainer's batches: what is reserved for it comes first, then the oldest."""

    def place(batch: Batch) -> tuple[bool, int]:
        order = None if batch.due is None or batch.due.trainer_id != trainer_id else batch.due.order
        return (True, batch.number) if order is None else (False, order)

    return place


def _withdraw_dead(ledger: Ledger, trainer_id: str, done: Collection[Batch] = ()) -> list[Change]:
    """What the trainer's former life says of its dead batches no longer counts."""
    return [
        BatchChanged(replace(batch, due=replace(batch.due, cause="withdrawn")))
        for batch in ledger.by_state["dead"].values()
        if batch.due is not None and batch.trainer_id == trainer_id and batch not in done
    ]


def _known_env(
    ledger: Ledger, registration: EnvRegistration, now: float, silent_s: float
) -> EnvRecord | None:
    if registration.identity is not None:
        same = (env for env in ledger.envs if env.registration.identity == registration.identity)
        return next(same, None)
    gone = (
        env
        for env in ledger.envs
        if env.registration.identity is None
        and env.registration.desired_name == registration.desired_name
        and env.registration.group_size == registration.group_size
        and (env.left or now - env.last_seen >= silent_s)
    )
    return next(gone, None)


def _free_name(ledger: Ledger, desired: str) -> str:
    taken = {env.name for env in ledger.envs}
    number = sum(env.registration.desired_name == desired for env in ledger.envs)
    while f"{desired}_{number}" in taken:
        number += 1
    return f"{desired}_{number}"
