"""One wait for a batch: says now and then why it lasts, and ends when nobody is left to make a batch."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from atroposlib.errors import RunError
from atroposlib.trainer.source import BatchSource

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 5.0
SAY_WAITING_EVERY_S = 30.0
NO_ENVIRONMENT_GRACE_S = 60.0
"""Seconds without any environment or new group after which none is expected: time to restart one."""


class BatchWait:
    """Told of every answer without a batch.

    Args:
        source: Asked for its status; one that has none is polled for ever.
        clock: Seconds that never go backwards.
    """

    def __init__(self, source: BatchSource, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._start = self._looked = self._said = self._alive = clock()
        self._received: int | None = None

    def no_batch(self) -> None:
        """Look at the API's state when it is time to.

        Raises:
            ApiError: The API was unreachable for too long.
            RunError: train.no_environment.
        """
        now = self._clock()
        if now - self._looked < LOOK_EVERY_S:
            return
        self._looked = now
        status = self._source.status() or {}
        if now - self._said >= SAY_WAITING_EVERY_S:
            self._said = now
            reason = _reason(status)
            logger.info("waiting for a batch (%.0f s)%s", now - self._start, f": {reason}" if reason else "")
        self._end_without_environments(status, now)

    def _end_without_environments(self, status: dict[str, Any], now: float) -> None:
        envs = status.get("envs", [])
        received = status.get("groups", {}).get("received")
        # An environment that an API restart made unknown still posts, so new groups count as life too.
        if not envs or any(env["connected"] for env in envs) or received != self._received:
            self._alive, self._received = now, received
        elif now - self._alive >= NO_ENVIRONMENT_GRACE_S:
            raise RunError(
                "every environment has left, and what is queued makes no batch",
                code="train.no_environment",
                where=f"{self._source.url}/v1/status",
                got=_reason(status) or f"queued: {status.get('queue')}",
                fix="start an environment and train again, with the last checkpoint as model",
            )


def _reason(status: dict[str, Any]) -> str:
    """Who waits for whom and why, in the API's words; empty when nobody does."""
    return "; ".join(
        f"{entry['who']} waits for {entry['for']}: {entry['why']}" for entry in status.get("waiting") or []
    )
