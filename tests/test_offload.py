"""Work that holds Python's lock leaves the process, workers die with their parent and are replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from atroposlib.errors import RunError, WireError
from atroposlib.offload import Offload
from atroposlib.wire.jobs import read_json


def lost() -> RunError:
    return RunError("a process died", code="run.child_died")


@pytest.fixture
async def offload() -> AsyncIterator[Offload]:
    offload = Offload(1, lost=lost, preloaded=["atroposlib.wire.jobs"])
    yield offload
    offload.close()


async def test_threads_and_processes_are_others(offload: Offload) -> None:
    assert await offload.in_thread(threading.get_ident) != threading.get_ident()
    assert await offload.in_process(os.getpid) != os.getpid()


async def test_an_error_comes_back_with_its_field(offload: Offload) -> None:
    with pytest.raises(WireError) as caught:
        await offload.in_process(read_json, b'{"tokens": [[1.5]]}', False, False)
    assert (caught.value.code, caught.value.where) == ("wire.invalid_group", "tokens[0][0]")


async def test_a_worker_that_was_killed_is_replaced(offload: Offload) -> None:
    worker = await offload.in_process(os.getpid)
    os.kill(worker, signal.SIGKILL)
    with pytest.raises(RunError) as caught:
        await offload.in_process(os.getpid)
    assert caught.value.code == "run.child_died"
    assert await offload.in_process(os.getpid) != worker


async def test_workers_ignore_ctrl_c(offload: Offload) -> None:
    worker = await offload.in_process(os.getpid)
    os.kill(worker, signal.SIGINT)
    assert await offload.in_process(os.getpid) == worker


def is_running(process: int) -> bool:
    """Whether a process exists and has not ended; an orphan may wait for whoever takes its exit code."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] != "Z"


PARENT = """
import asyncio, os, sys
from atroposlib.offload import Offload

async def main():
    offload = Offload(1, lost=RuntimeError)
    print(await offload.in_process(os.getpid), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_workers_die_with_a_parent_that_was_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        assert is_running(worker)
        parent.kill()
    deadline = time.monotonic() + 20
    while is_running(worker):
        assert time.monotonic() < deadline
