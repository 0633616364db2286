"""The store in an SQLite file: what was accepted survives a killed process or, if wanted, a power cut."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from atroposlib.errors import ApiError
from atroposlib.store import accepting
from atroposlib.store.engine import LedgerStore, save_seen
from atroposlib.store.ledger import Ledger
from atroposlib.store.protocol import Accepted, Lease, LeaseRequest
from atroposlib.store.records import Planned
from atroposlib.store.sqlite_file import Durability, StoreFile
from atroposlib.wire.posted import PostedGroup

logger = logging.getLogger(__name__)

DELETING_S = 0.2
"""Seconds of a sweep spent on deleting bytes; other operations come between."""

P = ParamSpec("P")
T = TypeVar("T")


class SqliteStore(LedgerStore):
    """A :class:`atroposlib.store.protocol.GroupStore` in a file; made by :meth:`open`.

    The ledger is a copy of what the file holds: operations wait for each other, and each is written by a
    thread before it is applied. A cancelled one is finished all the same.
    """

    def __init__(self, file: StoreFile, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._file = file
        self._alone = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._writer = ThreadPoolExecutor(1, "store-writer")
        self._reader = ThreadPoolExecutor(1, "store-reader")
        self._checkpointer = ThreadPoolExecutor(1, "store-checkpointer")

    @classmethod
    async def open(
        cls, path: str | Path, max_groups: int, max_bytes: int, durability: Durability = "normal"
    ) -> SqliteStore:
        """Open a file, or make it, and go on where it was.

        Args:
            path: The file; beside it lie its log and its lock.
            max_groups: Groups kept from which on posts are refused.
            max_bytes: Payload bytes kept from which on posts are refused.
            durability: ``normal`` survives a killed process; of a power cut or a crash of the system it may
                lose the last seconds. ``full`` survives these too, at the price of a disk flush a write.

        Raises:
            UsageError: usage.store_in_use, or usage.store when it cannot be opened or is something else.
        """

        def load() -> tuple[StoreFile, Ledger]:
            file, ledger = StoreFile(Path(path), durability), Ledger(max_groups, max_bytes)
            try:
                file.load(ledger)
            except BaseException:
                file.close()
                raise
            return file, ledger

        return cls(*await asyncio.to_thread(load))

    async def put(self, groups: Sequence[PostedGroup], now: float) -> list[Accepted]:
        """See :meth:`GroupStore.put`."""
        return await asyncio.shield(self._own(self._put(groups, now)))

    async def _put(self, groups: Sequence[PostedGroup], now: float) -> list[Accepted]:
        group_ids = [group.facts.group_id for group in groups]
        async with self._alone:
            settled = await self._call(self._writer, self._file.settled, group_ids)
            return await self._commit(accepting.put(self._ledger, groups, now, settled))

    async def payload(self, group_id: str) -> bytes:
        """See :meth:`GroupStore.payload`."""
        arrival = self._ledger.groups[group_id].arrival
        body = await self._call(self._reader, self._file.read, arrival)
        if body is None:
            # It was settled and deleted meanwhile.
            raise KeyError(group_id)
        return body

    async def lease(self, request: LeaseRequest, now: float) -> Lease | None:
        """See :meth:`GroupStore.lease`. A batch that nobody waits for any more is released."""
        task = self._own(super().lease(request, now))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._own(self._take_back(task))
            raise

    async def _take_back(self, task: asyncio.Task[Lease | None]) -> None:
        lease = await task
        if lease is not None:
            await self.release(lease.batch_id, lease.attempt)

    async def reset(self) -> None:
        """See :meth:`GroupStore.reset`."""
        await asyncio.shield(self._own(self._reset()))

    async def _reset(self) -> None:
        async with self._alone:
            known = self._ledger
            held = [(group.arrival, group.facts.size) for group in known.groups.values()]
            await self._call(self._writer, self._file.reset, held)
            self._ledger = Ledger(known.max_groups, known.max_bytes)
            self._ledger.next_arrival = known.next_arrival

    async def close(self) -> None:
        """See :meth:`GroupStore.close`."""
        if self._closed:
            return
        while self._tasks:
            await asyncio.wait(self._tasks)
        try:
            await self._do(save_seen)
        finally:
            self._closed = True
            await asyncio.to_thread(self._shut_down)

    def _shut_down(self) -> None:
        for thread in (self._writer, self._reader, self._checkpointer):
            thread.shutdown()
        self._file.close()

    async def _tidy(self, now: float) -> None:
        async with self._alone:
            await self._call(self._writer, self._file.forget, now)
        until = time.monotonic() + DELETING_S
        while await self._delete_bytes() and time.monotonic() < until:
            pass
        if await self._checkpoint():
            # The log starts again from its beginning only when all of it is done while nobody writes. What
            # came during the first pass is done in a second one, so that others wait for little.
            await self._checkpoint()
            async with self._alone:
                await self._checkpoint()

    async def _checkpoint(self) -> bool:
        return await self._call(self._checkpointer, self._file.checkpoint)

    async def _delete_bytes(self) -> bool:
        async with self._alone:
            return await self._call(self._writer, self._file.delete_bytes)

    # --- operations, one after the other ------------------------------------------------------------------

    async def _do(
        self, plan: Callable[Concatenate[Ledger, P], Planned[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return await asyncio.shield(self._own(self._plan_and_commit(plan, *args, **kwargs)))

    async def _plan_and_commit(
        self, plan: Callable[Concatenate[Ledger, P], Planned[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        async with self._alone:
            return await self._commit(plan(self._ledger, *args, **kwargs))

    async def _commit(self, planned: Planned[T]) -> T:
        """Write changes, then apply them; the lock is held."""
        result, changes = planned
        if changes:
            await self._call(self._writer, self._file.write, changes)
            self._apply(changes)
        return result

    def _own(self, operation: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(operation)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        # A cancelled caller does not ask how it ended; a store that fails has been logged already.
        if not task.cancelled():
            task.exception()

    async def _call(
        self, thread: ThreadPoolExecutor, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        if self._closed:
            raise self._failed("it is closed")
        try:
            return await asyncio.get_running_loop().run_in_executor(
                thread, partial(function, *args, **kwargs)
            )
        except sqlite3.Error as error:
            logger.exception("the store failed")
            raise self._failed(str(error)) from error

    def _failed(self, why: str) -> ApiError:
        return ApiError(
            f"the store failed: {why}",
            code="store.failed",
            where=str(self._file.path),
            fix="see that the disk has room and works; nothing of the request was done, so repeat it",
        )
