"""What every queue engine does: keep accepted groups, lease batches, count where each group went.

A group is always in exactly one place, so at all times
``received = queued + leased + trained + sum(dropped) + dead``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from atroposlib.wire.posted import PostedGroup

LARGER_THAN_BATCH = "larger_than_batch"
"""Reason of a drop: the group has more sequences than a batch, so no batch can ever hold it."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A batch that was handed out and is not settled yet.

    Attributes:
        batch_id: Names the lease in ``ack`` and ``release``.
        groups: The groups of the batch, oldest first.
    """

    batch_id: str
    groups: tuple[PostedGroup, ...]


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
        queued, leased, trained, dead, dropped: Where the received groups are; dropped by reason.
        queued_sequences: Sequences in all queued groups.
        by_env: The queue of each environment that has something queued; None for groups without one.
    """

    received: int = 0
    duplicates: int = 0
    queued: int = 0
    leased: int = 0
    trained: int = 0
    dead: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    queued_sequences: int = 0
    by_env: Mapping[int | None, EnvQueue] = field(default_factory=dict)


class GroupStore(Protocol):
    """A durable or volatile queue of groups. Every method is atomic."""

    async def put(self, groups: Sequence[PostedGroup]) -> list[PostedGroup]:
        """Accept all groups or none; a known ``group_id`` is counted as a duplicate and not stored again.

        Returns:
            Those that were new.

        Raises:
            ApiError: api.queue_full when the store holds as much as it may; nothing was stored.
        """
        ...

    async def lease(self, sequences: int, minimums: Mapping[int, int]) -> Lease | None:
        """Hand out a batch of exactly ``sequences`` sequences, oldest first, or None when none can be formed.

        Groups larger than the batch are dropped. ``minimums`` gives for some environments the sequences that
        the batch has to hold; see :func:`atroposlib.store.batching.form_batch`.
        """
        ...

    async def ack(self, batch_id: str) -> bool:
        """Settle a lease: its groups are trained. False when there is no such lease (any more)."""
        ...

    async def release(self, batch_id: str) -> bool:
        """Put a lease's groups back to where they were in the queue. False like ``ack``."""
        ...

    async def latest(self) -> PostedGroup | None:
        """The group accepted last, wherever it is now."""
        ...

    async def stats(self) -> StoreStats:
        """The counts at this moment; cheap enough to be asked ten times a second by each environment."""
        ...

    async def reset(self) -> None:
        """Forget all groups, leases and counts."""
        ...
