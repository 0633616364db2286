"""The route that every vLLM has: ``prompt_logprobs`` on ``/v1/completions``, answered as JSON."""

from __future__ import annotations

from typing import Any

import aiohttp
import msgspec

from atroposlib.errors import TeacherError
from atroposlib.teacher.decoding import byte_limit, parsed, read_reply
from atroposlib.teacher.protocol import Capabilities, Question
from atroposlib.teacher.scores import Rows, from_rows
from atroposlib.teacher.served import read_served
from atroposlib.teacher.transport import Peer, call
from atroposlib.types import TeacherScores

PATH = "/v1/completions"


class _Choice(msgspec.Struct):
    prompt_logprobs: Rows | None = None


class _Reply(msgspec.Struct):
    choices: list[_Choice]
    model: str | None = None


_decoder = msgspec.json.Decoder(_Reply)


class Completions:
    """See :class:`atroposlib.teacher.protocol.Route`. Rows before the start are sent, and cut here."""

    name = "completions"

    async def probe(self, session: aiohttp.ClientSession, peer: Peer) -> Capabilities | None:
        """What the server says of itself; whether it answers prompt_logprobs shows in the first answer."""
        return (await read_served(session, peer)).capabilities(self.name, peer)

    async def score(
        self, session: aiohttp.ClientSession, peer: Peer, question: Question, capabilities: Capabilities
    ) -> TeacherScores:
        """One try."""
        # One token must be sampled: a stock server refuses max_tokens 0.
        request: dict[str, Any] = {
            "prompt": question.ids,
            "prompt_logprobs": question.k,
            "max_tokens": 1,
            "temperature": 0.0,
        }
        if peer.model is not None:
            request["model"] = peer.model
        body = await call(session, peer, PATH, request, limit=byte_limit(question))
        return await read_reply(peer, read, body, question, capabilities.server)


def read(body: bytes, question: Question, server: str = "") -> TeacherScores:
    """The checked scores in an answer of ``/v1/completions``.

    Raises:
        TeacherError: teacher.bad_reply.
    """
    reply = parsed(_decoder, body)
    if len(reply.choices) != 1:
        raise TeacherError("the answer does not hold exactly one choice", got=len(reply.choices))
    rows = reply.choices[0].prompt_logprobs
    return from_rows(rows, question, body=body, model=reply.model or "", server=server)
