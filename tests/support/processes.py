"""Finds the processes of a run by the mark that each of them carries in its environment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path


def marked_processes(run: Path) -> list[int]:
    """Process ids of everything alive that carries ATROPOS_RUN=<run>."""
    mark = f"ATROPOS_RUN={run}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
            alive = b") Z " not in (entry / "stat").read_bytes()
        except OSError:
            continue
        if alive and mark in variables:
            found.append(int(entry.name))
    return found


async def until(condition: Callable[[], bool], *, seconds: float = 30.0) -> None:
    """Wait until a condition holds; fails after so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        await asyncio.sleep(0.02)
