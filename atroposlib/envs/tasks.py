"""Small helpers for owned asyncio tasks and for work that must not block the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

OFF_LOOP_CELLS = 100_000
"""Array entries whose handling takes about a millisecond."""

T = TypeVar("T")


async def off_loop(cells: int, work: Callable[[], T]) -> T:
    """``work()``, in a thread when it handles so many array entries that the loop would wait for it."""
    return await asyncio.to_thread(work) if cells >= OFF_LOOP_CELLS else work()


async def all_of(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Results of coroutines run at once, in order; the first failure cancels the rest and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in coroutines]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


async def cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until each has ended; what they raise is theirs to report."""
    owned = list(tasks)
    for task in owned:
        task.cancel()
    await asyncio.gather(*owned, return_exceptions=True)
