"""Every engine, for the tests of what all of them promise."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from atroposlib.store.open import open_store
from atroposlib.store.protocol import GroupStore
from tests.store.support import OpenStore


@pytest.fixture(params=["memory", "sqlite"])
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OpenStore]:
    """Opens empty stores of one engine."""
    opened: list[GroupStore] = []

    async def open_empty(max_groups: int = 1000, max_bytes: int = 1 << 20) -> GroupStore:
        file = f"sqlite:///{tmp_path}/{len(opened)}.sqlite3"
        url = file if request.param == "sqlite" else "memory"
        opened.append(await open_store(url, max_groups=max_groups, max_bytes=max_bytes))
        return opened[-1]

    yield open_empty
    for store in opened:
        await store.close()


@pytest.fixture
async def store(engine: OpenStore) -> GroupStore:
    """An empty store with room for all of a test."""
    return await engine()
