"""The queue in this process's memory: fast, and gone when the process ends."""

from __future__ import annotations

import uuid
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Mapping, Sequence

from atroposlib.errors import ApiError
from atroposlib.store.batching import form_batch
from atroposlib.store.protocol import LARGER_THAN_BATCH, EnvQueue, Lease, StoreStats
from atroposlib.wire.posted import PostedGroup

REMEMBERED_IDS = 100_000
"""Settled groups whose ids are still recognised in a repeated post; a client repeats within minutes."""


class MemoryStore:
    """A :class:`atroposlib.store.protocol.GroupStore` without durability.

    No method awaits anything, so each is atomic on the event loop.

    Args:
        max_groups: Groups held (queued and leased) from which on posts are refused.
        max_bytes: Payload bytes held from which on posts are refused.
    """

    def __init__(self, max_groups: int, max_bytes: int) -> None:
        self._max_groups = max_groups
        self._max_bytes = max_bytes
        self._arrivals = 0
        self._clear()

    def _clear(self) -> None:
        self._arrival: dict[str, int] = {}  # of every held group, by its id
        self._queue: dict[int, PostedGroup] = {}  # by arrival, oldest first
        self._sizes: defaultdict[int | None, Counter[int]] = defaultdict(
            Counter
        )  # queued sizes by environment
        self._leases: dict[str, Lease] = {}
        self._settled: OrderedDict[str, None] = OrderedDict()
        self._latest: PostedGroup | None = None
        self._held_bytes = 0
        self._queued_sequences = 0
        self._received = 0
        self._duplicates = 0
        self._leased = 0
        self._trained = 0
        self._dropped: Counter[str] = Counter()

    async def put(self, groups: Sequence[PostedGroup]) -> list[PostedGroup]:
        """See :meth:`GroupStore.put`."""
        fresh: dict[str, PostedGroup] = {}
        for group in groups:
            if not self._knows(group.group_id):
                fresh.setdefault(group.group_id, group)
        if fresh and self._is_full():
            raise ApiError(
                "the queue is full",
                code="api.queue_full",
                got=f"{len(self._arrival)} groups, {self._held_bytes} bytes",
                expected=f"less than {self._max_groups} groups, {self._max_bytes} bytes",
                fix="repeat the request later",
            )
        for group in fresh.values():
            self._arrival[group.group_id] = self._arrivals
            self._arrivals += 1
            self._held_bytes += len(group.payload)
            self._enqueue(group)
            self._latest = group
        self._received += len(fresh)
        self._duplicates += len(groups) - len(fresh)
        return list(fresh.values())

    async def lease(self, sequences: int, minimums: Mapping[int, int]) -> Lease | None:
        """See :meth:`GroupStore.lease`."""
        self._drop_larger_than(sequences)
        if self._queued_sequences < sequences:
            return None
        chosen = form_batch(self._queue.values(), sequences, minimums)
        if chosen is None:
            return None
        for group in chosen:
            self._dequeue(group)
        lease = Lease(uuid.uuid4().hex, tuple(chosen))
        self._leases[lease.batch_id] = lease
        self._leased += len(chosen)
        return lease

    async def ack(self, batch_id: str) -> bool:
        """See :meth:`GroupStore.ack`."""
        lease = self._leases.pop(batch_id, None)
        if lease is None:
            return False
        self._leased -= len(lease.groups)
        self._trained += len(lease.groups)
        for group in lease.groups:
            self._settle(group)
        return True

    async def release(self, batch_id: str) -> bool:
        """See :meth:`GroupStore.release`."""
        lease = self._leases.pop(batch_id, None)
        if lease is None:
            return False
        self._leased -= len(lease.groups)
        for group in lease.groups:
            self._enqueue(group)
        self._queue = dict(sorted(self._queue.items()))
        return True

    async def latest(self) -> PostedGroup | None:
        """See :meth:`GroupStore.latest`."""
        return self._latest

    async def stats(self) -> StoreStats:
        """See :meth:`GroupStore.stats`."""
        return StoreStats(
            received=self._received,
            duplicates=self._duplicates,
            queued=len(self._queue),
            leased=self._leased,
            trained=self._trained,
            dropped=dict(self._dropped),
            queued_sequences=self._queued_sequences,
            by_env={
                env_id: EnvQueue(
                    sequences=sum(size * count for size, count in sizes.items()), largest=max(sizes)
                )
                for env_id, sizes in self._sizes.items()
            },
        )

    async def reset(self) -> None:
        """See :meth:`GroupStore.reset`."""
        self._clear()

    def _knows(self, group_id: str) -> bool:
        return group_id in self._arrival or group_id in self._settled

    def _is_full(self) -> bool:
        return len(self._arrival) >= self._max_groups or self._held_bytes >= self._max_bytes

    def _enqueue(self, group: PostedGroup) -> None:
        self._queue[self._arrival[group.group_id]] = group
        self._sizes[group.env_id][group.sequences] += 1
        self._queued_sequences += group.sequences

    def _dequeue(self, group: PostedGroup) -> None:
        del self._queue[self._arrival[group.group_id]]
        self._queued_sequences -= group.sequences
        sizes = self._sizes[group.env_id]
        sizes[group.sequences] -= 1
        if not sizes[group.sequences]:
            del sizes[group.sequences]
        if not sizes:
            del self._sizes[group.env_id]

    def _settle(self, group: PostedGroup) -> None:
        del self._arrival[group.group_id]
        self._held_bytes -= len(group.payload)
        self._settled[group.group_id] = None
        if len(self._settled) > REMEMBERED_IDS:
            self._settled.popitem(last=False)

    def _drop_larger_than(self, sequences: int) -> None:
        if all(max(sizes) <= sequences for sizes in self._sizes.values()):
            return
        for group in [group for group in self._queue.values() if group.sequences > sequences]:
            self._dequeue(group)
            self._settle(group)
            self._dropped[LARGER_THAN_BATCH] += 1
