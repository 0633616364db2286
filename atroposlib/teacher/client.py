"""Asks a teacher server for the logprobs of a sequence: ``prompt_logprobs`` on ``/v1/completions``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import aiohttp

from atroposlib.config.server import APIServerConfig
from atroposlib.errors import TeacherError, UsageError
from atroposlib.teacher.persistence import PATIENCE_S, persist
from atroposlib.teacher.scores import parse_prompt_logprobs
from atroposlib.teacher.transport import TEACHER, Peer, bad_reply, call, decode, peer_of
from atroposlib.types import TeacherScores


async def score(
    session: aiohttp.ClientSession,
    config: APIServerConfig,
    ids: Sequence[int],
    k: int,
    *,
    patience_s: float = PATIENCE_S,
) -> TeacherScores:
    """The teacher's logprobs of the T tokens ``ids`` and of its top-k at each of them.

    Args:
        session: The caller's session (see :func:`atroposlib.teacher.transport.open_session`).
        config: The teacher server. Its ``timeout`` bounds one request, also while the server is paused.
        ids: Token ids in the teacher's vocabulary.
        k: Top-k tokens at each position; 0 for the selected token alone.
        patience_s: Seconds over which a server that is down or busy is asked again.

    Returns:
        R = T - 1 rows from position 1, K = k + 1 columns; see :class:`atroposlib.types.TeacherScores`.

    Raises:
        TeacherUnreachable: No connection within ``patience_s``, or no answer within the timeout.
        TeacherError: Refused (4xx), failed (5xx) or answered with something that is not the scores.
    """
    peer = peer_of(config, TEACHER)
    return await persist(lambda: score_once(session, peer, ids, k), patience_s=patience_s)


async def score_once(session: aiohttp.ClientSession, peer: Peer, ids: Sequence[int], k: int) -> TeacherScores:
    """One try of :func:`score`. Raises Passing where another try may succeed."""
    if k < 0:
        raise UsageError("a teacher cannot be asked for fewer than 0 top tokens", got=k, expected=">= 0")
    if not ids:
        raise TeacherError("a sequence without tokens cannot be scored", code="teacher.refused")
    # One token must be sampled: a stock server refuses max_tokens 0.
    request: dict[str, Any] = {
        "prompt": list(ids),
        "prompt_logprobs": k,
        "max_tokens": 1,
        "temperature": 0.0,
    }
    if peer.model is not None:
        request["model"] = peer.model
    body = await call(session, peer, "/v1/completions", request)
    return await decode(body, peer, lambda reply: _read(reply, peer, ids, k))


async def tokenize_once(session: aiohttp.ClientSession, peer: Peer, text: str) -> list[int]:
    """One try of the server's ``/tokenize``: the ids of ``text``, special tokens added as for a prompt."""
    request = {"prompt": text} if peer.model is None else {"prompt": text, "model": peer.model}
    body = await call(session, peer, "/tokenize", request)
    return await decode(body, peer, lambda reply: _tokens(reply, peer))


def _tokens(reply: Any, peer: Peer) -> list[int]:
    tokens = reply.get("tokens") if isinstance(reply, dict) else None
    if not isinstance(tokens, list) or not set(map(type, tokens)) <= {int}:
        raise bad_reply(peer, "/tokenize answers no token ids")
    return tokens


def _read(reply: Any, peer: Peer, ids: Sequence[int], k: int) -> TeacherScores:
    choices = reply.get("choices") if isinstance(reply, dict) else None
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise bad_reply(peer, "the teacher's answer does not hold exactly one choice")
    rows = choices[0].get("prompt_logprobs")
    if rows is None:
        raise bad_reply(
            peer,
            "the teacher's answer holds no prompt_logprobs",
            fix="serve the teacher with vLLM or atropos model-server",
        )
    model = reply.get("model")
    try:
        return parse_prompt_logprobs(rows, ids, k, model=model if isinstance(model, str) else "")
    except TeacherError as error:
        where = f"{peer.root} {error.where}" if error.where else peer.root
        raise TeacherError(
            error.what, code=error.code, where=where, got=error.got, expected=error.expected
        ) from error
