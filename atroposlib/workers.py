"""Worker processes for computations that hold Python's lock: started late, ended with their parent."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection

METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
"""Never fork: the parent runs threads, and a fork copies the locks that they hold."""


class Workers:
    """A process pool whose workers also end when this process dies, however it dies.

    Args:
        count: Processes at most; they start as they are needed.
        preloaded: Modules that are imported once, before the first of them starts.
    """

    def __init__(self, count: int, preloaded: Sequence[str] = ()) -> None:
        context = multiprocessing.get_context(METHOD)
        if METHOD == "forkserver":
            context.set_forkserver_preload(list(preloaded))
        held, self._alive = context.Pipe(duplex=False)
        self.executor = ProcessPoolExecutor(
            count, mp_context=context, initializer=_start_worker, initargs=(held,)
        )
        self._held = held

    def close(self) -> None:
        """End the workers at once, in the middle of a computation too."""
        self._alive.close()
        self.executor.shutdown(wait=False, cancel_futures=True)
        self._held.close()


def _start_worker(held: Connection) -> None:
    # Ctrl-C reaches the whole process group; the parent decides when its workers end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=(held,), daemon=True).start()


def _end_with_parent(held: Connection) -> None:
    # Nothing is ever sent: this returns when the parent closes its end or is gone.
    held.poll(None)
    os._exit(1)
