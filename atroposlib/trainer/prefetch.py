"""Leases the next batch in a thread while a step is computed, at most one ahead."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future, TimeoutError

from atroposlib.errors import AtroposError
from atroposlib.trainer.leases import LeasedBatch
from atroposlib.trainer.source import BatchSource
from atroposlib.trainer.waiting import BatchWait

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 5.0


class BatchPrefetcher:
    """Asks for batches on request.

    Args:
        source: Where batches come from; closed by :meth:`close`.
        poll_interval_s: Seconds between two questions.
        lease_s: Seconds without a sign of life after which a batch is delivered again.

    Attributes:
        source: The same, which batches are acked with.
    """

    def __init__(self, source: BatchSource, poll_interval_s: float, lease_s: float) -> None:
        self.source = source
        self._poll_interval_s = poll_interval_s
        self._lease_s = lease_s
        self._pending: Future[LeasedBatch | None] | None = None

    def request(self) -> Future[LeasedBatch | None]:
        """Start fetching the next batch, unless one is under way or waiting to be taken."""
        if self._pending is None:
            self._pending = Future()
            threading.Thread(
                target=self._fetch, args=(self._pending,), name="batch-prefetch", daemon=True
            ).start()
        return self._pending

    def take(self) -> LeasedBatch:
        """The next batch, as soon as it is there.

        Raises:
            ApiError: The API refused, or was unreachable for too long.
            RunError: train.no_environment: nobody is left to make a batch.
        """
        pending = self.request()
        try:
            batch = pending.result()
        finally:
            if pending.done():
                self._pending = None
        if batch is None:
            raise RuntimeError("a batch was asked for after the prefetcher was closed")
        return batch

    def close(self) -> int:
        """Stop fetching and give back what was not acked; returns how many groups nobody took."""
        self.source.stop.set()
        unused = 0
        if self._pending is not None:
            try:
                batch = self._pending.result(timeout=CLOSE_TIMEOUT_S)
                unused = len(batch.groups) if batch is not None else 0
            except TimeoutError:
                logger.warning("the API still answers at the end of the run; its last batch is not counted")
            except AtroposError as error:
                logger.warning("%s", error)
        self.source.close()
        return unused

    def _fetch(self, future: Future[LeasedBatch | None]) -> None:
        try:
            future.set_result(self._poll())
        except BaseException as error:  # noqa: BLE001  the error belongs to whoever takes the batch
            future.set_exception(error)

    def _poll(self) -> LeasedBatch | None:
        """Ask until there is a batch; None when it was stopped meanwhile."""
        wait = BatchWait(self.source)
        while not self.source.stop.is_set():
            batch = self.source.lease(lease_s=self._lease_s)
            if batch is not None:
                return batch
            wait.no_batch()
            self.source.stop.wait(self._poll_interval_s)
        return None
