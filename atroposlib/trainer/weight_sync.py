"""Hands saved weights to a running vLLM (or ``atropos model-server``) without a restart."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import requests

from atroposlib.errors import StudentError
from atroposlib.journal import Journal

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 5.0
MOST_FAILURES_IN_A_ROW = 3
ATTEMPTS = 2


def version_name(step: int) -> str:
    """Weight version of the weights after ``step`` optimizer steps, as servers and rollouts carry it."""
    return f"step-{step}"


class StudentServer:
    """The weight refresh routes of a student's server (vLLM needs ``VLLM_SERVER_DEV_MODE=1`` for them)."""

    def __init__(self, url: str, *, timeout_s: float) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self._timeout_s = timeout_s
        self._session = requests.Session()
        self._session.trust_env = False

    def refresh(self, directory: Path, version: str) -> None:
        """Load the weights in ``directory`` and serve them under ``version``.

        Requests in flight are kept and go on with the new weights. The server is resumed whatever fails
        in between.

        Raises:
            StudentError: A call failed, or the server does not confirm the version.
        """
        try:
            self._call("POST", "/pause", params={"mode": "keep"})
            self._call(
                "POST",
                "/collective_rpc",
                json={"method": "reload_weights", "kwargs": {"weights_path": str(directory.resolve())}},
            )
            self._reset_prefix_cache()
            self._call("POST", "/update_weight_version", json={"new_version": version})
        finally:
            self._call("POST", "/resume")
        confirmed = self.weight_version()
        if confirmed != version:
            raise StudentError(
                "the student's server does not confirm its new weights",
                where=f"{self.url}/weight_info",
                got=confirmed,
                expected=version,
            )

    def weight_version(self) -> str | None:
        """The version that the server says it serves."""
        version = self._call("GET", "/weight_info").get("weight_version")
        return version if isinstance(version, str) else None

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def _reset_prefix_cache(self) -> None:
        # A kept request can hold blocks of the old weights; vLLM fails a plain reset then.
        answer = self._call("POST", "/reset_prefix_cache", params={"reset_running_requests": "true"})
        if answer.get("success") is False:
            raise StudentError(
                "the student's server did not reset its prefix cache", where=f"{self.url}/reset_prefix_cache"
            )

    def _call(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        where = f"{self.url}{path}"
        try:
            response = self._session.request(
                method, where, timeout=(CONNECT_TIMEOUT_S, self._timeout_s), **request
            )
        except requests.RequestException as error:
            raise StudentError(
                "the student's server does not answer",
                code="student.unreachable",
                where=where,
                got=type(error).__name__,
            ) from error
        if response.status_code != 200:
            raise StudentError(
                "the student's server refused a step of the weight refresh",
                code="student.failed" if response.status_code >= 500 else "student.refused",
                where=where,
                got=f"status {response.status_code}: {response.text[:200]}",
            )
        try:
            answer = response.json() if response.content else {}
        except requests.JSONDecodeError as error:
            raise StudentError("the student's server does not answer in JSON", where=where) from error
        return answer if isinstance(answer, dict) else {}


class WeightSync:
    """Refreshes the student's server after steps; a failure is repeated, then counted, then ends the run."""

    def __init__(self, server: StudentServer, journal: Journal) -> None:
        self._server = server
        self._journal = journal
        self._failures = 0
        self.loaded: Path | None = None
        """Directory that the server loaded last."""

    def check(self) -> None:
        """Ask for the weight version before the first step, so that a wrong server is told at once.

        Raises:
            StudentError: The server answers and has no weight refresh routes. One that does not answer yet
                may still be loading.
        """
        try:
            version = self._server.weight_version()
        except StudentError as error:
            if error.code != "student.unreachable":
                error.fix = "start vLLM with VLLM_SERVER_DEV_MODE=1, or use `atropos model-server`"
                raise
            logger.warning("%s", error)
        else:
            logger.info("the student's server serves weights %s", version)

    def push(self, directory: Path, step: int) -> None:
        """Refresh the server with the weights of ``step``.

        Raises:
            StudentError: train.refresh_failed, when it failed three times in a row.
        """
        start = time.time()
        error = self._attempt(directory, version_name(step))
        self._journal.write(
            "refresh", start=start, step=step, version=version_name(step), confirmed=error is None
        )
        if error is None:
            self._failures, self.loaded = 0, directory
            return
        self._failures += 1
        if self._failures == MOST_FAILURES_IN_A_ROW:
            raise StudentError(
                f"the student's server did not take new weights {self._failures} times in a row",
                code="train.refresh_failed",
                where=self._server.url,
                got=error,
            ) from error

    def close(self) -> None:
        """Close the connections."""
        self._server.close()

    def _attempt(self, directory: Path, version: str) -> StudentError | None:
        error: StudentError | None = None
        for _ in range(ATTEMPTS):
            try:
                self._server.refresh(directory, version)
            except StudentError as failure:
                error = failure
                logger.warning("refresh to %s failed: %s", version, failure)
            else:
                return None
        return error
