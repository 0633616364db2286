"""Repeats a request while its failure may pass: random, growing waits until patience ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Literal, Self, TypeVar

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
    try:
        return await operation()
    except Passing as failure:
        first = [failure]
    # Made only now: it costs more than the rest of a call.
    retrying = AsyncRetrying(
        retry=retry_if_exception_type(Passing),
        wait=wait_random_exponential(multiplier=0.25, max=10),
        stop=_OutOfPatience(patience_s),
        reraise=True,
    )

    # A coroutine function, so that the retrying awaits it whatever kind of callable ``operation`` is.
    async def attempt() -> T:
        if first:
            raise first.pop()
        return await operation()

    try:
        return await retrying(attempt)
    except Passing as failure:
        raise failure.error from failure.__cause__


class Deadline:
    """``async with Deadline(seconds)``: raises TimeoutError when they are over; its clock can be stopped."""

    def __init__(self, seconds: float) -> None:
        self._timeout = asyncio.timeout(seconds)
        self._left: float | None = None

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._timeout.__aexit__(kind, error, trace)

    @property
    def passed(self) -> bool:
        """Whether the time is over."""
        return self._timeout.expired()

    def stop(self) -> None:
        """No time passes from here on."""
        until = self._timeout.when()
        if until is not None and not self.passed:
            self._left = until - asyncio.get_running_loop().time()
            self._timeout.reschedule(None)

    def go(self) -> None:
        """Time passes again."""
        if self._left is not None:
            self._timeout.reschedule(asyncio.get_running_loop().time() + self._left)
            self._left = None
