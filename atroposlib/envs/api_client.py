"""The environment's HTTP client of the trajectory API: one session, errors by kind, groups as JSON."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import orjson

from atroposlib.config.api_access import api_access
from atroposlib.errors import ApiError

if TYPE_CHECKING:
    import aiohttp

GZIP_FROM_BYTES = 1024
REQUEST_SECONDS = 120.0
CONNECT_SECONDS = 10.0
LONGEST_RETRY_AFTER_SECONDS = 60.0
NOT_FOUND = 404


class Refusal(ApiError):
    """An answer that is no success.

    Attributes:
        status: The HTTP status.
        retry_after: Seconds that the API asked to wait before the same request.
    """

    status = 0
    retry_after = 0.0


class TrajectoryApi:
    """Requests to one trajectory API over one keep-alive session, opened at the first request.

    Args:
        base_url: Address of the API; ``user:password@`` in it is sent as HTTP Basic, and otherwise the
            environment variable ``ATROPOS_TOKEN`` as bearer token.

    Attributes:
        base_url: The address without credentials.
        takes_frames: Whether it has the /v1 routes; None before :meth:`probe`.
    """

    def __init__(self, base_url: str) -> None:
        self.base_url, self._headers = api_access(base_url)
        self.takes_frames: bool | None = None
        self._session: aiohttp.ClientSession | None = None

    async def probe(self) -> None:
        """Find out whether it takes frames; an Atropos 0.4.0 server does not. Raises ApiError."""
        try:
            await self.get("/v1/status")
        except Refusal as refusal:
            if refusal.status != NOT_FOUND:
                raise
            self.takes_frames = False
        else:
            self.takes_frames = True

    async def get(self, route: str, body: dict[str, Any] | None = None) -> Any:
        """The JSON answer to a GET, with a JSON body where the route wants one. Raises ApiError."""
        return await self._request("GET", route, None if body is None else orjson.dumps(body), {})

    async def post(
        self, route: str, body: dict[str, Any] | bytes, headers: dict[str, str] | None = None
    ) -> Any:
        """The JSON answer to a POST of an object or of a body from :func:`encode`. Raises ApiError."""
        sent = body if isinstance(body, bytes) else orjson.dumps(body)
        return await self._request("POST", route, sent, headers or {})

    async def close(self) -> None:
        """Close the session."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _request(self, method: str, route: str, body: bytes | None, headers: dict[str, str]) -> Any:
        # Imported here because it takes 0.3 s, and --help needs no client.
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS, sock_connect=CONNECT_SECONDS),
            )
        url = self.base_url + route
        sent = {"Content-Type": "application/json", **headers} if body is not None else headers
        try:
            async with self._session.request(
                method, url, data=body, headers=sent, allow_redirects=False
            ) as answer:
                text = await answer.read()
                status, told = answer.status, answer.headers.get("Retry-After", "")
        except (aiohttp.ClientError, OSError) as error:
            raise ApiError(
                "the trajectory API cannot be reached",
                code="api.unreachable",
                where=url,
                got=str(error) or type(error).__name__,
            ) from error
        return _parse(url, status, text, told)


def _parse(url: str, status: int, text: bytes, retry_after: str) -> Any:
    try:
        answer = orjson.loads(text)
    except orjson.JSONDecodeError:
        answer = None
    if status < 300 and answer is not None:
        return answer
    excerpt = text[:300].decode("utf-8", "replace").strip()
    refusal = Refusal(
        f"the trajectory API answered with status {status}",
        code=_code(status, answer),
        where=url,
        got=answer.get("detail", excerpt) if isinstance(answer, dict) else excerpt,
    )
    refusal.status = status
    if retry_after.isdecimal():
        refusal.retry_after = min(float(retry_after), LONGEST_RETRY_AFTER_SECONDS)
    raise refusal


def _code(status: int, answer: Any) -> str:
    told = answer.get("code") if isinstance(answer, dict) else None
    if told in ("api.not_registered", "api.queue_full"):
        return str(told)
    if status in (408, 429):
        return "api.queue_full"
    return "api.failed" if status >= 500 or status < 400 else "api.refused"


def to_json(value: Any) -> bytes:
    """JSON of a group or a list of groups, which may hold numpy numbers and arrays.

    NaN and infinities are written as Python's ``json`` writes them, so that the API can name the field.
    Raises TypeError for a value that JSON cannot hold.
    """
    body = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)
    if b",null" in body or b"[null" in body:
        # orjson turns non-finite numbers into null, which would hide from the API what was wrong.
        return json.dumps(value, default=lambda item: item.tolist()).encode()
    return body


def encode(groups: Any) -> tuple[bytes, dict[str, str]]:
    """A group or a list of groups as a request body, compressed when that is shorter, and its headers."""
    body = to_json(groups)
    if len(body) >= GZIP_FROM_BYTES:
        # Level 1: level 9 takes 2.5 s for a K=64 group of 8x1024 and saves little.
        packed = gzip.compress(body, compresslevel=1)
        if len(packed) < len(body):
            return packed, {"Content-Encoding": "gzip"}
    return body, {}
