"""A scripted teacher and a session to ask it with."""

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
