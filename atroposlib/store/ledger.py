"""The state of a store without the groups' bytes: where every group is, the batches, the run.

It changes only by :meth:`Ledger.apply`, except for what may be lost with the process: when somebody called
last, and which posters have their answers. The operations that compute the changes are in ``accepting``,
``leasing``, ``settling`` and ``registering``.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import replace

from atroposlib.store.protocol import EnvRecord, RunState, StoreStats, TrainerRecord
from atroposlib.store.queue import Queue
from atroposlib.store.records import (
    Batch,
    BatchChanged,
    BatchEnded,
    Change,
    Counted,
    Ended,
    EnvChanged,
    GroupAdded,
    GroupSettled,
    Held,
    RunChanged,
    RunFacts,
    State,
    TrainerChanged,
    TrainerFacts,
    TrainerForgotten,
)

REMEMBERED_BATCHES = 10_000
"""Settled batches whose ids are still known."""

REMEMBERED_IDS = 1_000_000
"""Settled groups whose ids are still recognised in a repeated post."""

REMEMBERED_S = 24 * 3600.0
"""Seconds for which they are."""

DIGEST_S = 60.0
"""Seconds in which an equal body is taken for a repeated post."""

DROPPED = "dropped:"
"""Prefix of the counters of dropped groups; the reason follows."""


class Ledger:
    """Everything a store knows.

    Args:
        max_groups: Groups kept from which on posts are refused.
        max_bytes: Payload bytes kept from which on posts are refused.

    Attributes:
        groups: Every kept group by its id, in the order of arrival.
        queue: Those of them that are in no batch.
        batches: Every batch that is not settled.
        by_state: The same by state.
        ended: Settled batches, oldest first.
        counters: Totals since the store was made or reset.
        digests: First group of each recent body: its id, and when it came.
        run: Facts of the run.
        envs: Environments by ``env_id``.
        trainers: Trainers in the order of their first registration.
        held_bytes: Payload bytes of all kept groups.
        next_arrival, next_number, next_order: The next group's, batch's and ack's place in its order.
    """

    def __init__(self, max_groups: int, max_bytes: int) -> None:
        self.max_groups = max_groups
        self.max_bytes = max_bytes
        self.groups: OrderedDict[str, Held] = OrderedDict()
        self.queue = Queue()
        self.batches: dict[str, Batch] = {}
        self.by_state: dict[State, dict[str, Batch]] = {"leased": {}, "due": {}, "acked": {}, "dead": {}}
        self.ended: OrderedDict[str, Ended] = OrderedDict()
        self.counters: Counter[str] = Counter()
        self.digests: OrderedDict[str, tuple[str, float]] = OrderedDict()
        self.run = RunFacts()
        self.envs: list[EnvRecord] = []
        self.trainers: dict[str, TrainerFacts] = {}
        self.held_bytes = 0
        self.next_arrival = 0
        self.next_number = 0
        self.next_order = 0
        self._groups_in: Counter[State] = Counter()
        self._batches_of: Counter[tuple[str, State]] = Counter()
        self._seen_envs: set[int] = set()
        self._seen_trainers: set[str] = set()

    # --- changes ------------------------------------------------------------------------------------------

    def apply(self, changes: Iterable[Change]) -> None:
        """Move on; the changes were computed from this very state."""
        for change in changes:
            match change:
                case GroupAdded(held):
                    self._add(held)
                case GroupSettled(held, _, dropped):
                    self._settle(held, dropped)
                case BatchChanged(batch):
                    self._change_batch(batch)
                case BatchEnded(ended):
                    self._end_batch(ended)
                case RunChanged(run):
                    self.run = run
                case EnvChanged(env):
                    self.envs[env.env_id : env.env_id + 1] = [env]
                    self._seen_envs.discard(env.env_id)
                case TrainerChanged(trainer):
                    self.trainers[trainer.trainer_id] = trainer
                    self._seen_trainers.discard(trainer.trainer_id)
                case TrainerForgotten(trainer_id):
                    del self.trainers[trainer_id]
                    self._seen_trainers.discard(trainer_id)
                case Counted(name, by):
                    self.counters[name] += by

    def _add(self, held: Held) -> None:
        facts = held.facts
        self.groups[facts.group_id] = held
        self.queue.add(held)
        self.held_bytes += facts.size
        self.next_arrival = max(self.next_arrival, held.arrival + 1)
        if facts.digest is not None:
            self.digests[facts.digest] = (facts.group_id, held.arrived_at)
            self.digests.move_to_end(facts.digest)

    def _settle(self, held: Held, dropped: bool) -> None:
        del self.groups[held.facts.group_id]
        self.held_bytes -= held.facts.size
        if dropped:
            self.queue.remove(held)

    def _change_batch(self, batch: Batch) -> None:
        known = self.batches.get(batch.batch_id)
        if known is None:
            for group_id in batch.group_ids:
                self.queue.remove(self.groups[group_id])
        else:
            self._remove_batch(known)
        self.batches[batch.batch_id] = batch
        self.by_state[batch.state][batch.batch_id] = batch
        self._groups_in[batch.state] += len(batch.group_ids)
        self._batches_of[batch.trainer_id, batch.state] += 1
        self.next_number = max(self.next_number, batch.number + 1)
        self.next_order = max(self.next_order, batch.order + 1)

    def _remove_batch(self, batch: Batch) -> None:
        del self.batches[batch.batch_id]
        del self.by_state[batch.state][batch.batch_id]
        self._groups_in[batch.state] -= len(batch.group_ids)
        self._batches_of[batch.trainer_id, batch.state] -= 1

    def _end_batch(self, ended: Ended) -> None:
        batch = self.batches.get(ended.batch_id)
        if batch is not None:
            self._remove_batch(batch)
            # The newest first, because each then goes to the very front of its bucket.
            for group_id in reversed(batch.group_ids):
                if group_id in self.groups:
                    self.queue.add(self.groups[group_id])
        self.ended[ended.batch_id] = ended
        if len(self.ended) > REMEMBERED_BATCHES:
            self.ended.popitem(last=False)

    # --- what may be lost with the process ----------------------------------------------------------------

    def see_env(self, env_id: int | None, now: float) -> None:
        """An environment called, so it is there."""
        if env_id is None or not 0 <= env_id < len(self.envs):
            return
        self.envs[env_id] = replace(self.envs[env_id], last_seen=now, left=False)
        self._seen_envs.add(env_id)

    def see_trainer(self, trainer_id: str, now: float) -> None:
        """A known trainer called."""
        if trainer_id in self.trainers:
            self.trainers[trainer_id] = replace(self.trainers[trainer_id], last_seen=now)
            self._seen_trainers.add(trainer_id)

    def unsaved(self) -> list[Change]:
        """Who was seen since it was last saved."""
        envs = [EnvChanged(self.envs[env_id]) for env_id in sorted(self._seen_envs)]
        trainers = [TrainerChanged(self.trainers[name]) for name in sorted(self._seen_trainers)]
        return [*envs, *trainers]

    def forget_digests(self, now: float) -> None:
        """Forget bodies that are too old to be a repeated post."""
        while self.digests:
            digest, (_, at) = next(iter(self.digests.items()))
            if now - at < DIGEST_S:
                break
            del self.digests[digest]

    # --- what is told ------------------------------------------------------------------------------------

    def run_state(self) -> RunState:
        """See :meth:`GroupStore.run`."""
        run, of = self.run, self._batches_of
        trainers = tuple(
            TrainerRecord(
                trainer.trainer_id,
                trainer.last_seen,
                trainer.last_committed,
                leased=of[name, "leased"] + of[name, "due"],
                acked=of[name, "acked"],
            )
            for name, trainer in self.trainers.items()
        )
        return RunState(run.registration, run.step, run.started, tuple(self.envs), trainers)

    def stats(self) -> StoreStats:
        """See :meth:`GroupStore.stats`."""
        groups, counters = self._groups_in, self.counters
        return StoreStats(
            received=counters["received"],
            duplicates=counters["duplicates"],
            queued=len(self.queue),
            leased=groups["leased"] + groups["due"],
            trained=counters["committed"] + groups["acked"],
            dead=groups["dead"],
            dropped={
                name.removeprefix(DROPPED): count
                for name, count in counters.items()
                if name.startswith(DROPPED)
            },
            uncommitted=groups["acked"],
            queued_sequences=self.queue.sequences,
            held_bytes=self.held_bytes,
            leases=len(self.by_state["leased"]),
            due=len(self.by_state["due"]),
            expired=counters["expired"],
            oldest_queued_at=self.queue.oldest_at(),
            by_env=self.queue.by_env(),
        )
