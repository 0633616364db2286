"""What every engine does: keep accepted groups, lease batches, remember the run, count where each group went.

All state of a run lives behind this protocol, so an API process can be restarted or have siblings. Times are
unix seconds and given by the caller. A group is always in exactly one place, so at all times
``received = queued + leased + trained + sum(dropped) + dead``.

A batch goes ``leased -> acked -> committed``. A lease that expires, is refused (nack) or whose trainer comes
back is *due*: it is delivered again under the same id and with the same groups; a due batch counts as leased.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from atroposlib.wire.posted import GroupFacts, PostedGroup
from atroposlib.wire.registrations import EnvRegistration, Registration

LARGER_THAN_BATCH = "larger_than_batch"
"""Reason of a drop: the group has more sequences than a batch, so no batch can ever hold it."""

POLICY_LAG = "policy_lag"
"""Reason of a drop: the group was sampled more than ``max_policy_lag`` steps ago."""

MAX_ATTEMPTS = 5
"""Deliveries of a batch after which it is a dead letter instead of being delivered again."""

ATROPOS_TRAINER = "atropos"
"""Trainer id of whoever asks GET /batch."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """What became of one posted group.

    Attributes:
        group_id: The id under which it is stored; of a repeated body, the first one's.
        new: False for a duplicate.
    """

    group_id: str
    new: bool


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """What a trainer asks for.

    Attributes:
        trainer_id: Who asks.
        sequences: Exact number of sequences of the batch.
        lease_s: Seconds until the batch is delivered again unless acked or renewed.
        minimums: Sequences that the batch has to hold of some environments; see
            :func:`atroposlib.store.batching.form_batch`.
    """

    trainer_id: str
    sequences: int
    lease_s: float
    minimums: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Lease:
    """A batch that is handed out.

    Attributes:
        batch_id: Names the batch for ever, also when it is delivered again.
        attempt: 1 at the first delivery; tells an old lease of the batch from the current one.
        expires_at: Unix seconds.
        groups: The groups of the batch, oldest first; their bytes come from ``payload``.
    """

    batch_id: str
    attempt: int
    expires_at: float
    groups: tuple[GroupFacts, ...]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A batch that was delivered ``MAX_ATTEMPTS`` times since it was last acked.

    Attributes:
        batch_id: The batch.
        attempts: Deliveries.
        since: Unix seconds.
        reason: What the last nack said, or that the lease expired.
        groups: Its groups.
    """

    batch_id: str
    attempts: int
    since: float
    reason: str
    groups: tuple[GroupFacts, ...]


@dataclass(frozen=True, slots=True)
class EnvRecord:
    """One registered environment.

    Attributes:
        env_id: Index in the order of registration.
        name: ``<desired_name>_<number of earlier ones with that name>``.
        registration: Its own words, the latest.
        last_seen: When it last called.
        last_group: When it last posted a new group; its registration at first.
        groups_received: Distinct groups of it that were accepted.
        left: It said that it disconnects and has not called since.
    """

    env_id: int
    name: str
    registration: EnvRegistration
    last_seen: float
    last_group: float
    groups_received: int = 0
    left: bool = False


@dataclass(frozen=True, slots=True)
class TrainerRecord:
    """One trainer.

    Attributes:
        trainer_id: Its name.
        last_seen: When it last called.
        last_committed: The batch it committed last, or None.
        leased, acked: Its batches that are out (or due), and those acked and not committed.
    """

    trainer_id: str
    last_seen: float
    last_committed: str | None
    leased: int
    acked: int


@dataclass(frozen=True, slots=True)
class RunState:
    """The run as it is now.

    Attributes:
        registration: The trainer's latest words, None before it came.
        step: The registration's ``starting_step`` plus the distinct batches acked since.
        started: A trainer has asked for a batch, which lets environments in.
        envs: By ``env_id``.
        trainers: In the order of their first registration.
    """

    registration: Registration | None = None
    step: int = 0
    started: bool = False
    envs: tuple[EnvRecord, ...] = ()
    trainers: tuple[TrainerRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class EnvQueue:
    """What of one environment is queued.

    Attributes:
        sequences: Sequences in all its queued groups.
        largest: Sequences of its largest queued group, 0 when nothing is queued.
    """

    sequences: int = 0
    largest: int = 0


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Counts of groups since the store was made or reset, and the queue as it is now.

    Attributes:
        received: Distinct groups accepted.
        duplicates: Posts of a group that had been accepted before; not part of ``received``.
        queued, leased, trained, dead, dropped: Where the received groups are; dropped by reason. ``trained``
            are those of acked and committed batches.
        uncommitted: Those of ``trained`` that are kept until their batch is committed.
        queued_sequences: Sequences in all queued groups.
        held_bytes: Payload bytes of all groups that are kept (queued, leased, uncommitted, dead).
        leases, due, expired: Batches out now, batches to be delivered again, leases that ever expired.
        oldest_queued_at: When the oldest queued group came (unix seconds), None when nothing is queued.
        by_env: The queue of each environment that has something queued; None for groups without one.
    """

    received: int = 0
    duplicates: int = 0
    queued: int = 0
    leased: int = 0
    trained: int = 0
    dead: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    uncommitted: int = 0
    queued_sequences: int = 0
    held_bytes: int = 0
    leases: int = 0
    due: int = 0
    expired: int = 0
    oldest_queued_at: float | None = None
    by_env: Mapping[int | None, EnvQueue] = field(default_factory=dict)


class GroupStore(Protocol):
    """The state of one run. Every method is atomic, and durable (as far as the engine is) when it returns.

    Raises:
        ApiError: store.failed by any method when the engine cannot read or write; nothing was done.
    """

    # --- groups -------------------------------------------------------------------------------------------

    async def put(self, groups: Sequence[PostedGroup], now: float) -> list[Accepted]:
        """Accept all groups or none; a known ``group_id`` or recent ``digest`` is a duplicate, not stored.

        New groups also count for their environments (``last_seen``, ``last_group``, ``groups_received``).

        Returns:
            One entry a group, in order.

        Raises:
            ApiError: api.queue_full when the store holds as much as it may; nothing was stored.
        """
        ...

    async def answered(self, digests: Sequence[str]) -> None:
        """The posters have their answers, so an equal body is a new group from now on.

        Only the Atropos routes call it. Kept in memory: after a restart the digests of the last 60 s are
        known again, since their posters may repeat.
        """
        ...

    async def payload(self, group_id: str) -> bytes:
        """The bytes of a group that is kept. Raises KeyError when it is not (any more)."""
        ...

    async def latest(self) -> GroupFacts | None:
        """The group accepted last that is still kept."""
        ...

    # --- batches ------------------------------------------------------------------------------------------

    async def lease(self, request: LeaseRequest, now: float) -> Lease | None:
        """Hand out a batch, or None when there is none to give.

        First what is due: this trainer's batches that it had acked and not committed when it registered
        again, in the order in which they were acked, then any trainer's due leases of this size, oldest
        first (a due lease of another size is dissolved: its groups return to their places in the queue).
        Otherwise a new batch of exactly ``sequences`` sequences, oldest groups first. Groups larger than both
        this batch and the registered ``batch_size``, and groups older than ``max_policy_lag``, are dropped
        before it is formed.
        """
        ...

    async def heartbeat(self, batch_id: str, attempt: int, lease_s: float, now: float) -> float:
        """Renew a lease; returns when it expires. Raises ApiError like :meth:`ack`."""
        ...

    async def ack(self, batch_id: str, attempt: int | None, now: float, *, commit: bool = False) -> int:
        """The batch is trained; returns the step. The first ack of a batch counts the step up.

        Asking again after the answer got lost changes nothing. An expired lease can still be acked until the
        batch is delivered again. ``attempt`` None means the current one.

        Args:
            batch_id: The batch.
            attempt: The lease's.
            now: Unix seconds.
            commit: Commit just this batch at once.

        Raises:
            ApiError: api.unknown_batch, or api.lease_lost when the batch was delivered again since.
        """
        ...

    async def nack(self, batch_id: str, attempt: int | None, reason: str, now: float) -> None:
        """The trainer cannot use the batch now: it is due at once. Raises ApiError like :meth:`ack`."""
        ...

    async def release(self, batch_id: str, attempt: int) -> bool:
        """The batch was not delivered: as if this lease had never been.

        A batch that was never delivered before is dissolved, its groups return to their places in the queue;
        another one is due with one attempt less. False when the lease is no longer the current one.
        """
        ...

    async def commit(self, trainer_id: str, batch_id: str, now: float) -> int:
        """The batch, and all that its trainer acked before it, are in a durable checkpoint: forget them.

        Returns:
            Batches committed; 0 when they were already.

        Raises:
            ApiError: api.unknown_batch when this trainer never acked it.
        """
        ...

    async def dead_letters(self) -> list[DeadLetter]:
        """Dead batches, oldest first."""
        ...

    async def requeue(self, batch_id: str | None, now: float) -> int:
        """Put a dead batch's groups (None: those of all) back to their places; returns how many groups.

        Raises:
            ApiError: api.unknown_batch.
        """
        ...

    async def sweep(self, now: float) -> None:
        """Regular housekeeping: expire leases, delete bytes that nobody needs. Called about once a second."""
        ...

    async def wait(self, timeout_s: float) -> None:
        """Return once something was queued or became due since a lease found nothing, or after ``timeout_s``.

        Time alone can make a batch possible too (a minimum is waived), so ask again every second or so.
        """
        ...

    # --- the run ------------------------------------------------------------------------------------------

    async def register(self, registration: Registration, now: float) -> None:
        """Take a registration of POST /register.

        Values equal to the current ones add a trainer to the run and change nothing. Other values replace the
        run's, and the step becomes their ``starting_step``; environments and queued groups stay.
        """
        ...

    async def register_trainer(
        self, trainer_id: str, registration: Registration, last_committed: str | None, now: float
    ) -> int:
        """Take a registration of POST /v1/trainers; returns how many batches it will get again.

        Of a known trainer, batches acked up to ``last_committed`` are committed, the later ones become due
        for this trainer in the order of their acks, and so do its open leases after them. A
        ``last_committed`` that this trainer had last and never acked is counted and committed too, after all
        that it acked: it is in the checkpoint, so it must not come again. With an unknown or no
        ``last_committed`` all its uncommitted batches become due. The step stays when the trainer is
        known; otherwise it is set as by :meth:`register`.
        """
        ...

    async def forget_trainer(self, trainer_id: str, now: float) -> None:
        """The trainer will not come back: what it acked is committed, its leases are due for others.

        Raises:
            ApiError: api.unknown_trainer.
        """
        ...

    async def start(self, trainer_id: str, now: float) -> None:
        """A trainer asks for a batch: the run has started, and the trainer is there."""
        ...

    async def register_env(self, registration: EnvRegistration, now: float, silent_s: float) -> EnvRecord:
        """Give an environment its id and name.

        A known ``identity`` gets its record again. Without one, the record of a namesake of the same
        ``group_size`` that left or was silent for ``silent_s`` is taken over; otherwise a new one is made.
        """
        ...

    async def see_env(self, env_id: int | None, now: float) -> None:
        """An environment called; an unknown one is nobody. Durable only within some seconds."""
        ...

    async def leave_env(self, env_id: int) -> bool:
        """An environment disconnects; False when it is unknown."""
        ...

    async def run(self) -> RunState:
        """The run as it is now; cheap."""
        ...

    # --- the whole ----------------------------------------------------------------------------------------

    async def stats(self) -> StoreStats:
        """The counts at this moment; cheap enough to be asked ten times a second by each environment."""
        ...

    async def reset(self) -> None:
        """Forget groups, batches, counts and the run."""
        ...

    async def close(self) -> None:
        """Finish writes and let go of files."""
        ...
