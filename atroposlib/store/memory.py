"""The store in this process's memory: fast, and gone when the process ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Concatenate, ParamSpec, TypeVar

from atroposlib.store import accepting
from atroposlib.store.engine import LedgerStore
from atroposlib.store.ledger import REMEMBERED_IDS, REMEMBERED_S, Ledger
from atroposlib.store.protocol import Accepted
from atroposlib.store.records import Change, GroupAdded, GroupSettled, Planned
from atroposlib.wire.posted import PostedGroup

P = ParamSpec("P")
T = TypeVar("T")


class MemoryStore(LedgerStore):
    """A :class:`atroposlib.store.protocol.GroupStore` without durability.

    No method but ``wait`` waits for anything, so each is atomic on the event loop.

    Args:
        max_groups: Groups kept from which on posts are refused.
        max_bytes: Payload bytes kept from which on posts are refused.
    """

    def __init__(self, max_groups: int, max_bytes: int) -> None:
        super().__init__(Ledger(max_groups, max_bytes))
        self._payloads: dict[str, bytes] = {}
        self._settled: set[str] = set()
        self._settled_at: deque[tuple[float, str]] = deque()

    async def put(self, groups: Sequence[PostedGroup], now: float) -> list[Accepted]:
        """See :meth:`GroupStore.put`."""
        return await self._do(accepting.put, groups, now, self._settled)

    async def payload(self, group_id: str) -> bytes:
        """See :meth:`GroupStore.payload`."""
        return self._payloads[group_id]

    async def reset(self) -> None:
        """See :meth:`GroupStore.reset`."""
        self._ledger = Ledger(self._ledger.max_groups, self._ledger.max_bytes)
        self._payloads = {}
        self._settled = set()
        self._settled_at = deque()

    async def close(self) -> None:
        """See :meth:`GroupStore.close`."""

    async def _do(
        self, plan: Callable[Concatenate[Ledger, P], Planned[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        result, changes = plan(self._ledger, *args, **kwargs)
        for change in changes:
            self._keep(change)
        self._apply(changes)
        return result

    def _keep(self, change: Change) -> None:
        if isinstance(change, GroupAdded):
            self._payloads[change.held.facts.group_id] = change.payload
        elif isinstance(change, GroupSettled):
            group_id = change.held.facts.group_id
            del self._payloads[group_id]
            self._settled.add(group_id)
            self._settled_at.append((change.at, group_id))

    async def _tidy(self, now: float) -> None:
        settled = self._settled_at
        while settled and (len(settled) > REMEMBERED_IDS or now - settled[0][0] >= REMEMBERED_S):
            self._settled.discard(settled.popleft()[1])
