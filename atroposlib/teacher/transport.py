"""One request to a model server, and what its failures are called.

A refusal (4xx) is final: the request is wrong, and stays wrong. No answer within the server's ``timeout`` is
final too: a paused server simply does not answer, so waiting is no failure, and the timeout is the one limit
on it. Every other failure (no connection, 5xx, 429) is raised as Passing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import aiohttp
import orjson

from atroposlib.config.server import APIServerConfig
from atroposlib.errors import AtroposError, TeacherError, TeacherUnreachable
from atroposlib.teacher.address import server_root
from atroposlib.teacher.persistence import Passing
from atroposlib.teacher.refusals import read_refusal, remedy

JSON_TYPE = "application/json"
CONNECT_S = 10.0
KEEP_ALIVE_S = 4.0
OFF_LOOP_BYTES = 1_000_000
BUSY = frozenset({408, 425, 429, 502, 503, 504})
"""Statuses that say: later, or somewhere else."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Party:
    """Whom a request goes to; decides by which names its failures are called.

    Attributes:
        name: As errors tell it.
        error: Class of its failures.
        unreachable: Class of the failure to answer at all.
        codes: Error code of each kind of failure.
    """

    name: str
    error: type[AtroposError]
    unreachable: type[AtroposError]
    codes: Mapping[Literal["unreachable", "refused", "failed", "bad_reply"], str]


TEACHER = Party(
    "teacher",
    TeacherError,
    TeacherUnreachable,
    {
        "unreachable": "teacher.unreachable",
        "refused": "teacher.refused",
        "failed": "teacher.failed",
        "bad_reply": "teacher.bad_reply",
    },
)


@dataclass(frozen=True, slots=True)
class Peer:
    """A model server as a client sees it.

    Attributes:
        party: Whom the server is to us.
        root: URL without ``/v1`` and without a trailing slash.
        model: Model name for the request body; None lets the server take the one it serves.
        timeout_s: Seconds after which a request is given up.
        api_key: Bearer token, empty for none; never printed.
    """

    party: Party
    root: str
    model: str | None
    timeout_s: float
    api_key: str = field(default="", repr=False)


def peer_of(config: APIServerConfig, party: Party) -> Peer:
    """The server of ``config``. The model name "default" stands for whatever model the server serves."""
    model = None if config.model_name in ("", "default") else config.model_name
    return Peer(party, server_root(config.base_url), model, float(config.timeout), config.api_key)


def open_session(*traces: aiohttp.TraceConfig) -> aiohttp.ClientSession:
    """A session for model servers; to be closed by its owner. Needs a running event loop."""
    # Requests are bounded by the callers' slots, not by connections. vLLM closes idle connections after 5 s:
    # ours end earlier, so that no request is written into a connection that is just being closed.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S)
    return aiohttp.ClientSession(connector=connector, trace_configs=list(traces))


@dataclass(frozen=True, slots=True)
class Answer:
    """Status and body of a server's answer."""

    status: int
    content: bytes


async def send(
    session: aiohttp.ClientSession,
    peer: Peer,
    path: str,
    body: Mapping[str, Any] | bytes | None = None,
    *,
    media_type: str = JSON_TYPE,
    limit: int | None = None,
) -> Answer:
    """One try: POST ``body`` (GET when None) to ``path``, whatever the status of the answer.

    Args:
        session: The caller's session.
        peer: The server.
        path: Route, from the server's root.
        body: JSON values (numpy arrays too), or bytes of ``media_type``.
        media_type: Type of ``body``.
        limit: Bytes after which the answer is refused while it is read; None for no limit.

    Raises:
        Passing: The connection failed.
        AtroposError: The party's unreachable when no answer came within ``timeout_s``, its bad_reply when the
            answer is longer than ``limit``.
    """
    headers = {"Content-Type": media_type}
    if peer.api_key:
        headers["Authorization"] = f"Bearer {peer.api_key}"
    data = _json(body) if isinstance(body, Mapping) else body
    try:
        async with session.request(
            "GET" if body is None else "POST",
            peer.root + path,
            data=data,
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=peer.timeout_s, sock_connect=CONNECT_S),
            allow_redirects=False,
        ) as response:
            return Answer(response.status, await _read(response, peer, limit))
    except (aiohttp.ClientError, TimeoutError) as failure:
        raise _no_answer(peer, path, failure) from failure


async def call(
    session: aiohttp.ClientSession,
    peer: Peer,
    path: str,
    body: Mapping[str, Any] | bytes,
    *,
    media_type: str = JSON_TYPE,
    limit: int | None = None,
) -> bytes:
    """:func:`send`, and the bytes of the answer when its status is 200.

    Raises:
        Passing: The failure may pass.
        AtroposError: The party's error for a refusal, for no answer in time or for too long a one.
    """
    answer = await send(session, peer, path, body, media_type=media_type, limit=limit)
    if answer.status == 200:
        return answer.content
    raise refused(peer, path, answer, body if isinstance(body, Mapping) else {})


def _json(body: Mapping[str, Any]) -> bytes:
    # Arrays that are not contiguous come to the default.
    return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY, default=lambda array: array.tolist())


async def _read(response: aiohttp.ClientResponse, peer: Peer, limit: int | None) -> bytes:
    if limit is None:
        return await response.read()
    chunks, size = [], 0
    # Inflated bytes count, and count before the next ones are inflated.
    async for chunk in response.content.iter_any():
        chunks.append(chunk)
        size += len(chunk)
        if size > limit:
            raise bad_reply(peer, "the answer is longer than any right one", expected=f"<= {limit} bytes")
    return b"".join(chunks)


def _no_answer(peer: Peer, path: str, failure: Exception) -> Exception:
    code, where = peer.party.codes["unreachable"], peer.root + path
    if isinstance(failure, TimeoutError) and not isinstance(failure, aiohttp.ConnectionTimeoutError):
        late = peer.party.unreachable(
            f"the {peer.party.name} server gave no answer in time",
            code=code,
            where=where,
            got=f"no answer for {peer.timeout_s:g} s",
            fix="raise its timeout, or teacher_patience where that is shorter, "
            "or see whether the server is paused or overloaded",
        )
        late.timed_out = True
        return late
    error = peer.party.unreachable(
        f"the {peer.party.name} server cannot be reached",
        code=code,
        where=where,
        got=str(failure) or type(failure).__name__,
        fix="start the server or correct base_url",
    )
    if isinstance(failure, aiohttp.ClientSSLError):
        return error
    down = isinstance(failure, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError))
    return Passing(error, "down" if down else "broken")


def refused(peer: Peer, path: str, answer: Answer, request: Mapping[str, Any]) -> Exception:
    """What to raise for an answer that is not 200: the party's error, or Passing where it may pass."""
    status = answer.status
    refusal = read_refusal(status, answer.content)
    said = refusal.message.replace(peer.api_key, "***") if peer.api_key else refusal.message
    final = status < 500 and status not in BUSY
    error = peer.party.error(
        f"the {peer.party.name} server {'refused the request' if final else 'failed on the request'}",
        code=peer.party.codes["refused" if final else "failed"],
        where=peer.root + path,
        got=f"HTTP {status}: {said}" if said else f"HTTP {status}",
        fix=remedy(refusal, request) if final else None,
    )
    if final:
        return error
    return Passing(error, "busy" if status in BUSY else "broken")


async def decode(body: bytes, peer: Peer, parse: Callable[[Any], T]) -> T:
    """``parse`` applied to the JSON in ``body``, in a thread when the body is large.

    Raises:
        AtroposError: The party's bad_reply when ``body`` is not JSON; what ``parse`` raises.
    """

    def work() -> T:
        try:
            reply = orjson.loads(body)
        except orjson.JSONDecodeError as failure:
            raise bad_reply(peer, "the answer is not JSON", got=str(failure)) from failure
        return parse(reply)

    return await asyncio.to_thread(work) if len(body) > OFF_LOOP_BYTES else work()


def bad_reply(
    peer: Peer, what: str, *, got: object = None, expected: object = None, fix: str | None = None
) -> AtroposError:
    """The party's error for an answer that is not what was asked for."""
    code = peer.party.codes["bad_reply"]
    return peer.party.error(what, code=code, where=peer.root, got=got, expected=expected, fix=fix)
