"""What the training loop asks of whoever hands it batches: the trajectory API, or files."""

from __future__ import annotations

import threading
from typing import Any, Protocol

from atroposlib.trainer.leases import LeasedBatch


class BatchSource(Protocol):
    """Hands out batches, and is told what became of them.

    Attributes:
        stop: Set by the owner to make a waiting call end early.
    """

    stop: threading.Event

    @property
    def url(self) -> str:
        """Where the batches come from, for messages."""

    def status(self) -> dict[str, Any] | None:
        """Who waits for whom (GET /v1/status); None where nobody can tell."""

    def lease(self, *, lease_s: float) -> LeasedBatch | None:
        """The next batch; None when there is none now, or after a stop."""

    def ack(self, batch: LeasedBatch) -> object:
        """The batch is in the weights, or can never be in any."""

    def commit(self, batch_id: str) -> object:
        """The batch, and all that were acked before it, are in a durable checkpoint."""

    def close(self) -> None:
        """Give back what was leased and not acked."""
