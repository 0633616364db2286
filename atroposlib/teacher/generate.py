"""vLLM's ``/inference/v1/generate`` with ``detokenize: false``: the same rows at a quarter of its cost."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO
from typing import Any

import aiohttp
import msgspec
import numpy as np
import orjson
from numpy.typing import NDArray

from atroposlib.errors import TeacherError
from atroposlib.teacher.checks import checked
from atroposlib.teacher.decoding import byte_limit, parsed, read_reply
from atroposlib.teacher.protocol import Capabilities, Question
from atroposlib.teacher.scores import Rows, from_rows
from atroposlib.teacher.served import read_served
from atroposlib.teacher.transport import Peer, call, refused, send
from atroposlib.types import ABSENT_ID, TeacherScores

PATH = "/inference/v1/generate"

_ABSENT = frozenset({400, 403, 404, 405, 422, 501})
"""Statuses of a server that has no such route, or does not know its fields; 403 is a vLLM that was started
without ``--enable-scale-out``."""


class _Reply(msgspec.Struct):
    prompt_logprobs: Rows | None = None
    prompt_token_id_logprobs: bytes | None = None
    model: str | None = None


_decoder = msgspec.json.Decoder(_Reply)


class Generate:
    """See :class:`atroposlib.teacher.protocol.Route`. Rows before the start are sent, and cut here."""

    name = "generate"

    async def probe(self, session: aiohttp.ClientSession, peer: Peer) -> Capabilities | None:
        """Two tokens scored: whether the route is there, decodes no text, and scores ids that it is given."""
        question = Question(np.array([1, 0], dtype=np.int32), k=1)
        answer = await send(session, peer, PATH, _request(peer, question))
        if answer.status in _ABSENT:
            return None
        if answer.status != 200:
            raise refused(peer, PATH, answer, {})
        if not _without_text(answer.content):
            return None
        served = await read_served(session, peer)
        named = replace(question, extra_ids=np.zeros((1, 1), dtype=np.int32))
        tried = await send(session, peer, PATH, _request(peer, named))
        return Capabilities(
            self.name,
            served.server,
            served.model(peer),
            max_model_len=served.max_model_len(peer),
            extra_ids=tried.status == 200 and b'"prompt_token_id_logprobs":"' in tried.content,
        )

    async def score(
        self, session: aiohttp.ClientSession, peer: Peer, question: Question, capabilities: Capabilities
    ) -> TeacherScores:
        """One try."""
        asked = question if capabilities.extra_ids else replace(question, extra_ids=None)
        named = 0 if asked.extra_ids is None else asked.extra_ids.shape[1]
        body = await call(session, peer, PATH, _request(peer, asked), limit=byte_limit(asked, named))
        return await read_reply(peer, read, body, asked, capabilities.server)


def read(body: bytes, question: Question, server: str = "") -> TeacherScores:
    """The checked scores in an answer of ``/inference/v1/generate``.

    Raises:
        TeacherError: teacher.bad_reply.
    """
    reply = parsed(_decoder, body)
    scores = from_rows(reply.prompt_logprobs, question, body=body, model=reply.model or "", server=server)
    if question.extra_ids is None:
        return scores
    extra = _extra(reply.prompt_token_id_logprobs, question.extra_ids)
    return checked(replace(scores, extra_logprobs=extra), question)


def _request(peer: Peer, question: Question) -> dict[str, Any]:
    params: dict[str, Any] = {
        "prompt_logprobs": question.k,
        "max_tokens": 1,
        "temperature": 0.0,
        "detokenize": False,
    }
    if question.extra_ids is not None:
        # Row r of the answer tells of position start + r + 1.
        params["prompt_logprob_token_ids"] = question.extra_ids
        params["prompt_logprob_start"] = question.start - 1
    request = {"token_ids": question.ids, "sampling_params": params}
    return request if peer.model is None else {**request, "model": peer.model}


def _without_text(body: bytes) -> bool:
    """Whether an answer has a second row, whose members carry no text."""
    try:
        row = orjson.loads(body)["prompt_logprobs"][1]
        return all(member["decoded_token"] is None for member in row.values())
    except (orjson.JSONDecodeError, KeyError, TypeError, IndexError, AttributeError):
        return False


def _extra(encoded: bytes | None, named: NDArray[np.int32]) -> NDArray[np.float32]:
    """Logprobs float32 [R, E] of the named ids; the answer is a ``.npy`` file in base64."""
    if encoded is None:
        raise TeacherError("the answer lacks the logprobs of the named ids")
    stream = BytesIO(encoded)
    try:
        # Not np.load, which opens zip files too, and believes the header before it sees the data.
        version = np.lib.format.read_magic(stream)
        shape, by_columns, dtype = np.lib.format.read_array_header_1_0(stream)
    except (ValueError, EOFError) as failure:
        raise TeacherError("the logprobs of the named ids are no array", got=str(failure)) from failure
    data = encoded[stream.tell() :]
    right = (version, shape, by_columns, dtype) == ((1, 0), named.shape, False, np.dtype("<f4"))
    if not right or len(data) != 4 * named.size:
        raise TeacherError(
            "the logprobs of the named ids have another shape or type",
            got=f"{dtype} {list(shape)}, {len(data)} bytes",
            expected=f"float32 {list(named.shape)}",
        )
    array = np.frombuffer(data, dtype="<f4").reshape(shape)
    if np.isnan(array[named != ABSENT_ID]).any():
        raise TeacherError("the logprob of a named id is NaN")
    return np.where(named == ABSENT_ID, np.float32(np.nan), array)
