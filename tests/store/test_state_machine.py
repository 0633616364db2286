"""Any order of calls loses nothing and delivers nothing twice; a naive model is the judge."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from atroposlib.errors import ApiError
from atroposlib.store.memory import MemoryStore
from atroposlib.store.protocol import Lease
from atroposlib.wire.posted import PostedGroup

MAX_GROUPS = 6
Result = TypeVar("Result")


class StoreMachine(RuleBasedStateMachine):
    """Plays environments and trainers; the model is a list in order of arrival and sets of names."""

    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()

    def teardown(self) -> None:
        self.loop.close()

    def do(self, call: Coroutine[Any, Any, Result]) -> Result:
        return self.loop.run_until_complete(call)

    @initialize()
    def start(self) -> None:
        self.store = MemoryStore(MAX_GROUPS, 1 << 20)
        self.forget()

    def forget(self) -> None:
        self.arrived: list[PostedGroup] = []
        self.queued: set[str] = set()
        self.leased: dict[str, Lease] = {}
        self.trained: set[str] = set()
        self.dropped: Counter[str] = Counter()
        self.duplicates = 0

    @rule(number=st.integers(0, 30), sequences=st.integers(1, 6), env_id=st.none() | st.integers(0, 2))
    def put(self, number: int, sequences: int, env_id: int | None) -> None:
        group = PostedGroup(f"g{number}", env_id, sequences, None, b"{}")
        known = any(group.group_id == other.group_id for other in self.arrived)
        held = len(self.queued) + sum(len(lease.groups) for lease in self.leased.values())
        try:
            new = len(self.do(self.store.put([group])))
        except ApiError:
            assert held >= MAX_GROUPS
            assert not known
            return
        assert new == (not known)
        assert known or held < MAX_GROUPS
        if known:
            self.duplicates += 1
        else:
            self.arrived.append(group)
            self.queued.add(group.group_id)

    @rule(target=leases, sequences=st.integers(1, 8), minimum=st.integers(0, 8))
    def lease(self, sequences: int, minimum: int) -> Any:
        lease = self.do(self.store.lease(sequences, {0: minimum} if minimum else {}))
        for group in self.arrived:
            if group.group_id in self.queued and group.sequences > sequences:
                self.queued.remove(group.group_id)
                self.dropped["larger_than_batch"] += 1
        if lease is None:
            return multiple()
        taken = [group.group_id for group in lease.groups]
        assert sum(group.sequences for group in lease.groups) == sequences
        assert taken == [group.group_id for group in self.arrived if group.group_id in taken]
        assert self.queued.issuperset(taken)
        self.queued.difference_update(taken)
        self.leased[lease.batch_id] = lease
        return lease

    @rule(lease=consumes(leases))
    def ack(self, lease: Lease) -> None:
        known = self.leased.pop(lease.batch_id, None)
        assert self.do(self.store.ack(lease.batch_id)) == (known is not None)
        if known is not None:
            names = {group.group_id for group in lease.groups}
            assert not names & self.trained
            self.trained |= names

    @rule(lease=consumes(leases))
    def release(self, lease: Lease) -> None:
        known = self.leased.pop(lease.batch_id, None)
        assert self.do(self.store.release(lease.batch_id)) == (known is not None)
        if known is not None:
            self.queued |= {group.group_id for group in lease.groups}

    @rule()
    def reset(self) -> None:
        self.do(self.store.reset())
        self.forget()

    @invariant()
    def the_counts_are_those_of_the_model(self) -> None:
        if not hasattr(self, "store"):
            return
        stats = self.do(self.store.stats())
        queued = [group for group in self.arrived if group.group_id in self.queued]
        assert stats.received == len(self.arrived)
        assert stats.queued == len(queued)
        assert stats.leased == sum(len(lease.groups) for lease in self.leased.values())
        assert stats.trained == len(self.trained)
        assert stats.dropped == self.dropped
        assert stats.duplicates == self.duplicates
        assert stats.queued_sequences == sum(group.sequences for group in queued)
        assert stats.received == stats.queued + stats.leased + stats.trained + sum(stats.dropped.values())
        for env_id, queue in stats.by_env.items():
            sizes = [group.sequences for group in queued if group.env_id == env_id]
            assert (queue.sequences, queue.largest) == (sum(sizes), max(sizes))


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
