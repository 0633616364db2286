"""Any order of calls and crashes loses nothing and trains nothing twice; a naive model is the judge."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from atroposlib.errors import ApiError
from atroposlib.store.memory import MemoryStore
from atroposlib.store.protocol import GroupStore, Lease
from atroposlib.store.sqlite import SqliteStore
from tests.store.model import Model, Refused
from tests.store.support import asks, conserved, group, registration

MAX_GROUPS = 14
TRAINERS = st.sampled_from(["t", "u"])
Result = TypeVar("Result")


class StoreMachine(RuleBasedStateMachine):
    """Plays environments and trainers against one engine."""

    durable = False

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp())
        self.files = 0
        self.now = 1000.0
        self.bodies = 0
        self.leases: list[Lease] = []
        self.model = Model(MAX_GROUPS)
        self.store: GroupStore

    @initialize()
    def open(self) -> None:
        self.store = self.do(self.opened())

    def teardown(self) -> None:
        self.do(self.store.close())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        shutil.rmtree(self.folder)

    async def opened(self) -> GroupStore:
        if self.durable:
            return await SqliteStore.open(self.folder / f"{self.files}.sqlite3", MAX_GROUPS, 1 << 20)
        return MemoryStore(MAX_GROUPS, 1 << 20)

    def do(self, call: Coroutine[Any, Any, Result]) -> Result:
        return self.loop.run_until_complete(call)

    def same(self, call: Coroutine[Any, Any, Result], expected: Callable[[], Result]) -> None:
        """The store answers what the model answers, or refuses with its code."""
        try:
            answer: Result | str = self.do(call)
        except ApiError as error:
            answer = error.code
        try:
            wanted: Result | str = expected()
        except Refused as refusal:
            wanted = str(refusal)
        assert answer == wanted

    # --- environments -------------------------------------------------------------------------------------

    @rule(
        number=st.integers(0, 40),
        sequences=st.integers(1, 6),
        env_id=st.none() | st.integers(0, 2),
        version=st.none() | st.integers(0, 4),
    )
    def put(self, number: int, sequences: int, env_id: int | None, version: int | None) -> None:
        payload = f"bytes of g{number}".encode()
        self.post(group(f"g{number}", sequences, env_id, payload, policy_version=version))

    @rule(body=st.integers(0, 4))
    def put_without_an_id(self, body: int) -> None:
        self.bodies += 1
        self.post(group(f"b{self.bodies}", 4, payload=str(body).encode(), digest=f"digest {body}"))

    def post(self, posted: Any) -> None:
        async def answer() -> tuple[str, bool]:
            (accepted,) = await self.store.put([posted], self.now)
            return accepted.group_id, accepted.new

        self.same(answer(), lambda: self.model.put(posted, self.now))

    @rule(body=st.integers(0, 4))
    def answered(self, body: int) -> None:
        self.do(self.store.answered([f"digest {body}"]))
        self.model.answered.add(f"digest {body}")

    # --- trainers -----------------------------------------------------------------------------------------

    @rule(
        trainer=TRAINERS,
        sequences=st.sampled_from([4, 8]),
        minimum=st.integers(0, 8),
        lease_s=st.sampled_from([5, 50]),
    )
    def lease(self, trainer: str, sequences: int, minimum: int, lease_s: float) -> None:
        request = asks(trainer, sequences, lease_s, {0: minimum} if minimum else {})
        lease = self.do(self.store.lease(request, self.now))
        wanted = self.model.lease(request, lease.batch_id if lease else None, self.now)
        if lease is None:
            assert wanted is None
            return
        assert (lease.attempt, [facts.group_id for facts in lease.groups]) == wanted
        assert lease.expires_at == self.now + lease_s
        self.leases.append(lease)

    def some_lease(self, index: int) -> Lease:
        """Mostly one of the latest."""
        return self.leases[-1 - index % len(self.leases)]

    @precondition(lambda self: self.leases)
    @rule(index=st.integers(0, 5), current=st.booleans(), commit=st.booleans())
    def ack(self, index: int, current: bool, commit: bool) -> None:
        lease = self.some_lease(index)
        attempt = None if current else lease.attempt
        self.same(
            self.store.ack(lease.batch_id, attempt, self.now, commit=commit),
            lambda: self.model.ack(lease.batch_id, attempt, commit),
        )

    @precondition(lambda self: self.leases)
    @rule(index=st.integers(0, 5))
    def nack(self, index: int) -> None:
        lease = self.some_lease(index)
        self.same(
            self.store.nack(lease.batch_id, lease.attempt, "busy", self.now),
            lambda: self.model.nack(lease.batch_id, lease.attempt, "busy", self.now),
        )

    @rule(trainer=TRAINERS, times=st.integers(1, 6))
    def refuse_what_comes(self, trainer: str, times: int) -> None:
        """Often enough to make dead letters."""
        for _ in range(times):
            before = len(self.leases)
            self.lease(trainer, 4, 0, 50)
            if len(self.leases) > before:
                self.nack(0)

    @precondition(lambda self: self.leases)
    @rule(index=st.integers(0, 3))
    def release(self, index: int) -> None:
        lease = self.some_lease(index)
        self.same(
            self.store.release(lease.batch_id, lease.attempt),
            lambda: self.model.release(lease.batch_id, lease.attempt),
        )

    @precondition(lambda self: self.leases)
    @rule(index=st.integers(0, 3))
    def heartbeat(self, index: int) -> None:
        lease = self.some_lease(index)
        self.same(
            self.store.heartbeat(lease.batch_id, lease.attempt, 20.0, self.now),
            lambda: self.model.heartbeat(lease.batch_id, lease.attempt, 20.0, self.now),
        )

    @precondition(lambda self: self.leases)
    @rule(trainer=TRAINERS, index=st.integers(0, 5))
    def commit(self, trainer: str, index: int) -> None:
        batch_id = self.some_lease(index).batch_id
        self.same(
            self.store.commit(trainer, batch_id, self.now), lambda: self.model.commit(trainer, batch_id)
        )

    @rule(trainer=TRAINERS, index=st.none() | st.integers(0, 5), lag=st.none() | st.integers(0, 3))
    def register_trainer(self, trainer: str, index: int | None, lag: int | None) -> None:
        last = self.some_lease(index).batch_id if index is not None and self.leases else None
        changed = registration(max_policy_lag=lag)
        known = self.do(self.store.run())
        if known.registration is None or (
            trainer not in self.model.trainers and known.registration != changed
        ):
            self.model.step = 0
        self.model.max_lag, self.model.batch_size = lag, changed.batch_size
        self.same(
            self.store.register_trainer(trainer, changed, last, self.now),
            lambda: self.model.register_trainer(trainer, last, self.now),
        )

    @rule(trainer=TRAINERS)
    def forget_trainer(self, trainer: str) -> None:
        self.same(
            self.store.forget_trainer(trainer, self.now),
            lambda: self.model.forget_trainer(trainer, self.now),
        )

    @rule(index=st.none() | st.integers(0, 5))
    def requeue(self, index: int | None) -> None:
        batch_id = self.some_lease(index).batch_id if index is not None and self.leases else None
        self.same(self.store.requeue(batch_id, self.now), lambda: self.model.requeue(batch_id))

    # --- time and trouble ---------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([1, 6, 60]))
    def pass_time(self, seconds: int) -> None:
        self.now += seconds

    @rule()
    def sweep(self) -> None:
        self.do(self.store.sweep(self.now))
        self.model.expire(self.now)

    @precondition(lambda self: self.durable)
    @rule()
    def restart(self) -> None:
        self.do(self.store.close())
        self.store = self.do(self.opened())
        self.model.answered.clear()

    @precondition(lambda self: self.durable)
    @rule()
    def crash(self) -> None:
        """What a killed process leaves: the file and its log as they are at this moment."""
        old = self.folder / f"{self.files}.sqlite3"
        self.files += 1
        for end in ("", "-wal"):
            shutil.copy(f"{old}{end}", self.folder / f"{self.files}.sqlite3{end}")
        self.do(self.store.close())
        self.store = self.do(self.opened())
        self.model.answered.clear()

    @precondition(lambda self: len(self.model.arrived) > 25)
    @rule()
    def reset(self) -> None:
        self.do(self.store.reset())
        self.model = Model(MAX_GROUPS)
        self.leases.clear()

    # --- what always holds --------------------------------------------------------------------------------

    @invariant()
    def the_counts_are_those_of_the_model(self) -> None:
        stats = self.do(self.store.stats())
        assert conserved(stats)
        assert replace(stats, by_env={}) == self.model.stats()
        waiting = self.model.waiting()
        sizes = {
            env_id: [facts.sequences for facts in waiting if facts.env_id == env_id]
            for env_id in {facts.env_id for facts in waiting}
        }
        assert {env_id: (queue.sequences, queue.largest) for env_id, queue in stats.by_env.items()} == {
            env_id: (sum(known), max(known)) for env_id, known in sizes.items()
        }

    @invariant()
    def the_run_is_that_of_the_model(self) -> None:
        run = self.do(self.store.run())
        assert run.step == self.model.step
        told = {
            trainer.trainer_id: (trainer.last_committed, trainer.leased, trainer.acked)
            for trainer in run.trainers
        }
        of = self.model.batches
        assert told == {
            name: (
                last,
                sum(batch.holder == name and batch.state in ("leased", "due") for batch in of),
                sum(batch.holder == name and batch.state == "acked" for batch in of),
            )
            for name, last in self.model.trainers.items()
        }

    @invariant()
    def every_kept_group_has_its_bytes(self) -> None:
        kept = self.model.kept()
        for posted in kept[:2] + kept[-1:]:
            assert self.do(self.store.payload(posted.facts.group_id)) == posted.payload
        latest = self.do(self.store.latest())
        assert latest == (kept[-1].facts if kept else None)

    @invariant()
    def the_dead_letters_are_those_of_the_model(self) -> None:
        letters = {letter.batch_id: letter for letter in self.do(self.store.dead_letters())}
        dead = {batch.batch_id: batch for batch in self.model.batches if batch.state == "dead"}
        assert letters.keys() == dead.keys()
        for batch_id, letter in letters.items():
            batch = dead[batch_id]
            assert list(letter.groups) == batch.groups
            assert (letter.attempts, letter.reason, letter.since) == (
                batch.attempt,
                batch.reason,
                batch.since,
            )


class DurableMachine(StoreMachine):
    """The same with restarts and crashes."""

    durable = True


@pytest.mark.parametrize(
    ("machine", "examples"), [(StoreMachine, 100), (DurableMachine, 25)], ids=["memory", "sqlite"]
)
def test_the_store_does_what_the_model_does(machine: type[StoreMachine], examples: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
