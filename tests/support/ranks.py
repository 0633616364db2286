"""Runs a function on several gloo ranks, each a process of its own, and hands back what each returned."""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
GRACE = 5.0
"""Seconds that the other ranks have to notice that one has failed."""


class RanksFailed(AssertionError):
    """At least one rank raised, died or did not answer in time; the text holds each one's story."""


def run_on_ranks(
    function: Callable[..., Any], ranks: int, *arguments: Any, seconds: float = 60.0
) -> list[Any]:
    """What ``function(*arguments)`` returns on each of ``ranks`` processes that share a gloo group.

    Args:
        function: A function at the top of a module. ``torch.distributed`` is initialised when it is called.
        ranks: How many processes.
        arguments: Handed to every rank alike; pickled, like what is returned.
        seconds: Until all of it must be done, the start of the processes included.

    Raises:
        RanksFailed: With the traceback of every rank that raised.
    """
    context = get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        started: dict[Connection, BaseProcess] = {}
        for rank in range(ranks):
            receiving, sending = context.Pipe(duplex=False)
            job = (function, arguments, rank, ranks, Path(folder) / "store", seconds, sending)
            process = context.Process(target=_rank, args=job)
            process.start()
            # The parent's copy would keep the pipe open after the child is gone.
            sending.close()
            started[receiving] = process
        try:
            return _answers(list(started), time.monotonic() + seconds)
        finally:
            for receiving, process in started.items():
                receiving.close()
                process.kill()
                process.join()


def _answers(pipes: list[Connection], deadline: float) -> list[Any]:
    """The ranks' answers in order; waits no longer than :data:`GRACE` once one has failed."""
    told: dict[Connection, tuple[bool, Any]] = {}
    while len(told) < len(pipes) and (left := deadline - time.monotonic()) > 0:
        for ready in wait([pipe for pipe in pipes if pipe not in told], left):
            pipe = cast(Connection, ready)
            told[pipe] = _received(pipe)
            if not told[pipe][0]:
                deadline = min(deadline, time.monotonic() + GRACE)
    silent = (False, "no answer in time")
    stories = [told.get(pipe, silent) for pipe in pipes]
    if not all(good for good, _ in stories):
        raise RanksFailed(
            "\n".join(
                f"--- rank {rank}: {'done' if good else tale}" for rank, (good, tale) in enumerate(stories)
            )
        )
    return [answer for _, answer in stories]


def _received(pipe: Connection) -> tuple[bool, Any]:
    try:
        return cast("tuple[bool, Any]", pickle.loads(pipe.recv_bytes()))
    except EOFError:
        return False, "the process died"


def _rank(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    rank: int,
    ranks: int,
    store: Path,
    seconds: float,
    pipe: Connection,
) -> None:
    """One child: joins the group, calls the function, sends (whether it returned, answer or traceback)."""
    os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo",
            init_method=store.as_uri(),
            rank=rank,
            world_size=ranks,
            timeout=timedelta(seconds=seconds),
        )
        answer = (True, function(*arguments))
    except Exception:  # noqa: BLE001  # the parent raises it again, with every rank's
        answer = (False, traceback.format_exc())
    # Tensors as bytes: torch would hand over a file descriptor of a process that is about to end.
    pipe.send_bytes(pickle.dumps(answer))
