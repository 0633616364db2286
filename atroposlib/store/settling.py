"""Operations that settle batches: ack, commit, refuse, and dead letters."""

from __future__ import annotations

from dataclasses import replace

from atroposlib.store.leasing import (
    check_current,
    check_ended,
    due_again,
    ended,
    lease_lost,
    seen_trainer,
    unknown_batch,
)
from atroposlib.store.ledger import Ledger
from atroposlib.store.protocol import DeadLetter
from atroposlib.store.records import (
    Batch,
    BatchChanged,
    Change,
    Counted,
    GroupSettled,
    Planned,
    RunChanged,
    TrainerChanged,
)


def ack(ledger: Ledger, batch_id: str, attempt: int | None, now: float, commit: bool) -> Planned[int]:
    """The batch is trained; see :meth:`GroupStore.ack`. Returns the step."""
    batch = ledger.batches.get(batch_id)
    if batch is None:
        check_ended(ledger, batch_id, attempt)
        return ledger.run.step, []
    check_current(batch, attempt)
    if batch.state == "acked" and not commit:
        return ledger.run.step, []
    run, changes = ledger.run, list[Change]()
    if batch.acked_attempt == 0:
        run = replace(run, step=run.step + 1)
        changes.append(RunChanged(run))
    trainer = seen_trainer(ledger, batch.trainer_id, now)
    if commit:
        trainer = TrainerChanged(replace(trainer.trainer, last_committed=batch_id))
        changes += committed(ledger, batch, now)
    else:
        acked = replace(batch, state="acked", acked_attempt=batch.attempt, order=ledger.next_order, due=None)
        changes.append(BatchChanged(acked))
    return run.step, [*changes, trainer]


def nack(ledger: Ledger, batch_id: str, attempt: int | None, reason: str, now: float) -> Planned[None]:
    """The trainer cannot use the batch now: it is due at once."""
    batch = ledger.batches.get(batch_id)
    if batch is None:
        check_ended(ledger, batch_id, attempt)
        raise lease_lost(batch_id)
    check_current(batch, attempt)
    if batch.state == "acked":
        raise lease_lost(batch_id)
    if batch.state != "leased":
        return None, []
    # What its trainer is to get in the order of its former acks stays its own, in its place.
    order = None if batch.due is None else batch.due.order
    due = due_again(batch, "refused", reason, now, order)
    return None, [due, seen_trainer(ledger, batch.trainer_id, now)]


def commit(ledger: Ledger, trainer_id: str, batch_id: str, now: float) -> Planned[int]:
    """The batch and all that its trainer acked before it are in a durable checkpoint; returns how many."""
    batch = ledger.batches.get(batch_id)
    if batch is None:
        known = ledger.ended.get(batch_id)
        if known is None or known.outcome != "committed" or known.trainer_id != trainer_id:
            raise unknown_batch(batch_id)
        return 0, []
    if batch.state != "acked" or batch.trainer_id != trainer_id:
        raise unknown_batch(batch_id)
    done = [other for other in acked_by(ledger, trainer_id) if other.order <= batch.order]
    changes = [change for other in done for change in committed(ledger, other, now)]
    trainer = replace(seen_trainer(ledger, trainer_id, now).trainer, last_committed=batch_id)
    return len(done), [*changes, TrainerChanged(trainer)]


def acked_by(ledger: Ledger, trainer_id: str) -> list[Batch]:
    """The uncommitted batches of a trainer in the order of their acks."""
    acked = (batch for batch in ledger.by_state["acked"].values() if batch.trainer_id == trainer_id)
    return sorted(acked, key=lambda batch: batch.order)


def committed(ledger: Ledger, batch: Batch, now: float) -> list[Change]:
    """A trained batch is settled for good."""
    settled = [GroupSettled(ledger.groups[group_id], now) for group_id in batch.group_ids]
    return [*settled, Counted("committed", len(settled)), ended(batch, "committed")]


def dead_letters(ledger: Ledger) -> list[DeadLetter]:
    """Dead batches, the longest dead first."""
    letters = [
        DeadLetter(
            batch_id=batch.batch_id,
            attempts=batch.attempt,
            since=batch.due.since,
            reason=batch.due.reason,
            groups=tuple(ledger.groups[group_id].facts for group_id in batch.group_ids),
        )
        for batch in ledger.by_state["dead"].values()
        if batch.due is not None
    ]
    return sorted(letters, key=lambda letter: letter.since)


def requeue(ledger: Ledger, batch_id: str | None) -> Planned[int]:
    """Put dead batches' groups back to their places in the queue; returns how many groups."""
    dead = ledger.by_state["dead"]
    if batch_id is not None and batch_id not in dead:
        raise unknown_batch(batch_id)
    chosen = list(dead.values()) if batch_id is None else [dead[batch_id]]
    changes: list[Change] = [
        ended(batch, "dissolved") for batch in sorted(chosen, key=lambda batch: -batch.number)
    ]
    return sum(len(batch.group_ids) for batch in chosen), changes
