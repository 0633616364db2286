"""The trainer's HTTP client of the trajectory API: registers once and asks for batches. Needs no torch."""

from __future__ import annotations

import logging
import threading
from typing import Any

import orjson
import requests
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    stop_after_delay,
    stop_when_event_set,
    wait_random_exponential,
)
from tenacity.nap import sleep_using_event

from atroposlib.errors import ApiError
from atroposlib.types import ScoredDataGroup

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 60.0


class _Unavailable(Exception):
    """A 5xx answer: worth asking again."""


_PASSING_FAULTS = (
    requests.ConnectionError,
    requests.Timeout,
    requests.exceptions.ChunkedEncodingError,
    _Unavailable,
)


class TrainerClient:
    """Speaks Atropos's trainer routes; every call is repeated with back-off while the API does not answer.

    Repeating is safe: a batch whose answer did not arrive whole goes back to the front of the queue.

    Args:
        url: Address of the API.
        give_up_after_s: Seconds without an answer after which a call raises.
        stop: Set by the owner to make waiting calls end early.

    Attributes:
        step: Steps taken so far, kept up by the owner; an API that forgot us starts its count there.
    """

    def __init__(
        self, url: str, *, give_up_after_s: float = 120.0, stop: threading.Event | None = None
    ) -> None:
        self.url = url.rstrip("/")
        self.stop = stop or threading.Event()
        self.step = 0
        self._give_up_after_s = give_up_after_s
        self._registration: dict[str, Any] | None = None
        self._session = requests.Session()
        # A proxy of the environment must not come between processes of one run; aiohttp ignores it too.
        self._session.trust_env = False

    def info(self) -> dict[str, Any]:
        """Batch size and longest sequence as the API knows them (-1 before a trainer registered).

        Raises:
            ApiError: The API refused or did not answer in time; this holds for every method.
        """
        return self._call("GET", "/info")

    def register(self, registration: dict[str, Any]) -> None:
        """Tell the API what this trainer trains (the fields of Atropos's POST /register)."""
        self._call("POST", "/register", registration)
        self._registration = registration
        self.step = registration.get("starting_step", 0)

    def current_step(self) -> int:
        """The step that the API has reached."""
        return int(self._call("GET", "/status").get("current_step", 0))

    def status(self) -> dict[str, Any] | None:
        """GET /v1/status, or None from a server without that route, such as Atropos's."""
        try:
            return self._call("GET", "/v1/status")
        except ApiError as error:
            if error.code != "api.refused":
                raise
            return None

    def batch(self) -> list[ScoredDataGroup] | None:
        """The next batch, or None while there is none. Registers again with an API that forgot us."""
        answer = self._call("GET", "/batch")
        if answer.get("status") == "error":
            if self._registration is None:
                raise ApiError(
                    "the trajectory API gives no batch",
                    code="api.not_registered",
                    where=f"{self.url}/batch",
                    got=answer.get("message"),
                )
            logger.warning("the API at %s no longer knows this trainer; registering again", self.url)
            self.register(self._registration | {"starting_step": self.step})
            return None
        batch: list[ScoredDataGroup] | None = answer.get("batch")
        return batch or None

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        retrying = Retrying(
            retry=retry_if_exception_type(_PASSING_FAULTS),
            wait=wait_random_exponential(multiplier=0.25, max=10.0),
            stop=stop_after_delay(self._give_up_after_s) | stop_when_event_set(self.stop),
            sleep=sleep_using_event(self.stop),
            before_sleep=self._say_retry,
            reraise=True,
        )
        where = f"{self.url}{path}"
        try:
            return retrying(self._once, method, where, body)
        except _PASSING_FAULTS as error:
            raise ApiError(
                f"the trajectory API did not answer for {self._give_up_after_s:g} s",
                code="api.unreachable",
                where=where,
                got=_reason(error),
                fix="start it with `atropos api` or correct api_url",
            ) from error

    def _once(self, method: str, where: str, body: dict[str, Any] | None) -> dict[str, Any]:
        response = self._session.request(
            method, where, json=body, timeout=(CONNECT_TIMEOUT_S, READ_TIMEOUT_S)
        )
        if response.status_code >= 500:
            raise _Unavailable(f"status {response.status_code}")
        if response.status_code != 200:
            got = f"status {response.status_code}: {response.text[:200]}"
            raise ApiError("the trajectory API refused the request", where=where, got=got)
        try:
            answer = orjson.loads(response.content)
        except orjson.JSONDecodeError as error:
            raise ApiError("the trajectory API's answer is not JSON", where=where, got=error) from error
        if not isinstance(answer, dict):
            raise ApiError(
                "the trajectory API's answer is not an object", where=where, got=type(answer).__name__
            )
        return answer

    def _say_retry(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        logger.warning("no answer from the trajectory API at %s (%s); asking again", self.url, _reason(error))


def _reason(error: BaseException | None) -> str:
    if isinstance(error, requests.Timeout):
        return "timed out"
    if isinstance(error, requests.ConnectionError):
        return "no connection"
    return str(error)
