"""Runs long computations beside the event loop, so that large bodies stall nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar, TypeVarTuple

from atroposlib.errors import AtroposError
from atroposlib.workers import Workers

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")


class Offload:
    """Threads for what lets go of Python's lock (zlib, zstd, numpy), processes for what does not (JSON).

    Args:
        workers: Threads, and processes, at most.
        lost: Makes the error that tells that a process died.
        preloaded: Modules that processes import before their first task.
    """

    def __init__(
        self, workers: int = 2, *, lost: Callable[[], AtroposError], preloaded: Sequence[str] = ()
    ) -> None:
        self._count = workers
        self._lost = lost
        self._preloaded = preloaded
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="atropos-offload")
        self._workers: Workers | None = None
        self._starting = asyncio.Lock()

    async def in_thread(self, function: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        """Call a function in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    async def in_process(self, function: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        """Call a function of a module in another process; arguments, result and errors are pickled.

        Raises:
            AtroposError: What ``lost`` makes, when the process died, for want of memory for instance. The
                next call gets new processes.
        """
        async with self._starting:
            # In a thread, as is every submission: a start of processes takes up to seconds.
            if self._workers is None:
                self._workers = await self.in_thread(Workers, self._count, self._preloaded)
            workers = self._workers
        try:
            submitted = await self.in_thread(workers.executor.submit, function, *arguments)
            return await asyncio.wrap_future(submitted)
        except BrokenProcessPool as error:
            if self._workers is workers:
                self._workers = None
                workers.close()
            raise self._lost() from error

    def close(self) -> None:
        """End the workers."""
        self._threads.shutdown(cancel_futures=True)
        if self._workers is not None:
            self._workers.close()
            self._workers = None
