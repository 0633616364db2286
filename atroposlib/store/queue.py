"""The queued groups, indexed so that no question costs more with a longer queue."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice

from atroposlib.store.protocol import EnvQueue
from atroposlib.store.records import Held
from atroposlib.wire.posted import GroupFacts

Bucket = OrderedDict[int, Held]


class Queue:
    """Groups in the order of their arrival, one bucket for each environment and number of sequences.

    Attributes:
        sequences: Sequences of all queued groups.
    """

    def __init__(self) -> None:
        self.sequences = 0
        self._count = 0
        self._buckets: dict[tuple[int | None, int], Bucket] = {}
        self._by_version: dict[int, dict[int, Held]] = {}

    def __len__(self) -> int:
        return self._count

    def add(self, held: Held) -> None:
        """Put a group to its place; what comes back is mostly older than all that is there."""
        facts = held.facts
        bucket = self._buckets.get((facts.env_id, facts.sequences))
        if bucket is None:
            bucket = self._buckets[facts.env_id, facts.sequences] = OrderedDict()
        newest = next(reversed(bucket), -1)
        bucket[held.arrival] = held
        if held.arrival < newest:
            _move_to_place(bucket, held.arrival)
        if facts.policy_version is not None:
            self._by_version.setdefault(facts.policy_version, {})[held.arrival] = held
        self._count += 1
        self.sequences += facts.sequences

    def remove(self, held: Held) -> None:
        """Take a group out."""
        facts = held.facts
        key = (facts.env_id, facts.sequences)
        del self._buckets[key][held.arrival]
        if not self._buckets[key]:
            del self._buckets[key]
        if facts.policy_version is not None:
            del self._by_version[facts.policy_version][held.arrival]
            if not self._by_version[facts.policy_version]:
                del self._by_version[facts.policy_version]
        self._count -= 1
        self.sequences -= facts.sequences

    def front(self, room: int) -> list[GroupFacts]:
        """The oldest groups, as many as can matter for a batch of ``room`` sequences.

        Of equal groups a batch takes the oldest, so of each bucket only what fills the room can be in it.
        One more tells whether an environment has a minimum that does not divide evenly.
        """
        groups = [
            held
            for (_, sequences), bucket in self._buckets.items()
            if sequences <= room
            for held in islice(bucket.values(), room // sequences + 1)
        ]
        return [held.facts for held in sorted(groups, key=_arrival)]

    def larger_than(self, sequences: int) -> Iterable[Held]:
        """Groups that no batch of so many sequences can hold."""
        for (_, size), bucket in self._buckets.items():
            if size > sequences:
                yield from bucket.values()

    def older_than(self, policy_version: int) -> Iterable[Held]:
        """Groups sampled by an older version of the weights."""
        for version, groups in self._by_version.items():
            if version < policy_version:
                yield from groups.values()

    def by_env(self) -> dict[int | None, EnvQueue]:
        """What each environment has queued."""
        queues: dict[int | None, EnvQueue] = {}
        for (env_id, size), bucket in self._buckets.items():
            known = queues.get(env_id, EnvQueue())
            queues[env_id] = EnvQueue(known.sequences + size * len(bucket), max(known.largest, size))
        return queues

    def oldest_at(self) -> float | None:
        """When the oldest group came, unix seconds."""
        fronts = [next(iter(bucket.values())) for bucket in self._buckets.values()]
        return min(fronts, key=_arrival).arrived_at if fronts else None


def _arrival(held: Held) -> int:
    return held.arrival


def _move_to_place(bucket: Bucket, arrival: int) -> None:
    older = []
    for other in bucket:
        if other > arrival:
            break
        older.append(other)
    bucket.move_to_end(arrival, last=False)
    for other in reversed(older):
        bucket.move_to_end(other, last=False)
