"""Operations on leases: hand out batches, renew and expire leases, take back what was not delivered."""

from __future__ import annotations

import uuid
from dataclasses import replace

from atroposlib.errors import ApiError
from atroposlib.store.batching import form_batch
from atroposlib.store.ledger import Ledger
from atroposlib.store.protocol import MAX_ATTEMPTS, Lease, LeaseRequest
from atroposlib.store.records import (
    Batch,
    BatchChanged,
    BatchEnded,
    Cause,
    Change,
    Counted,
    Due,
    Ended,
    Outcome,
    Planned,
    TrainerChanged,
    TrainerFacts,
)


def hand_out(ledger: Ledger, request: LeaseRequest, now: float) -> Planned[Lease | None]:
    """The batch that is due first, or a new one; see :meth:`GroupStore.lease`."""
    due = next_due(ledger, request)
    if due is None:
        batch = _form(ledger, request, now)
    else:
        batch = replace(
            due,
            state="leased",
            trainer_id=request.trainer_id,
            attempt=due.attempt + 1,
            expires_at=now + request.lease_s,
        )
    if batch is None:
        return None, []
    groups = tuple(ledger.groups[group_id].facts for group_id in batch.group_ids)
    lease = Lease(batch.batch_id, batch.attempt, batch.expires_at, groups)
    return lease, [BatchChanged(batch), seen_trainer(ledger, request.trainer_id, now)]


def next_due(ledger: Ledger, request: LeaseRequest) -> Batch | None:
    """The due batch that this trainer gets next; those of another size before it are passed over."""
    return next((batch for batch in _due_for(ledger, request) if _fits(batch, request)), None)


def dissolve_unfit(ledger: Ledger, request: LeaseRequest) -> Planned[None]:
    """Return the groups of due batches that this trainer would get but for their size to the queue."""
    changes: list[Change] = []
    for batch in _due_for(ledger, request):
        if _fits(batch, request):
            break
        changes.append(ended(batch, "dissolved"))
    return None, changes


def expire(ledger: Ledger, now: float) -> Planned[None]:
    """Make batches due whose leases ended."""
    late = [batch for batch in ledger.by_state["leased"].values() if batch.expires_at <= now]
    changes: list[Change] = [due_again(batch, "expired", "the lease expired", now) for batch in late]
    return None, [*changes, Counted("expired", len(late))] if late else []


def heartbeat(ledger: Ledger, batch_id: str, attempt: int, lease_s: float, now: float) -> Planned[float]:
    """Renew a lease, also one that expired and was not handed out again; returns when it ends."""
    batch = ledger.batches.get(batch_id)
    if batch is None:
        check_ended(ledger, batch_id, attempt)
        return now, []
    check_current(batch, attempt)
    if batch.state == "acked":
        # Acked while the renewal was on its way: no lease is left, as with a committed one.
        return now, []
    if batch.state != "leased" and (batch.due is None or batch.due.cause != "expired"):
        raise lease_lost(batch_id)
    due = batch.due if batch.state == "leased" else None
    renewed = replace(batch, state="leased", expires_at=now + lease_s, due=due)
    return renewed.expires_at, [BatchChanged(renewed), seen_trainer(ledger, batch.trainer_id, now)]


def release(ledger: Ledger, batch_id: str, attempt: int) -> Planned[bool]:
    """The batch was not delivered: as if this lease had never been."""
    batch = ledger.batches.get(batch_id)
    if batch is None or batch.state != "leased" or batch.attempt != attempt:
        return False, []
    if batch.attempt == 1:
        return True, [ended(batch, "dissolved")]
    if batch.due is None:
        # It was renewed after it had expired, so its trainer does have it.
        return False, []
    before = replace(batch, state="due", attempt=attempt - 1, trainer_id=batch.due.trainer_id)
    return True, [BatchChanged(before)]


def due_again(batch: Batch, cause: Cause, reason: str, now: float, order: int | None = None) -> BatchChanged:
    """The batch has to be delivered again, or is dead after too many deliveries since it was last acked."""
    dead = batch.attempt - batch.acked_attempt >= MAX_ATTEMPTS
    due = Due(cause, reason, now, batch.trainer_id, order)
    return BatchChanged(replace(batch, state="dead" if dead else "due", due=due))


def ended(batch: Batch, outcome: Outcome) -> BatchEnded:
    """The batch is no more."""
    return BatchEnded(Ended(batch.batch_id, outcome, batch.trainer_id, batch.attempt))


def seen_trainer(ledger: Ledger, trainer_id: str, now: float) -> TrainerChanged:
    """The trainer is there; a new one is noted."""
    known = ledger.trainers.get(trainer_id, TrainerFacts(trainer_id, now))
    return TrainerChanged(replace(known, last_seen=now))


def check_current(batch: Batch, attempt: int | None) -> None:
    """Raises api.lease_lost unless this attempt is the batch's latest and was not withdrawn."""
    withdrawn = batch.state in ("due", "dead") and batch.due is not None and batch.due.cause == "withdrawn"
    if withdrawn or attempt not in (None, batch.attempt):
        raise lease_lost(batch.batch_id)


def check_ended(ledger: Ledger, batch_id: str, attempt: int | None) -> None:
    """Raises unless this very delivery of the batch was committed."""
    known = ledger.ended.get(batch_id)
    if known is None:
        raise unknown_batch(batch_id)
    if known.outcome != "committed" or attempt not in (None, known.attempt):
        raise lease_lost(batch_id)


def lease_lost(batch_id: str) -> ApiError:
    """The error for a lease that no longer holds its batch."""
    return ApiError(
        "the lease is lost: the batch was taken back or delivered again since",
        code="api.lease_lost",
        where=batch_id,
        fix="drop the batch; it comes again with another attempt",
    )


def unknown_batch(batch_id: str) -> ApiError:
    """The error for a batch that the store does not know."""
    return ApiError("no such batch", code="api.unknown_batch", where=batch_id)


def _due_for(ledger: Ledger, request: LeaseRequest) -> list[Batch]:
    """Due batches in the order of delivery to this trainer: reserved ones, then anyone's, oldest first."""
    open_to_all: list[tuple[int, str]] = []
    reserved: list[tuple[int, str]] = []
    for batch in ledger.by_state["due"].values():
        if batch.due is None or batch.due.order is None:
            open_to_all.append((batch.number, batch.batch_id))
        elif batch.due.trainer_id == request.trainer_id:
            reserved.append((batch.due.order, batch.batch_id))
    return [ledger.batches[batch_id] for _, batch_id in sorted(reserved) + sorted(open_to_all)]


def _fits(batch: Batch, request: LeaseRequest) -> bool:
    """Once acked, a batch comes again as it was, whatever size its trainer asks for now."""
    reserved = batch.due is not None and batch.due.order is not None
    return batch.sequences == request.sequences or (reserved and batch.acked_attempt > 0)


def _form(ledger: Ledger, request: LeaseRequest, now: float) -> Batch | None:
    if ledger.queue.sequences < request.sequences:
        return None
    chosen = form_batch(ledger.queue.front(request.sequences), request.sequences, request.minimums)
    if chosen is None:
        return None
    return Batch(
        batch_id=uuid.uuid4().hex,
        number=ledger.next_number,
        group_ids=tuple(facts.group_id for facts in chosen),
        sequences=request.sequences,
        state="leased",
        trainer_id=request.trainer_id,
        attempt=1,
        expires_at=now + request.lease_s,
    )
