"""Settles leased batches: acked once they are in the weights, committed once these are in a checkpoint."""

from __future__ import annotations

import logging

from atroposlib.errors import ApiError
from atroposlib.journal import Journal
from atroposlib.trainer.checkpoint import CheckpointFacts
from atroposlib.trainer.leases import LeasedBatch
from atroposlib.trainer.source import BatchSource

logger = logging.getLogger(__name__)

NOT_OURS_ANY_MORE = ("api.lease_lost", "api.unknown_batch", "api.unknown_trainer")
"""Answers to an ack or a commit that say so; trying again would not help."""


class Settling:
    """What of the batches is in these weights.

    Args:
        source: Where the batches come from.
        journal: Where lost leases are written.
        start: What is in the weights that the run starts from.

    Attributes:
        last_acked: The last batch whose ack the API took.
        lost: Batches in these weights whose ack it did not take.
        leases_lost: Batches that are in these weights, and that the API may have given to others.
    """

    def __init__(self, source: BatchSource, journal: Journal, start: CheckpointFacts) -> None:
        self.last_acked = start.batch_id
        self.lost = list(start.lost)
        self.leases_lost = 0
        self._source = source
        self._journal = journal
        self._spent = set(start.lost)

    def is_spent(self, batch: LeasedBatch) -> bool:
        """Whether these weights have seen the batch: its ack came too late, or was lost by the API."""
        return batch.batch_id in self._spent

    def ack(self, batch: LeasedBatch, step: int) -> None:
        """Tell that the batch is in the weights of ``step``, or can never be in any.

        The step stays when the lease was lost. Raises ApiError when the API does not answer.
        """
        if batch.batch_id is not None:
            self._spent.add(batch.batch_id)
        try:
            self._source.ack(batch)
        except ApiError as error:
            if error.code not in NOT_OURS_ANY_MORE:
                raise
            self.leases_lost += 1
            if batch.batch_id is not None and batch.batch_id not in self.lost:
                self.lost.append(batch.batch_id)
            self._journal.write("lease_lost", step=step, batch_id=batch.batch_id, code=error.code)
            logger.warning("the step stays, but its batch may be trained again elsewhere: %s", error)
        else:
            self.last_acked = batch.batch_id
            if batch.batch_id in self.lost:
                self.lost.remove(batch.batch_id)

    def commit(self) -> None:
        """Tell that all batches acked so far are in a durable checkpoint. Raises like :meth:`ack`."""
        if self.last_acked is None:
            return
        try:
            self._source.commit(self.last_acked)
        except ApiError as error:
            if error.code not in NOT_OURS_ANY_MORE:
                raise
            logger.warning("the API no longer knows what the checkpoint holds: %s", error)
