"""When a server may be asked: a circuit breaker whose pauses grow, longest for a server at fault."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Literal

from atroposlib.errors import AtroposError

PAUSE_S, LONGEST_PAUSE_S = 0.25, 10.0
ASIDE_S, LONGEST_ASIDE_S = 30.0, 600.0

State = Literal["unknown", "closed", "open", "half_open", "aside"]


@dataclass
class Breaker:
    """State of one server.

    ``closed``: it is asked. ``open``: it failed in a way that may pass. ``aside``: it failed through its own
    fault, and only somebody's change to it can help. ``unknown``: it was never asked. From each of the last
    three it becomes ``half_open`` after a pause: it is tried with something small before real questions are
    sent.

    Attributes:
        state: As above.
        trouble: The last failure; None when it is closed or was never asked.
        failures: Failures of one kind in a row, with no real question answered between them.
        failed_at: Time of the last failure on the monotonic clock, 0 for never.
    """

    state: State = "unknown"
    trouble: AtroposError | None = None
    failures: int = 0
    failed_at: float = 0.0
    _kind: State = "unknown"

    def open(self, trouble: AtroposError) -> None:
        """A failure that may pass."""
        self._fail("open", trouble)

    def set_aside(self, trouble: AtroposError) -> None:
        """A failure that is the server's own fault."""
        self._fail("aside", trouble)

    def _fail(self, kind: State, trouble: AtroposError) -> None:
        # The many requests that fail together when a server dies are one failure.
        if self.state != kind:
            self.failures = self.failures + 1 if self._kind == kind else 1
        self.state = self._kind = kind
        self.trouble, self.failed_at = trouble, time.monotonic()

    def pause_s(self) -> float:
        """Seconds until it is tried, drawn at random; they grow with the failures in a row."""
        if self.state in ("unknown", "closed"):
            return 0.0
        first, longest = (ASIDE_S, LONGEST_ASIDE_S) if self.state == "aside" else (PAUSE_S, LONGEST_PAUSE_S)
        return float(min(longest, first * 2.0 ** min(self.failures - 1, 16)) * random.uniform(0.5, 1.0))

    def half_open(self) -> None:
        """It is being tried."""
        self.state = "half_open"

    def close(self) -> None:
        """The trial succeeded."""
        self.state, self.trouble = "closed", None

    def answered(self) -> None:
        """A real question was answered."""
        self.failures = 0
