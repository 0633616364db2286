"""A scripted teacher, a session to ask it with, and the clock by which servers count as quiet."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest

from atroposlib.teacher.transport import open_session
from tests.support.scripted_server import ScriptedServer, scripted_server


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    """A running scripted server."""
    async with scripted_server() as running:
        yield running


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """A session as servers are asked with."""
    async with open_session() as opened:
        yield opened


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds on the replicas' clock, which stands still: no server is quiet because a machine is slow."""
    now = [0.0]
    monkeypatch.setattr("atroposlib.teacher.replica.monotonic", lambda: now[0])
    return now
