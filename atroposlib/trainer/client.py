"""TrainerClient: how a trainer talks to the trajectory API. Synchronous; needs numpy and no torch."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

from atroposlib.errors import ApiError
from atroposlib.trainer.leases import LeasedBatch, LeaseKeeper
from atroposlib.trainer.routes import AtroposRoutes, Registered, V1Routes
from atroposlib.trainer.transport import Transport

__all__ = ["LeasedBatch", "Registered", "TrainerClient"]

logger = logging.getLogger(__name__)

WAIT_S = 2.0
"""Short beside what the API allows, so that a client that is stopped ends soon."""

LEASE_S = 300.0


class TrainerClient:
    """Registers, leases batches, acks what is trained, commits what is in a checkpoint.

    Every call is repeated with back-off while the API does not answer, which is safe: none of them does more
    the second time. Leases are renewed from a thread until they are acked or nacked. An Atropos 0.4.0 server
    is recognised at the first call; it hands batches out for good, so ack, nack and commit do nothing there.
    The client may be used from several threads. It raises ApiError when the API refuses, with the code that
    the API tells, or does not answer in time (``api.unreachable``); this holds for every method. A URL or
    token that is none is a UsageError of the constructor.

    Args:
        url: Address of the API; ``user:password@`` in it is sent as HTTP Basic.
        token: Bearer token; None takes the environment variable ``ATROPOS_TOKEN``.
        give_up_after_s: Seconds without an answer after which a call raises.
        stop: Set by the owner to make waiting calls end early.

    Attributes:
        url: The address without credentials.
        step: The run's step as far as this client was told; an API that forgot the run starts there.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        give_up_after_s: float = 120.0,
        stop: threading.Event | None = None,
    ) -> None:
        self.stop = stop or threading.Event()
        self._transport = Transport(url, token=token, give_up_after_s=give_up_after_s, stop=self.stop)
        self.url = self._transport.url
        self.step = 0
        self._routes: V1Routes | AtroposRoutes | None = None
        self._probing = threading.Lock()
        self._keeper = LeaseKeeper(self.heartbeat)
        self._run: Mapping[str, Any] | None = None
        self._trainer_id = ""
        self._last_committed: str | None = None

    def info(self) -> dict[str, Any]:
        """Batch size and longest sequence as the API knows them (-1 before a trainer registered)."""
        return self._transport.json("GET", "/info")

    def status(self) -> dict[str, Any] | None:
        """GET /v1/status, or None from an Atropos 0.4.0 server, which has no such route."""
        return self._transport.json("GET", "/v1/status") if isinstance(self._speaks(), V1Routes) else None

    def register(
        self, registration: Mapping[str, Any], trainer_id: str, last_committed: str | None = None
    ) -> Registered:
        """Tell the API what this trainer trains, and which batches its weights have seen.

        Args:
            registration: The fields of Atropos's POST /register.
            trainer_id: Kept over restarts, such as the output directory; at most 128 characters.
            last_committed: The last batch in the checkpoint that training starts from, None for fresh
                weights. Batches that this trainer acked after it are delivered again, in their order.
        """
        self._trainer_id, self._last_committed = trainer_id, last_committed
        registered = self._speaks().register(registration, trainer_id, last_committed)
        self._run = registration
        self.step = int(registration.get("starting_step", 0))
        return registered

    def lease(
        self, n_sequences: int | None = None, wait_s: float = WAIT_S, lease_s: float = LEASE_S
    ) -> LeasedBatch | None:
        """The next batch, or None when there was none within ``wait_s`` seconds.

        The lease is renewed until the batch is acked or nacked, or this process ends. An API that forgot the
        trainer is registered with again.

        Args:
            n_sequences: Exact size of the batch; None for the registered one.
            wait_s: At most 30.
            lease_s: Seconds without a renewal after which the batch is delivered again.

        Raises:
            ApiError: api.not_registered before :meth:`register`.
            WireError: The batch cannot be decoded; it was nacked.
        """
        try:
            batch = self._speaks().lease(self._trainer_id, n_sequences, wait_s, lease_s)
        except ApiError as error:
            if self._run is None and error.code == "wire.invalid_request":
                what = "register() comes before lease()"
                raise ApiError(what, code="api.not_registered", where=self.url) from error
            if error.code != "api.not_registered" or self._run is None:
                raise
            self._register_again(self._run)
            return None
        if batch is None:
            return None
        if self.stop.is_set() or not self._keeper.hold(batch, lease_s):
            self._give_back(batch)
            return None
        return batch

    def heartbeat(self, batch: LeasedBatch, lease_s: float = LEASE_S) -> float:
        """Renew a lease by hand; returns the unix second at which it expires. Raises like :meth:`ack`."""
        return self._speaks().heartbeat(batch, lease_s)

    def ack(self, batch: LeasedBatch) -> int:
        """The batch is trained, or spent in another way; returns the run's step.

        Raises:
            ApiError: api.lease_lost when the batch was delivered again since, api.unknown_batch when the API
                knows it no more.
        """
        try:
            self.step = self._speaks().ack(batch)
        except ApiError as error:
            if error.code != "api.unreachable":
                self._keeper.drop(batch)
            raise
        self._keeper.drop(batch)
        return self.step

    def nack(self, batch: LeasedBatch, reason: str) -> None:
        """Give a batch back that this trainer cannot use now. Raises like :meth:`ack`."""
        self._keeper.drop(batch)
        self._speaks().nack(batch, reason)

    def commit(self, batch_id: str) -> int:
        """The batch, and all that were acked before it, are in a durable checkpoint.

        Returns:
            Batches that the API could forget.

        Raises:
            ApiError: api.unknown_batch when this trainer never acked it.
        """
        self._last_committed = batch_id
        return self._speaks().commit(self._trainer_id, batch_id)

    def close(self) -> None:
        """Give back what was leased and not acked, and close the connections. Later calls do not wait."""
        self.stop.set()
        self._keeper.close()
        for batch in self._keeper.held():
            self._give_back(batch)
        self._transport.close()

    def _speaks(self) -> V1Routes | AtroposRoutes:
        """The routes of this server, found out once: only ours has /v1/status."""
        with self._probing:
            if self._routes is None:
                found = self._transport.has("/v1/status")
                self._routes = V1Routes(self._transport) if found else AtroposRoutes(self._transport)
            return self._routes

    def _register_again(self, run: Mapping[str, Any]) -> None:
        logger.warning("the API at %s no longer knows this trainer; registering again", self.url)
        reached = {**run, "starting_step": self.step}
        self._speaks().register(reached, self._trainer_id, self._last_committed)

    def _give_back(self, batch: LeasedBatch) -> None:
        try:
            self.nack(batch, "the trainer ended before it was trained")
        except ApiError as error:
            logger.warning("batch %s comes back only when its lease expires: %s", batch.batch_id, error)
