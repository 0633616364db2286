"""Leases of batches: what a trainer is handed, and the thread that renews what is not settled yet."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from atroposlib.errors import ApiError
from atroposlib.types import Group

logger = logging.getLogger(__name__)

RENEWALS_PER_LEASE = 3
"""So that one renewal may fail, and the next still comes before the lease expires."""

CLOSE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class LeasedBatch:
    """A batch on loan.

    Attributes:
        batch_id: Names the batch for ever, also when it is delivered again; None from a server without
            leases, whose batches are handed out for good.
        attempt: 1 at the first delivery.
        expires_at: Unix seconds after which it is delivered again unless it is renewed or acked.
        step: The run's step when it was handed out.
        groups: Its groups, oldest first.
    """

    batch_id: str | None
    attempt: int
    expires_at: float
    step: int
    groups: list[Group]


@dataclass(slots=True)
class _Held:
    batch: LeasedBatch
    every_s: float
    due: float


class LeaseKeeper:
    """Renews the leases it holds, from a thread of its own that starts with the first one.

    Args:
        renew: Renews a lease of a batch for so many seconds; raises ApiError when it could not.
    """

    def __init__(self, renew: Callable[[LeasedBatch, float], object]) -> None:
        self._renew = renew
        self._held: dict[str, _Held] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    def hold(self, batch: LeasedBatch, lease_s: float) -> bool:
        """Renew the batch's lease from now on, unless it has none; False when the keeper is closed."""
        every_s = lease_s / RENEWALS_PER_LEASE
        with self._changed:
            if self._closed:
                return False
            if batch.batch_id is None:
                return True
            self._held[batch.batch_id] = _Held(batch, every_s, time.monotonic() + every_s)
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="lease-keeper", daemon=True)
                self._thread.start()
        return True

    def drop(self, batch: LeasedBatch) -> None:
        """Renew it no more: it is settled. A later lease of the same batch stays."""
        with self._changed:
            held = self._held.get(batch.batch_id or "")
            if held is not None and held.batch is batch:
                del self._held[batch.batch_id or ""]

    def held(self) -> list[LeasedBatch]:
        """The batches that are not settled, in the order of their leases."""
        with self._changed:
            return [held.batch for held in self._held.values()]

    def close(self) -> None:
        """End the thread; the batches stay held."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        while (held := self._next_due()) is not None:
            try:
                self._renew(held.batch, held.every_s * RENEWALS_PER_LEASE)
            except ApiError as error:
                self._not_renewed(held, error)

    def _next_due(self) -> _Held | None:
        """Wait for the next renewal, and put the one after it down; None once closed."""
        with self._changed:
            while not self._closed:
                now = time.monotonic()
                first = min(self._held.values(), key=lambda held: held.due, default=None)
                if first is not None and first.due <= now:
                    first.due = now + first.every_s
                    return first
                self._changed.wait(None if first is None else first.due - now)
            return None

    def _not_renewed(self, held: _Held, error: ApiError) -> None:
        with self._changed:
            if self._closed or self._held.get(held.batch.batch_id or "") is not held:
                return
            if error.code != "api.unreachable":
                # The batch is somebody else's by now, which its ack will tell.
                del self._held[held.batch.batch_id or ""]
        logger.warning("the lease of batch %s was not renewed: %s", held.batch.batch_id, error)
