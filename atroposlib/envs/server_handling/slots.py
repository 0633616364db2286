"""A bounded number of requests at once, and how busy the bound is."""

from __future__ import annotations

import asyncio
from types import TracebackType


class Slots:
    """``async with slots`` holds one of ``limit`` slots; waits while none is free."""

    def __init__(self, limit: int) -> None:
        self._gate = asyncio.Semaphore(limit)
        self._limit = limit
        self._claims = 0

    @property
    def load(self) -> float:
        """Requests that hold or wait for a slot, as a share of the limit."""
        return self._claims / self._limit

    async def __aenter__(self) -> None:
        self._claims += 1
        try:
            await self._gate.acquire()
        except BaseException:
            # Cancelled while waiting: the claim must not outlive its owner.
            self._claims -= 1
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._claims -= 1
        self._gate.release()
