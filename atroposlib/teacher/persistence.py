"""Repeats a request while its failure may pass: random, growing waits until patience ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal, TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential
from tenacity.stop import stop_base

from atroposlib.errors import AtroposError

PATIENCE_S = 120.0
"""Seconds over which passing failures are repeated: a server that is restarted takes a minute or more."""

BROKEN_LIMIT = 2
"""Times one request may break a server. One that killed two engines would kill the third."""

T = TypeVar("T")


class Passing(Exception):
    """A failure that may pass.

    Attributes:
        error: What the user is told if it does not pass.
        kind: ``down`` (no connection), ``busy`` (the server says later), ``broken`` (it failed on this very
            request), ``interrupted`` (it gave a sample up half-way).
    """

    def __init__(self, error: AtroposError, kind: Literal["down", "busy", "broken", "interrupted"]) -> None:
        super().__init__(str(error))
        self.error = error
        self.kind = kind


class _OutOfPatience(stop_base):
    """Stops ``patience_s`` after the first failure in a row, or when the request broke a server too often."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._first_failure: float | None = None
        self._broken = 0

    def __call__(self, state: RetryCallState) -> bool:
        now = asyncio.get_running_loop().time()
        if self._first_failure is None:
            self._first_failure = now
        failure = state.outcome.exception() if state.outcome is not None else None
        if isinstance(failure, Passing) and failure.kind == "broken":
            self._broken += 1
        waited = now - self._first_failure + state.upcoming_sleep
        return waited >= self._patience_s or self._broken >= BROKEN_LIMIT


async def persist(operation: Callable[[], Awaitable[T]], *, patience_s: float = PATIENCE_S) -> T:
    """Repeat ``operation`` while its failure is :class:`Passing`; then raise the error it carries."""
    retrying = AsyncRetrying(
        retry=retry_if_exception_type(Passing),
        wait=wait_random_exponential(multiplier=0.25, max=10),
        stop=_OutOfPatience(patience_s),
        reraise=True,
    )

    # A coroutine function, so that the retrying awaits it whatever kind of callable ``operation`` is.
    async def attempt() -> T:
        return await operation()

    try:
        return await retrying(attempt)
    except Passing as failure:
        raise failure.error from failure.__cause__
