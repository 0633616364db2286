"""What one teacher was asked and what became of it: ``asked = scored + failed(reason) + cancelled``."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import fmean

import aiohttp

from atroposlib.errors import AtroposError


@dataclass
class TeacherStats:
    """Counters of one teacher, from when it was made.

    Attributes:
        name: Name of the teacher.
        remembered: Answers of which the time is kept.
        asked: Sequences that callers wanted scored; ``asked_tokens`` their tokens.
        scored: Sequences that were answered, by a server or the cache; ``scored_tokens`` their tokens.
        failed: Sequences that were not, by error code.
        cancelled: Sequences that their callers gave up.
        retries: Tries after the first one.
        cache_hits: Sequences answered from the cache.
        joined: Sequences that waited for the answer to an equal one in flight.
        canaries: Times a server was asked for the canary.
        received_bytes: Bytes of all answers as they travelled, where a server told their length.
        aside: Times a server was set aside, by error code.
        seconds: Times (seconds) from question to answer of the last ones that servers answered.
    """

    name: str
    remembered: int = 1000
    asked: int = 0
    asked_tokens: int = 0
    scored: int = 0
    scored_tokens: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    cancelled: int = 0
    retries: int = 0
    cache_hits: int = 0
    joined: int = 0
    canaries: int = 0
    received_bytes: int = 0
    aside: Counter[str] = field(default_factory=Counter)
    seconds: deque[float] = field(init=False)
    _told_at: float = field(default_factory=time.monotonic)
    _told_tokens: int = 0

    def __post_init__(self) -> None:
        self.seconds = deque(maxlen=self.remembered)

    @contextmanager
    def sequence(self, tokens: int) -> Iterator[None]:
        """Count one sequence and what becomes of it in the block."""
        self.asked += 1
        self.asked_tokens += tokens
        try:
            yield
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        # Whatever ended it, it is counted and goes on to the caller.
        except Exception as error:
            self.failed[error.code if isinstance(error, AtroposError) else "internal.error"] += 1
            raise
        self.scored += 1
        self.scored_tokens += tokens

    def traffic(self) -> aiohttp.TraceConfig:
        """Counts the answers of the session that is opened with it."""

        async def count(session: object, context: object, params: aiohttp.TraceRequestEndParams) -> None:
            self.received_bytes += params.response.content_length or 0

        trace = aiohttp.TraceConfig()
        trace.on_request_end.append(count)
        return trace

    def metrics(self) -> dict[str, float]:
        """The counters as ``teacher/<name>/<metric>``; tokens a second since the last call of this."""
        now = time.monotonic()
        rate = (self.scored_tokens - self._told_tokens) / max(now - self._told_at, 1e-9)
        self._told_at, self._told_tokens = now, self.scored_tokens
        told: dict[str, float] = {
            "asked": self.asked,
            "asked_tokens": self.asked_tokens,
            "scored": self.scored,
            "scored_tokens": self.scored_tokens,
            "failed": self.failed.total(),
            "cancelled": self.cancelled,
            "retries": self.retries,
            "cache_hits": self.cache_hits,
            "joined": self.joined,
            "canaries": self.canaries,
            "received_bytes": self.received_bytes,
            "tokens_per_second": rate,
            **{f"failed/{code}": count for code, count in self.failed.items()},
            **{f"aside/{code}": count for code, count in self.aside.items()},
        }
        if self.seconds:
            told |= {"seconds_mean": fmean(self.seconds), "seconds_max": max(self.seconds)}
        return {f"teacher/{self.name}/{metric}": value for metric, value in told.items()}
