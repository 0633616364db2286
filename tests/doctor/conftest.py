"""A scripted server, a session to ask it with, and real tokenizers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from atroposlib.envs.tokenizer import read_tokenizer
from atroposlib.teacher.transport import open_session
from tests.support.scripted_server import ScriptedServer, scripted_server
from tests.support.tiny import write_tokenizer


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


@pytest.fixture
def tokenizer(tmp_path: Path) -> Callable[..., Any]:
    """Makes the tiny tokenizer with other settings, such as ``eos_token``."""

    def make(**settings: Any) -> Any:
        directory = tmp_path / f"tokenizer-{len(list(tmp_path.iterdir()))}"
        directory.mkdir()
        write_tokenizer(directory)
        file = directory / "tokenizer_config.json"
        file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | settings), encoding="utf-8")
        return read_tokenizer(str(directory))

    return make
