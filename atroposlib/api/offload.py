"""Runs long computations beside the event loop, so that large bodies stall nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")

LARGE_BYTES = 1 << 20
"""Work on fewer bytes than this takes less time than handing it over is worth."""


class Offload:
    """A small pool of workers; what is given to it can be pickled, so threads may become processes.

    Args:
        workers: Computations at once.
    """

    def __init__(self, workers: int = 2) -> None:
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="atropos-api")

    async def run(
        self, size: int, function: Callable[[*Arguments], Result], *arguments: *Arguments
    ) -> Result:
        """Call a function: here when it works on ``size`` bytes that are few, in the pool otherwise."""
        if size < LARGE_BYTES:
            return function(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)

    def close(self) -> None:
        """Wait for the running computations and end the workers."""
        self._pool.shutdown(cancel_futures=True)
