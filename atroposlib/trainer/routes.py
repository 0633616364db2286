"""What a trainer asks of a trajectory API, in the words of ours (/v1) and in those of Atropos 0.4.0."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from atroposlib.errors import ApiError, WireError
from atroposlib.trainer.leases import LeasedBatch
from atroposlib.trainer.transport import Transport
from atroposlib.wire.arrays import to_arrays
from atroposlib.wire.batch import END, decode_batch
from atroposlib.wire.media import BATCH_TYPE

ATROPOS_POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class Registered:
    """The API's answer to a trainer.

    Attributes:
        step: The step that the run has reached.
        replayed: Batches that are delivered again, since they are in no checkpoint.
    """

    step: int
    replayed: int


class V1Routes:
    """Ours: leases, frames, acks and commits."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def register(self, run: Mapping[str, Any], trainer_id: str, last_committed: str | None) -> Registered:
        """POST /v1/trainers."""
        body = {"trainer_id": trainer_id, "last_committed": last_committed, "run": dict(run)}
        answer = self._transport.json("POST", "/v1/trainers", body)
        return Registered(step=int(_number(answer, "step")), replayed=int(_number(answer, "replayed")))

    def lease(
        self, trainer_id: str, n_sequences: int | None, wait_s: float, lease_s: float
    ) -> LeasedBatch | None:
        """POST /v1/batches/lease; waits at the API. A batch that cannot be read is refused at once."""
        path = "/v1/batches/lease"
        body = {"trainer_id": trainer_id, "n_sequences": n_sequences, "wait_s": wait_s, "lease_s": lease_s}
        answer = self._transport.call("POST", path, body, accept=BATCH_TYPE, ending=END)
        if answer.status_code == 204:
            return None
        told = answer.headers
        try:
            named = LeasedBatch(
                batch_id=told["Atropos-Batch-Id"],
                attempt=int(told["Atropos-Attempt"]),
                expires_at=float(told["Atropos-Lease-Expires"]),
                step=int(told["Atropos-Step"]),
                groups=[],
            )
        except (KeyError, ValueError) as error:
            where = f"{self._transport.url}{path}"
            raise ApiError("the answer's headers name no lease", where=where, got=error) from error
        try:
            return replace(named, groups=decode_batch(answer.content))
        except WireError as error:
            self.nack(named, f"cannot be decoded: {error}")
            raise

    def heartbeat(self, batch: LeasedBatch, lease_s: float) -> float:
        """POST /v1/batches/{id}/heartbeat; not repeated beyond the time of the next one."""
        body = {"attempt": batch.attempt, "lease_s": lease_s}
        answer = self._transport.json("POST", _path(batch, "heartbeat"), body, patience_s=lease_s / 4)
        return _number(answer, "expires_at")

    def ack(self, batch: LeasedBatch) -> int:
        """POST /v1/batches/{id}/ack."""
        answer = self._transport.json("POST", _path(batch, "ack"), {"attempt": batch.attempt})
        return int(_number(answer, "step"))

    def nack(self, batch: LeasedBatch, reason: str) -> None:
        """POST /v1/batches/{id}/nack."""
        self._transport.call("POST", _path(batch, "nack"), {"attempt": batch.attempt, "reason": reason})

    def commit(self, trainer_id: str, batch_id: str) -> int:
        """POST /v1/trainers/{id}/commit."""
        path = f"/v1/trainers/{quote(trainer_id, safe='')}/commit"
        answer = self._transport.json("POST", path, {"batch_id": batch_id})
        return int(_number(answer, "committed"))


class AtroposRoutes:
    """Atropos 0.4.0's: a batch is handed out for good, so nothing is renewed, acked or committed."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._step = 0

    def register(self, run: Mapping[str, Any], trainer_id: str, last_committed: str | None) -> Registered:
        """POST /register."""
        self._transport.json("POST", "/register", run)
        self._step = int(run.get("starting_step", 0))
        reached = int(self._transport.json("GET", "/status").get("current_step", 0))
        return Registered(step=reached, replayed=0)

    def lease(
        self, trainer_id: str, n_sequences: int | None, wait_s: float, lease_s: float
    ) -> LeasedBatch | None:
        """GET /batch, asked about once a second; its size is always the registered one."""
        deadline = time.monotonic() + wait_s
        while True:
            answer = self._transport.json("GET", "/batch")
            if answer.get("status") == "error":
                raise ApiError(
                    "the trajectory API gives no batch",
                    code="api.not_registered",
                    where=f"{self._transport.url}/batch",
                    got=answer.get("message"),
                )
            if answer.get("batch"):
                groups = [to_arrays(group, strict=False) for group in answer["batch"]]
                return LeasedBatch(None, 1, math.inf, self._step, groups)
            left_s = deadline - time.monotonic()
            if left_s <= 0 or self._transport.pause(min(ATROPOS_POLL_S, left_s)):
                return None

    def heartbeat(self, batch: LeasedBatch, lease_s: float) -> float:
        """Nothing expires."""
        return batch.expires_at

    def ack(self, batch: LeasedBatch) -> int:
        """Counted here, for a server that forgot us."""
        self._step += 1
        return self._step

    def nack(self, batch: LeasedBatch, reason: str) -> None:
        """It cannot be given back."""

    def commit(self, trainer_id: str, batch_id: str) -> int:
        """Nothing is kept."""
        return 0


def _path(batch: LeasedBatch, verb: str) -> str:
    return f"/v1/batches/{quote(batch.batch_id or '', safe='')}/{verb}"


def _number(answer: Mapping[str, Any], name: str) -> float:
    value = answer.get(name)
    if not isinstance(value, int | float):
        raise ApiError("the trajectory API's answer lacks a number", where=name, got=value)
    return value
