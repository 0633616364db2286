"""HTTP calls of a trainer to the trajectory API, repeated with back-off until they are answered."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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

from atroposlib.config.api_access import api_access
from atroposlib.errors import CODES, ApiError

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 60.0
STOPPED_TIMEOUT_S = 3.0
LONGEST_RETRY_AFTER_S = 60.0
NOT_FOUND = 404
LATER_STATUSES = (408, 425, 429)
"""Besides every 5xx: the same request may be answered later."""

_BACK_OFF = wait_random_exponential(multiplier=0.25, max=10.0)


class Refused(ApiError):
    """A 4xx answer that is final.

    Attributes:
        status: The HTTP status.
    """

    status = 0


class Unavailable(Exception):
    """An answer that says "later", or that did not arrive whole.

    Attributes:
        retry_after_s: Seconds that the API asked to wait.
    """

    def __init__(self, what: str, retry_after_s: float = 0.0) -> None:
        super().__init__(what)
        self.retry_after_s = retry_after_s


_PASSING_FAULTS = (
    requests.ConnectionError,
    requests.Timeout,
    requests.exceptions.ChunkedEncodingError,
    requests.exceptions.ContentDecodingError,
    Unavailable,
)


class Transport:
    """Asks one API until it answers. Safe to use from several threads.

    Args:
        url: Address of the API, perhaps with credentials.
        token: Bearer token; None takes the environment's.
        give_up_after_s: Seconds without an answer after which a call raises.
        stop: Makes calls that are being repeated end early.

    Attributes:
        url: The address without credentials, for messages.
    """

    def __init__(self, url: str, *, token: str | None, give_up_after_s: float, stop: threading.Event) -> None:
        self.url, self._headers = api_access(url, token)
        self._give_up_after_s = give_up_after_s
        self._stop = stop
        self._idle: deque[requests.Session] = deque()

    def json(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        patience_s: float | None = None,
    ) -> dict[str, Any]:
        """The JSON object that a call is answered with. Raises ApiError, see :meth:`call`."""
        response = self.call(method, path, body, patience_s=patience_s)
        where = f"{self.url}{path}"
        try:
            answer = orjson.loads(response.content)
        except orjson.JSONDecodeError as error:
            raise ApiError("the trajectory API's answer is not JSON", where=where, got=error) from error
        if not isinstance(answer, dict):
            raise ApiError(
                "the trajectory API's answer is not an object", where=where, got=type(answer).__name__
            )
        return answer

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        patience_s: float | None = None,
        accept: str = "application/json",
        ending: bytes = b"",
    ) -> requests.Response:
        """The whole answer to a call that may be repeated without harm.

        Args:
            method: HTTP method.
            path: Path of the route.
            body: JSON body.
            patience_s: Seconds without an answer after which it raises; None takes the client's, which may
                be shorter than the API takes for one answer.
            accept: Media type that is asked for.
            ending: What a body has to end with; another one did not arrive whole, and is asked for again.

        Raises:
            ApiError: The API refused (with the code it told), or did not answer in time.
        """
        patience = self._give_up_after_s if patience_s is None else patience_s
        retrying = Retrying(
            retry=retry_if_exception_type(_PASSING_FAULTS),
            wait=_pause,
            stop=stop_after_delay(patience) | stop_when_event_set(self._stop),
            sleep=sleep_using_event(self._stop),
            before_sleep=self._say_retry,
            reraise=True,
        )
        where = f"{self.url}{path}"
        try:
            return retrying(self._once, method, where, body, accept, ending, patience_s or READ_TIMEOUT_S)
        except _PASSING_FAULTS as error:
            raise ApiError(
                f"the trajectory API did not answer for {patience:g} s",
                code="api.unreachable",
                where=where,
                got=_reason(error),
                fix="start it with `atropos api` or correct api_url",
            ) from error

    def has(self, path: str) -> bool:
        """Whether the server has a route: anything but 404 says so. Raises ApiError, see :meth:`call`."""
        try:
            self.call("GET", path)
        except Refused as error:
            if error.status != NOT_FOUND:
                raise
            return False
        return True

    def pause(self, seconds: float) -> bool:
        """Sleep, but not beyond the stop; returns whether that was it."""
        return self._stop.wait(seconds)

    def close(self) -> None:
        """Close the idle connections; a call that is under way in another thread ends by itself."""
        while self._idle:
            self._idle.pop().close()

    def _once(
        self,
        method: str,
        where: str,
        body: Mapping[str, Any] | None,
        accept: str,
        ending: bytes,
        read_s: float,
    ) -> requests.Response:
        # Whoever was stopped wants to end, also when the API hangs.
        read_s = min(read_s, STOPPED_TIMEOUT_S if self._stop.is_set() else READ_TIMEOUT_S)
        with self._session() as session:
            response = session.request(
                method,
                where,
                json=body,
                headers={"Accept": accept},
                timeout=(CONNECT_TIMEOUT_S, read_s),
                # A redirected POST would come there as a GET.
                allow_redirects=False,
            )
        if response.status_code >= 500 or response.status_code in LATER_STATUSES:
            raise Unavailable(f"status {response.status_code}", _retry_after_s(response))
        if response.status_code >= 300:
            raise _refusal(where, response)
        if response.status_code == 200 and not response.content.endswith(ending):
            raise Unavailable("the answer was cut")
        return response

    @contextmanager
    def _session(self) -> Iterator[requests.Session]:
        """A session that no other thread uses meanwhile, since a session is not made for sharing."""
        try:
            session = self._idle.pop()
        except IndexError:
            session = requests.Session()
            # A proxy of the environment must not come between processes of one run; aiohttp ignores it too.
            session.trust_env = False
            session.headers.update(self._headers)
        try:
            yield session
        finally:
            self._idle.append(session)

    def _say_retry(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        logger.warning("no answer from the trajectory API at %s (%s); asking again", self.url, _reason(error))


def _pause(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    asked = error.retry_after_s if isinstance(error, Unavailable) else 0.0
    return max(_BACK_OFF(state), asked)


def _retry_after_s(response: requests.Response) -> float:
    told = response.headers.get("Retry-After", "")
    return min(float(told), LONGEST_RETRY_AFTER_S) if told.isdecimal() else 0.0


def _refusal(where: str, response: requests.Response) -> Refused:
    """The API's own words where they are a problem document of ours, the start of its answer elsewhere."""
    code = detail = None
    try:
        told = orjson.loads(response.content)
        code, detail = told.get("code"), told.get("detail")
    except (orjson.JSONDecodeError, AttributeError):
        detail = response.text[:200]
    refusal = Refused(
        "the trajectory API refused the request",
        code=code if isinstance(code, str) and code in CODES else None,
        where=where,
        got=f"status {response.status_code}: {detail}",
    )
    refusal.status = response.status_code
    return refusal


def _reason(error: BaseException | None) -> str:
    if isinstance(error, requests.Timeout):
        return "timed out"
    if isinstance(error, requests.ConnectionError):
        return "no connection"
    return str(error)
