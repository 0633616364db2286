"""Calls that are made once, however many callers want their result at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass
class _Call(Generic[T]):
    task: asyncio.Task[T]
    waiters: int = 0


class Joining(Generic[T]):
    """Runs each call as a task of its own, which ends with the last of those who wait for it."""

    def __init__(self) -> None:
        self._calls: dict[Hashable, _Call[T]] = {}

    def __contains__(self, key: Hashable) -> bool:
        return key in self._calls

    async def run(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of the call in flight under ``key``, or of ``make()`` when there is none."""
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = _Call(asyncio.create_task(make()))
            call.task.add_done_callback(lambda task: self._forget(key, task))
        call.waiters += 1
        try:
            return await asyncio.shield(call.task)
        finally:
            call.waiters -= 1
            if call.waiters == 0 and not call.task.done():
                self._forget(key, call.task)
                await _end(call.task)

    def _forget(self, key: Hashable, task: asyncio.Task[T]) -> None:
        if key in self._calls and self._calls[key].task is task:
            del self._calls[key]

    async def close(self) -> None:
        """End all calls; those who wait for them are cancelled."""
        for call in list(self._calls.values()):
            await _end(call.task)


async def _end(task: asyncio.Task[Any]) -> None:
    task.cancel()
    # Nobody is left who wants its result or its error.
    await asyncio.gather(task, return_exceptions=True)
