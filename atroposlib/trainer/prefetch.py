"""Fetches the next batch in a thread while a step is computed, at most one ahead."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future, TimeoutError

from atroposlib.errors import AtroposError
from atroposlib.trainer.client import TrainerClient
from atroposlib.trainer.waiting import BatchWait
from atroposlib.types import ScoredDataGroup

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 5.0


class BatchPrefetcher:
    """Polls GET /batch on request. Owns the client from its first :meth:`request` to :meth:`close`."""

    def __init__(self, client: TrainerClient, poll_interval_s: float) -> None:
        self._client = client
        self._poll_interval_s = poll_interval_s
        self._pending: Future[list[ScoredDataGroup]] | None = None

    def request(self) -> Future[list[ScoredDataGroup]]:
        """Start fetching the next batch, unless one is under way or waiting to be taken."""
        if self._pending is None:
            self._pending = Future()
            threading.Thread(
                target=self._fetch, args=(self._pending,), name="batch-prefetch", daemon=True
            ).start()
        return self._pending

    def take(self) -> list[ScoredDataGroup]:
        """The next batch, as soon as it is there.

        Raises:
            ApiError: The API refused, or was unreachable for too long.
            RunError: train.no_environment: nobody is left to make a batch.
        """
        try:
            batch = self.request().result()
        except AtroposError:
            self._pending = None
            raise
        self._pending = None
        return batch

    def note_step(self, step: int) -> None:
        """Keep the steps taken for an API that has to be registered with again."""
        self._client.step = step

    def close(self) -> int:
        """Stop fetching; returns how many groups had been handed over and were not taken."""
        self._client.stop.set()
        unused = 0
        if self._pending is not None:
            try:
                unused = len(self._pending.result(timeout=CLOSE_TIMEOUT_S))
            except TimeoutError:
                logger.warning("the API still answers at the end of the run; its last batch is not counted")
            except AtroposError as error:
                logger.warning("%s", error)
        self._client.close()
        return unused

    def _fetch(self, future: Future[list[ScoredDataGroup]]) -> None:
        try:
            future.set_result(self._poll())
        except BaseException as error:  # noqa: BLE001  the error belongs to whoever takes the batch
            future.set_exception(error)

    def _poll(self) -> list[ScoredDataGroup]:
        """Ask until there is a batch; an empty one when the client was stopped meanwhile."""
        wait = BatchWait(self._client)
        while not self._client.stop.is_set():
            batch = self._client.batch()
            if batch is not None:
                return batch
            wait.no_batch()
            self._client.stop.wait(self._poll_interval_s)
        return []
