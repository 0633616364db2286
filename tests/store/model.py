"""A naive store: lists, copies and searches, written to be read. The judge of the real ones."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from atroposlib.store.batching import form_batch
from atroposlib.store.protocol import MAX_ATTEMPTS, LeaseRequest, StoreStats
from atroposlib.wire.posted import GroupFacts, PostedGroup


class Refused(Exception):
    """The call that a store has to refuse; the text is the error's code."""


@dataclass
class Batch:
    """A batch that is not settled."""

    batch_id: str
    groups: list[GroupFacts]
    formed: int
    holder: str
    attempt: int
    expires: float
    state: str = "leased"
    acked_attempt: int = 0
    acked_at: int = 0
    reserved: int | None = None
    heard: bool = True
    renewable: bool = True
    reason: str = ""
    since: float = 0.0
    before: Batch | None = None

    @property
    def sequences(self) -> int:
        """Sequences of all its groups."""
        return sum(facts.sequences for facts in self.groups)


class Model:
    """What a store has to do, without environments and registrations."""

    def __init__(self, max_groups: int) -> None:
        self.max_groups = max_groups
        self.arrived: list[PostedGroup] = []
        self.times: list[float] = []
        self.queued: set[str] = set()
        self.settled: set[str] = set()
        self.bodies: dict[str, tuple[str, float]] = {}
        self.answered: set[str] = set()
        self.batches: list[Batch] = []
        self.ended: dict[str, tuple[str, str, int]] = {}
        self.dropped = Counter[str]()
        self.duplicates = self.committed = self.expired = 0
        self.step = 0
        self.max_lag: int | None = None
        self.batch_size = 0
        self.trainers: dict[str, str | None] = {}
        self.numbers = 0

    # --- groups -------------------------------------------------------------------------------------------

    def put(self, posted: PostedGroup, now: float) -> tuple[str, bool]:
        facts = posted.facts
        if any(known.facts.group_id == facts.group_id for known in self.arrived):
            self.duplicates += 1
            return facts.group_id, False
        if facts.digest in self.bodies and facts.digest not in self.answered:
            first, at = self.bodies[facts.digest]
            if abs(now - at) < 60:
                self.duplicates += 1
                return first, False
        if len(self.kept()) >= self.max_groups:
            raise Refused("api.queue_full")
        self.arrived.append(posted)
        self.times.append(now)
        self.queued.add(facts.group_id)
        if facts.digest is not None:
            self.bodies[facts.digest] = (facts.group_id, now)
            self.answered.discard(facts.digest)
        return facts.group_id, True

    def kept(self) -> list[PostedGroup]:
        return [group for group in self.arrived if group.facts.group_id not in self.settled]

    def waiting(self) -> list[GroupFacts]:
        return [group.facts for group in self.arrived if group.facts.group_id in self.queued]

    def drop(self, sequences: int) -> None:
        sequences = max(sequences, self.batch_size)
        for facts in self.waiting():
            too_old = (
                self.max_lag is not None
                and facts.policy_version is not None
                and self.step - facts.policy_version > self.max_lag
            )
            if facts.sequences > sequences or too_old:
                self.dropped["larger_than_batch" if facts.sequences > sequences else "policy_lag"] += 1
                self.queued.remove(facts.group_id)
                self.settled.add(facts.group_id)

    # --- batches ------------------------------------------------------------------------------------------

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def expire(self, now: float) -> None:
        for batch in self.batches:
            if batch.state == "leased" and batch.expires <= now:
                self.expired += 1
                self.make_due(batch, "the lease expired", now, renewable=True)

    def make_due(
        self, batch: Batch, reason: str, now: float, *, heard: bool = True, renewable: bool = False
    ) -> None:
        batch.state = "dead" if batch.attempt - batch.acked_attempt >= MAX_ATTEMPTS else "due"
        batch.reserved, batch.before = None, None
        batch.heard, batch.renewable, batch.reason, batch.since = heard, renewable, reason, now

    def lease(self, request: LeaseRequest, batch_id: str | None, now: float) -> tuple[int, list[str]] | None:
        """The attempt and the groups; a new batch gets the name that the store gave it."""
        self.expire(now)
        for batch in self.due_for(request.trainer_id):
            comes_as_it_was = batch.reserved is not None and batch.acked_attempt > 0
            if comes_as_it_was or batch.sequences == request.sequences:
                batch.before = replace(batch)
                batch.state, batch.holder = "leased", request.trainer_id
                batch.attempt += 1
                batch.expires = now + request.lease_s
                batch.heard = batch.renewable = True
                self.trainers.setdefault(request.trainer_id, None)
                return batch.attempt, [facts.group_id for facts in batch.groups]
            self.dissolve(batch)
        self.drop(request.sequences)
        # What is too large for this batch serves no minimum either.
        fitting = [facts for facts in self.waiting() if facts.sequences <= request.sequences]
        chosen = form_batch(fitting, request.sequences, request.minimums)
        if chosen is None:
            return None
        assert batch_id is not None
        self.queued -= {facts.group_id for facts in chosen}
        end = now + request.lease_s
        self.batches.append(Batch(batch_id, chosen, self.number(), request.trainer_id, 1, end))
        self.trainers.setdefault(request.trainer_id, None)
        return 1, [facts.group_id for facts in chosen]

    def due_for(self, trainer_id: str) -> list[Batch]:
        due = [batch for batch in self.batches if batch.state == "due"]
        mine = [batch for batch in due if batch.reserved is not None and batch.holder == trainer_id]
        anyones = [batch for batch in due if batch.reserved is None]
        return sorted(mine, key=lambda batch: batch.reserved or 0) + sorted(
            anyones, key=lambda batch: batch.formed
        )

    def dissolve(self, batch: Batch) -> None:
        self.queued |= {facts.group_id for facts in batch.groups}
        self.batches.remove(batch)
        self.ended[batch.batch_id] = ("dissolved", batch.holder, batch.attempt)

    def settle(self, batch: Batch) -> None:
        self.settled |= {facts.group_id for facts in batch.groups}
        self.committed += len(batch.groups)
        self.batches.remove(batch)
        self.ended[batch.batch_id] = ("committed", batch.holder, batch.attempt)

    def find(self, batch_id: str, attempt: int | None) -> Batch | None:
        """The batch of a lease that still holds; None when it was committed under it."""
        for batch in self.batches:
            if batch.batch_id == batch_id:
                if not batch.heard or attempt not in (None, batch.attempt):
                    raise Refused("api.lease_lost")
                return batch
        if batch_id not in self.ended:
            raise Refused("api.unknown_batch")
        outcome, _, last = self.ended[batch_id]
        if outcome == "dissolved" or attempt not in (None, last):
            raise Refused("api.lease_lost")
        return None

    def heartbeat(self, batch_id: str, attempt: int, lease_s: float, now: float) -> float:
        batch = self.find(batch_id, attempt)
        if batch is None or batch.state == "acked":
            return now
        if batch.state != "leased":
            if not batch.renewable:
                raise Refused("api.lease_lost")
            batch.state = "leased"
        batch.expires = now + lease_s
        return batch.expires

    def ack(self, batch_id: str, attempt: int | None, commit: bool) -> int:
        batch = self.find(batch_id, attempt)
        if batch is None:
            return self.step
        if batch.acked_attempt == 0:
            self.step += 1
        if batch.state != "acked":
            batch.state, batch.acked_attempt, batch.acked_at = "acked", batch.attempt, self.number()
            batch.before = batch.reserved = None
        if commit:
            self.trainers[batch.holder] = batch_id
            self.settle(batch)
        return self.step

    def nack(self, batch_id: str, attempt: int | None, reason: str, now: float) -> None:
        batch = self.find(batch_id, attempt)
        if batch is None or batch.state == "acked":
            raise Refused("api.lease_lost")
        if batch.state == "leased":
            reserved = batch.reserved
            self.make_due(batch, reason, now)
            batch.reserved = reserved

    def release(self, batch_id: str, attempt: int) -> bool:
        for index, batch in enumerate(self.batches):
            if batch.batch_id == batch_id and batch.state == "leased" and batch.attempt == attempt:
                if attempt == 1:
                    self.dissolve(batch)
                    return True
                if batch.before is None:
                    return False
                self.batches[index] = batch.before
                return True
        return False

    def commit(self, trainer_id: str, batch_id: str) -> int:
        if self.ended.get(batch_id, ())[:2] == ("committed", trainer_id):
            return 0
        acked = self.acked_by(trainer_id)
        last = [batch.acked_at for batch in acked if batch.batch_id == batch_id]
        if not last:
            raise Refused("api.unknown_batch")
        done = [batch for batch in acked if batch.acked_at <= last[0]]
        for batch in done:
            self.settle(batch)
        self.trainers[trainer_id] = batch_id
        return len(done)

    def acked_by(self, trainer_id: str) -> list[Batch]:
        acked = [batch for batch in self.batches if batch.state == "acked" and batch.holder == trainer_id]
        return sorted(acked, key=lambda batch: batch.acked_at)

    def requeue(self, batch_id: str | None) -> int:
        dead = [batch for batch in self.batches if batch.state == "dead"]
        chosen = [batch for batch in dead if batch_id in (None, batch.batch_id)]
        if batch_id is not None and not chosen:
            raise Refused("api.unknown_batch")
        for batch in chosen:
            self.dissolve(batch)
        return sum(len(batch.groups) for batch in chosen)

    # --- trainers -----------------------------------------------------------------------------------------

    def register_trainer(self, trainer_id: str, last_committed: str | None, now: float) -> int:
        self.trainers.setdefault(trainer_id, None)
        mine = [batch for batch in self.batches if batch.holder == trainer_id]
        for last in [batch for batch in mine if batch.batch_id == last_committed]:
            if last.state != "acked":
                self.believe(trainer_id, last)
            self.commit(trainer_id, last.batch_id)
        again = self.acked_by(trainer_id) + self.take_back(trainer_id)
        count = 0
        for batch in again:
            self.make_due(batch, "its trainer started again", now, heard=False)
            if batch.state == "due":
                batch.reserved = self.number()
                count += 1
        return count

    def believe(self, trainer_id: str, last: Batch) -> None:
        """Take a batch for trained without an ack, and the replays that its trainer would get before it."""
        replays = [batch for batch in self.not_acked(trainer_id) if batch.acked_attempt]
        before = [batch for batch in replays if place(batch) < place(last)]
        for batch in [*before, last]:
            self.step += batch.acked_attempt == 0
            batch.state, batch.acked_at = "acked", self.number()

    def forget_trainer(self, trainer_id: str, now: float) -> None:
        if trainer_id not in self.trainers:
            raise Refused("api.unknown_trainer")
        for batch in self.acked_by(trainer_id):
            self.settle(batch)
        for batch in self.take_back(trainer_id):
            self.make_due(batch, "its trainer left", now, heard=False)
        del self.trainers[trainer_id]

    def take_back(self, trainer_id: str) -> list[Batch]:
        """What a trainer has not acked, in its order; it has no say any more, of dead batches either."""
        mine = [batch for batch in self.batches if batch.holder == trainer_id and batch.state != "acked"]
        for batch in mine:
            batch.heard = False

        return self.not_acked(trainer_id)

    def not_acked(self, trainer_id: str) -> list[Batch]:
        """What a trainer has or gets again, in its order."""
        mine = [batch for batch in self.batches if batch.holder == trainer_id]
        return sorted((batch for batch in mine if batch.state in ("leased", "due")), key=place)

    # --- what is told -------------------------------------------------------------------------------------

    def stats(self) -> StoreStats:
        """The counts that do not need an environment."""
        within = {
            state: [batch for batch in self.batches if batch.state == state]
            for state in ("leased", "due", "acked", "dead")
        }
        groups = {state: sum(len(batch.groups) for batch in batches) for state, batches in within.items()}
        waiting = self.waiting()
        times = dict(zip((group.facts.group_id for group in self.arrived), self.times, strict=True))
        return StoreStats(
            received=len(self.arrived),
            duplicates=self.duplicates,
            queued=len(waiting),
            leased=groups["leased"] + groups["due"],
            trained=groups["acked"] + self.committed,
            dead=groups["dead"],
            dropped=dict(self.dropped),
            uncommitted=groups["acked"],
            queued_sequences=sum(facts.sequences for facts in waiting),
            held_bytes=sum(len(group.payload) for group in self.kept()),
            leases=len(within["leased"]),
            due=len(within["due"]),
            expired=self.expired,
            oldest_queued_at=times[waiting[0].group_id] if waiting else None,
        )


def place(batch: Batch) -> tuple[int, int]:
    """Sorts a trainer's batches: what is reserved for it comes first, then the oldest."""
    return (1, batch.formed) if batch.reserved is None else (0, batch.reserved)
