"""What all engines share: the protocol's methods in terms of the ledger's operations."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Concatenate, ParamSpec, TypeVar

from atroposlib.store import accepting, leasing, registering, settling
from atroposlib.store.ledger import Ledger
from atroposlib.store.protocol import (
    Accepted,
    DeadLetter,
    EnvRecord,
    Lease,
    LeaseRequest,
    RunState,
    StoreStats,
)
from atroposlib.store.records import BatchChanged, BatchEnded, Change, GroupAdded, Planned
from atroposlib.wire.posted import GroupFacts, PostedGroup
from atroposlib.wire.registrations import EnvRegistration, Registration

P = ParamSpec("P")
T = TypeVar("T")


class LedgerStore(ABC):
    """A :class:`atroposlib.store.protocol.GroupStore` around a ledger.

    An engine says how changes become durable (``_do``), and where the bytes are. Questions are answered from
    the ledger, which holds only what is durable already.

    Args:
        ledger: The state to go on from.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        # Set when something came that the last question for a batch did not see.
        self._news = asyncio.Event()

    # --- what an engine adds ------------------------------------------------------------------------------

    @abstractmethod
    async def _do(
        self, plan: Callable[Concatenate[Ledger, P], Planned[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Compute an operation's changes, make them durable, apply them: alone, and whole if cancelled."""

    @abstractmethod
    async def put(self, groups: Sequence[PostedGroup], now: float) -> list[Accepted]:
        """See :meth:`GroupStore.put`."""

    @abstractmethod
    async def payload(self, group_id: str) -> bytes:
        """See :meth:`GroupStore.payload`."""

    @abstractmethod
    async def _tidy(self, now: float) -> None:
        """Delete what nobody needs any more, in small bites."""

    @abstractmethod
    async def reset(self) -> None:
        """See :meth:`GroupStore.reset`."""

    @abstractmethod
    async def close(self) -> None:
        """See :meth:`GroupStore.close`."""

    def _apply(self, changes: Sequence[Change]) -> None:
        self._ledger.apply(changes)
        if any(_is_news(change) for change in changes):
            self._news.set()

    # --- groups -------------------------------------------------------------------------------------------

    async def answered(self, digests: Sequence[str]) -> None:
        """See :meth:`GroupStore.answered`."""
        for digest in digests:
            self._ledger.digests.pop(digest, None)

    async def latest(self) -> GroupFacts | None:
        """See :meth:`GroupStore.latest`."""
        newest = next(reversed(self._ledger.groups.values()), None)
        return None if newest is None else newest.facts

    # --- batches ------------------------------------------------------------------------------------------

    async def lease(self, request: LeaseRequest, now: float) -> Lease | None:
        """See :meth:`GroupStore.lease`."""
        await self._do(leasing.expire, now)
        await self._do(leasing.dissolve_unfit, request)
        while leasing.next_due(self._ledger, request) is None:
            if not await self._do(accepting.drop_unusable, request.sequences, now):
                break
        return await self._do(self._hand_out, request, now)

    def _hand_out(self, ledger: Ledger, request: LeaseRequest, now: float) -> Planned[Lease | None]:
        lease, changes = leasing.hand_out(ledger, request, now)
        if lease is None:
            self._news.clear()
        return lease, changes

    async def heartbeat(self, batch_id: str, attempt: int, lease_s: float, now: float) -> float:
        """See :meth:`GroupStore.heartbeat`."""
        return await self._do(leasing.heartbeat, batch_id, attempt, lease_s, now)

    async def ack(self, batch_id: str, attempt: int | None, now: float, *, commit: bool = False) -> int:
        """See :meth:`GroupStore.ack`."""
        return await self._do(settling.ack, batch_id, attempt, now, commit)

    async def nack(self, batch_id: str, attempt: int | None, reason: str, now: float) -> None:
        """See :meth:`GroupStore.nack`."""
        await self._do(settling.nack, batch_id, attempt, reason, now)

    async def release(self, batch_id: str, attempt: int) -> bool:
        """See :meth:`GroupStore.release`."""
        return await self._do(leasing.release, batch_id, attempt)

    async def commit(self, trainer_id: str, batch_id: str, now: float) -> int:
        """See :meth:`GroupStore.commit`."""
        return await self._do(settling.commit, trainer_id, batch_id, now)

    async def dead_letters(self) -> list[DeadLetter]:
        """See :meth:`GroupStore.dead_letters`."""
        return settling.dead_letters(self._ledger)

    async def requeue(self, batch_id: str | None, now: float) -> int:
        """See :meth:`GroupStore.requeue`."""
        return await self._do(settling.requeue, batch_id)

    async def sweep(self, now: float) -> None:
        """See :meth:`GroupStore.sweep`."""
        await self._do(leasing.expire, now)
        await self._do(save_seen)
        self._ledger.forget_digests(now)
        await self._tidy(now)

    async def wait(self, timeout_s: float) -> None:
        """See :meth:`GroupStore.wait`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            return

    # --- the run ------------------------------------------------------------------------------------------

    async def register(self, registration: Registration, now: float) -> None:
        """See :meth:`GroupStore.register`."""
        await self._do(registering.register, registration, now)

    async def register_trainer(
        self, trainer_id: str, registration: Registration, last_committed: str | None, now: float
    ) -> int:
        """See :meth:`GroupStore.register_trainer`."""
        return await self._do(registering.register_trainer, trainer_id, registration, last_committed, now)

    async def forget_trainer(self, trainer_id: str, now: float) -> None:
        """See :meth:`GroupStore.forget_trainer`."""
        await self._do(registering.forget_trainer, trainer_id, now)

    async def start(self, trainer_id: str, now: float) -> None:
        """See :meth:`GroupStore.start`."""
        await self._do(registering.start, trainer_id, now)

    async def register_env(self, registration: EnvRegistration, now: float, silent_s: float) -> EnvRecord:
        """See :meth:`GroupStore.register_env`."""
        return await self._do(registering.register_env, registration, now, silent_s)

    async def see_env(self, env_id: int | None, now: float) -> None:
        """See :meth:`GroupStore.see_env`."""
        self._ledger.see_env(env_id, now)

    async def leave_env(self, env_id: int) -> bool:
        """See :meth:`GroupStore.leave_env`."""
        return await self._do(registering.leave_env, env_id)

    async def run(self) -> RunState:
        """See :meth:`GroupStore.run`."""
        return self._ledger.run_state()

    async def stats(self) -> StoreStats:
        """See :meth:`GroupStore.stats`."""
        return self._ledger.stats()


def _is_news(change: Change) -> bool:
    """Whether a trainer that waits for a batch may get one now."""
    match change:
        case GroupAdded():
            return True
        case BatchChanged(batch):
            return batch.state == "due"
        case BatchEnded(ended):
            return ended.outcome == "dissolved"
        case _:
            return False


def save_seen(ledger: Ledger) -> Planned[None]:
    """Make durable who called last."""
    return None, ledger.unsaved()
