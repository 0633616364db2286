"""Who waits for whom, since when and why: kept per process, told by /v1/status."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

logger = logging.getLogger(__name__)

FORGOTTEN_S = 60.0
"""Who has not asked again for so long does not wait any more."""

LONGEST_NAME = 80


@dataclass(slots=True)
class Wait:
    """One party that asked and got nothing yet; times are unix seconds."""

    since: float
    asked: float
    why: str


@dataclass(slots=True)
class Waits:
    """Open waits by who waits and what for.

    Attributes:
        open: The waits.
        told: A warning has told of sizes that do not fit each other.
    """

    open: dict[tuple[str, str], Wait] = field(default_factory=dict)
    told: bool = False

    def note(self, who: str, awaited: str, why: str, now: float) -> None:
        """``who`` asked for ``awaited`` and did not get it."""
        self._forget(now)
        key = (who[:LONGEST_NAME], awaited)
        wait = self.open.setdefault(key, Wait(now, now, why))
        wait.asked, wait.why = now, why

    def warn_once(self, why: str) -> None:
        """Log a reason that goes away only when somebody changes a setting; once a run."""
        if not self.told:
            self.told = True
            logger.warning("no batch: %s; group sizes and batch_size must fit each other", why)

    def end(self, who: str, awaited: str, now: float) -> float:
        """``who`` got it; returns the seconds it waited."""
        wait = self.open.pop((who[:LONGEST_NAME], awaited), None)
        return 0.0 if wait is None else max(0.0, now - wait.since)

    def listed(self, now: float) -> list[dict[str, str | float]]:
        """The open waits, longest first, as /v1/status tells them."""
        self._forget(now)
        ordered = sorted(self.open.items(), key=lambda item: item[1].since)
        return [
            {
                "who": who,
                "for": awaited,
                "since": wait.since,
                "seconds": max(0.0, now - wait.since),
                "why": wait.why,
            }
            for (who, awaited), wait in ordered
        ]

    def _forget(self, now: float) -> None:
        self.open = {key: wait for key, wait in self.open.items() if now - wait.asked < FORGOTTEN_S}
