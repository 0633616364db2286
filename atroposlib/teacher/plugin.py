"""Asks a server for scores as bytes: a vLLM with our plugin, or our model server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import msgspec

from atroposlib.errors import TeacherError
from atroposlib.teacher.binary import (
    CAPABILITIES_PATH,
    PROTOCOL,
    SCORES_PATH,
    SCORES_TYPE,
    ServerFacts,
    decode_answer,
    encode_request,
)
from atroposlib.teacher.protocol import Capabilities, Question
from atroposlib.teacher.refusals import read_refusal
from atroposlib.teacher.transport import Peer, refused, send
from atroposlib.types import TeacherScores

if TYPE_CHECKING:
    import aiohttp

OFF_LOOP_BYTES = 256 << 10
"""Answers from this size on are checked in a thread: a millisecond of numpy."""

_ANSWER_SLACK_BYTES = 64 << 10


class PluginRoute:
    """``/v1/atropos/scores``: rows from the start on, and ids that the caller names where the server can."""

    name = "plugin"

    async def probe(self, session: aiohttp.ClientSession, peer: Peer) -> Capabilities | None:
        """What the server says that it can, None when it has no such route or speaks another protocol.

        Raises:
            Passing: The failure may pass.
            TeacherError: The key is wrong, or the model's name.
        """
        path = CAPABILITIES_PATH + (f"?{urlencode({'model': peer.model})}" if peer.model else "")
        answer = await send(session, peer, path)
        if answer.status != 200:
            # What lies before a server may answer an unknown path with any 4xx.
            about_us = answer.status in (401, 408, 425, 429) or answer.status >= 500
            if about_us or read_refusal(answer.status, answer.content).param == "model":
                raise refused(peer, path, answer, {})
            return None
        try:
            facts = msgspec.json.decode(answer.content, type=ServerFacts)
        except msgspec.MsgspecError:
            return None
        if facts.protocol != PROTOCOL:
            return None
        return Capabilities(
            route=self.name,
            server=facts.server,
            model=facts.model,
            max_model_len=facts.max_model_len,
            max_k=facts.max_k,
            extra_ids=facts.extra_ids,
            start=True,
            binary=True,
        )

    async def score(
        self, session: aiohttp.ClientSession, peer: Peer, question: Question, capabilities: Capabilities
    ) -> TeacherScores:
        """The checked scores; see :class:`atroposlib.teacher.protocol.Route`."""
        body = encode_request([question], peer.model)
        answer = await send(
            session, peer, SCORES_PATH, body, media_type=SCORES_TYPE, limit=_most_bytes(question)
        )
        if answer.status != 200:
            raise refused(peer, SCORES_PATH, answer, {"prompt_logprobs": question.k})
        return await _decode(answer.content, peer, question)


async def _decode(body: bytes, peer: Peer, question: Question) -> TeacherScores:
    try:
        if len(body) < OFF_LOOP_BYTES:
            return decode_answer(body, [question])[0]
        return (await asyncio.to_thread(decode_answer, body, [question]))[0]
    except TeacherError as error:
        where = f"{peer.root} {error.where}" if error.where else peer.root
        raise TeacherError(
            error.what, code=error.code, where=where, got=error.got, expected=error.expected
        ) from error


def _most_bytes(question: Question) -> int:
    """Bytes that no right answer exceeds."""
    extra = 0 if question.extra_ids is None else question.extra_ids.shape[1]
    rows = len(question.ids) - question.start
    return _ANSWER_SLACK_BYTES + rows * (8 * (question.k + 1) + 4 * extra)
