"""OpenAI-style ``echo`` with ``logprobs`` on ``/v1/completions``, from servers that name tokens by id."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import aiohttp
import msgspec
import numpy as np
from numpy.typing import NDArray

from atroposlib.errors import TeacherError
from atroposlib.teacher.checks import SLACK, checked
from atroposlib.teacher.columns import with_standing
from atroposlib.teacher.completions import PATH
from atroposlib.teacher.decoding import byte_limit, parsed, read_reply
from atroposlib.teacher.protocol import Capabilities, Question
from atroposlib.teacher.scores import MAX_ID, cut
from atroposlib.teacher.served import read_served
from atroposlib.teacher.transport import Peer, call
from atroposlib.types import ABSENT_ID, ABSENT_LOGPROB, TeacherScores

_NAME = re.compile(r"token_id:(0|[1-9]\d{0,9})", re.ASCII)
_KEY = re.compile(rb'"token_id:\d+"\s*:')


class _Logprobs(msgspec.Struct):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None = None


class _Choice(msgspec.Struct):
    logprobs: _Logprobs


class _Reply(msgspec.Struct):
    choices: list[_Choice]
    model: str | None = None


_decoder = msgspec.json.Decoder(_Reply)


class Echo:
    """See :class:`atroposlib.teacher.protocol.Route`. Rows before the start are sent, and cut here."""

    name = "echo"

    async def probe(self, session: aiohttp.ClientSession, peer: Peer) -> Capabilities | None:
        """What the server says of itself; whether it echoes ids shows in the first answer."""
        return (await read_served(session, peer)).capabilities(self.name, peer)

    async def score(
        self, session: aiohttp.ClientSession, peer: Peer, question: Question, capabilities: Capabilities
    ) -> TeacherScores:
        """One try."""
        request: dict[str, Any] = {
            "prompt": question.ids,
            "echo": True,
            "logprobs": question.k,
            "max_tokens": 0,
            "temperature": 1.0,
            "return_tokens_as_token_ids": True,
        }
        if peer.model is not None:
            request["model"] = peer.model
        body = await call(session, peer, PATH, request, limit=byte_limit(question))
        return await read_reply(peer, read, body, question, capabilities.server)


def read(body: bytes, question: Question, server: str = "") -> TeacherScores:
    """The checked scores in an echoed completion whose tokens are named ``token_id:<id>``.

    Texts are refused: several ids of a vocabulary can have the same text, and a part of a character has none.

    Raises:
        TeacherError: teacher.bad_reply.
    """
    reply = parsed(_decoder, body)
    if len(reply.choices) != 1:
        raise TeacherError("the answer does not hold exactly one choice", got=len(reply.choices))
    told = reply.choices[0].logprobs
    if _ids(told.tokens) != question.ids.tolist():
        raise TeacherError("the answer is for other tokens than those that were sent", got=len(told.tokens))
    if len(told.token_logprobs) != len(question.ids) or told.token_logprobs[0] is not None:
        raise TeacherError("token_logprobs has the wrong number of rows", got=len(told.token_logprobs))
    standing = question.ids[1:]
    if question.k == 0:
        nobody = np.zeros((len(standing), 0))
        top_ids, top_logprobs = nobody.astype(np.int32), nobody.astype(np.float32)
    else:
        top_ids, top_logprobs = _top(told, body, question)
    ids, logprobs = with_standing(standing, _logprobs(told.token_logprobs[1:]), top_ids, top_logprobs)
    whole = Question(question.ids, question.k)
    scores = TeacherScores(ids, logprobs, 1, reply.model or "", server=server)
    return cut(checked(scores, whole), question.start)


def _top(told: _Logprobs, body: bytes, question: Question) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Ids int32 and logprobs float32 [R, k] without the standing token, falling; absent at the end."""
    listed, rows = told.top_logprobs, len(question.ids) - 1
    if listed is None or len(listed) != rows + 1 or listed[0]:
        raise TeacherError("top_logprobs has the wrong number of rows", got=listed and len(listed))
    members = [row or {} for row in listed[1:]]
    # A key that stands twice in an object leaves its last value and no trace in what was parsed.
    if len(_KEY.findall(body)) != sum(map(len, members)):
        raise TeacherError("a token stands in a row twice")
    ids = np.full((rows, question.k), ABSENT_ID, dtype=np.int32)
    logprobs = np.full((rows, question.k), -np.inf, dtype=np.float32)
    for row, (token, own, named) in enumerate(
        zip(question.ids[1:].tolist(), told.token_logprobs[1:], members, strict=True)
    ):
        others = dict(zip(_ids(list(named)), named.values(), strict=True))
        inside = others.pop(token, None)
        if own is None or inside is None or abs(inside - own) > SLACK:
            raise TeacherError("a row lacks the token that stands in the sequence", where=f"rows[{row}]")
        if len(others) > question.k:
            raise TeacherError(f"a row has more than {question.k} ranked members", where=f"rows[{row}]")
        # Stable, so that the server's order decides between equals.
        ranked = sorted(others.items(), key=lambda member: -member[1])
        ids[row, : len(ranked)] = [one for one, _ in ranked]
        logprobs[row, : len(ranked)] = _logprobs([value for _, value in ranked])
    ids[np.isneginf(logprobs)] = ABSENT_ID
    return ids, logprobs


def _ids(names: Sequence[str]) -> list[int]:
    found = [_NAME.fullmatch(name) for name in names]
    ids = [int(match[1]) for match in found if match is not None]
    if len(ids) != len(names) or max(ids, default=0) > MAX_ID:
        raise TeacherError(
            "the server names tokens by text, which several ids can share",
            expected="token_id:<id>",
            fix="serve the teacher with a server that knows return_tokens_as_token_ids",
        )
    return ids


def _logprobs(values: Sequence[float | None]) -> NDArray[np.float32]:
    if None in values:
        raise TeacherError("a logprob is missing")
    numbers = np.asarray(values, dtype=np.float64)
    numbers[numbers <= ABSENT_LOGPROB] = -np.inf
    with np.errstate(over="ignore"):
        return numbers.astype(np.float32)
