"""SGLang's ``/generate``: scores from a start position on, as base64, flat numbers or nested lists.

Written to SGLang's source and documentation; no SGLang was run here (docs/teacher-routes.md).
"""

from __future__ import annotations

from typing import Any

import aiohttp
import msgspec
import numpy as np
from numpy.typing import NDArray

from atroposlib.errors import TeacherError
from atroposlib.teacher.checks import checked
from atroposlib.teacher.columns import with_standing
from atroposlib.teacher.decoding import byte_limit, parsed, read_reply
from atroposlib.teacher.protocol import Capabilities, Question
from atroposlib.teacher.served import get_json, read_served
from atroposlib.teacher.transport import Peer, call
from atroposlib.types import ABSENT_ID, TeacherScores

PATH = "/generate"
MODEL_PATHS = ("/model_info", "/get_model_info")
SERVER_PATHS = ("/server_info", "/get_server_info")
"""New and old names of the same routes."""

MOST_NAMED = 1024
"""Different ids that one request may name. SGLang scores each at every position, in nested lists."""

_Triple = tuple[float | None, int, str | None]
_FLOATS = {"float32": "<f4"}
_INTS = {"int32": "<i4", "int64": "<i8"}


class _Meta(msgspec.Struct):
    input_token_logprobs: list[_Triple]
    input_top_logprobs: list[list[_Triple] | None] | None = None
    input_top_logprobs_val_flat: list[float] | None = None
    input_top_logprobs_idx_flat: list[int] | None = None
    input_top_logprobs_val_flat_b64: bytes | None = None
    input_top_logprobs_idx_flat_b64: bytes | None = None
    input_top_logprobs_val_flat_b64_dtype: str = "float32"
    input_top_logprobs_idx_flat_b64_dtype: str = "int32"
    input_top_logprobs_shape: tuple[int, int] | None = None
    input_top_logprobs_null_prefix: int = 0
    input_token_ids_logprobs: list[list[_Triple] | None] | None = None


class _Reply(msgspec.Struct):
    meta_info: _Meta


_decoder = msgspec.json.Decoder(_Reply)


class SGLang:
    """See :class:`atroposlib.teacher.protocol.Route`."""

    name = "sglang"

    async def probe(self, session: aiohttp.ClientSession, peer: Peer) -> Capabilities | None:
        """What the server says of itself, None when it does not say what an SGLang says."""
        info = await _first(session, peer, MODEL_PATHS)
        if not isinstance(info.get("model_path"), str) or info.get("is_generation") is False:
            return None
        served = await read_served(session, peer)
        version = (await _first(session, peer, SERVER_PATHS)).get("version")
        return Capabilities(
            self.name,
            f"sglang {version}" if isinstance(version, str) else "sglang",
            served.model(peer) or info["model_path"],
            max_model_len=served.max_model_len(peer),
            extra_ids=True,
            start=True,
        )

    async def score(
        self, session: aiohttp.ClientSession, peer: Peer, question: Question, capabilities: Capabilities
    ) -> TeacherScores:
        """One try. Extra ids are scored where they are at most :data:`MOST_NAMED` different ones."""
        named = _named(question)
        request: dict[str, Any] = {
            "input_ids": question.ids,
            "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
            "return_logprob": True,
            # The first row is null, as the logits before it are not kept.
            "logprob_start_len": question.start - 1,
            "top_logprobs_num": question.k,
            "return_text_in_logprobs": False,
            "return_flat_raw_top_logprobs": True,
            "return_flat_raw_top_logprobs_b64": True,
            "stream": False,
        }
        if named:
            request["token_ids_logprob"] = named
        body = await call(session, peer, PATH, request, limit=byte_limit(question, len(named)))
        model, server = capabilities.model, capabilities.server
        return await read_reply(peer, read, body, question, model, server)


def read(body: bytes, question: Question, model: str = "", server: str = "") -> TeacherScores:
    """The checked scores in an answer of ``/generate``, whichever form its top-k has.

    Raises:
        TeacherError: teacher.bad_reply.
    """
    meta = parsed(_decoder, body).meta_info
    own = _own(meta.input_token_logprobs, question)
    standing = question.ids[question.start :]
    top_ids, top_logprobs = _top(meta, len(standing), question.k)
    ids, logprobs = with_standing(standing, own, top_ids, top_logprobs)
    extra = _extra(meta.input_token_ids_logprobs, question) if _named(question) else None
    scores = TeacherScores(ids, logprobs, question.start, model, server=server, extra_logprobs=extra)
    return checked(scores, question)


async def _first(session: aiohttp.ClientSession, peer: Peer, paths: tuple[str, ...]) -> dict[str, Any]:
    """What the first of ``paths`` that the server has answers, an empty dict when it has none."""
    for path in paths:
        told = await get_json(session, peer, path)
        if isinstance(told, dict):
            return told
    return {}


def _named(question: Question) -> list[int]:
    """All ids that the question names anywhere, none where they are too many for one request."""
    if question.extra_ids is None:
        return []
    ids = np.unique(question.extra_ids[question.extra_ids != ABSENT_ID])
    return [] if len(ids) > MOST_NAMED else [int(one) for one in ids]


def _own(triples: list[_Triple], question: Question) -> NDArray[np.float32]:
    """Logprobs float32 [R] of the standing tokens, which the rows after the null one hold."""
    sent = question.ids[question.start - 1 :].tolist()
    if [triple[1] for triple in triples] != sent:
        raise TeacherError("the answer is for other tokens than those that were sent", got=len(triples))
    if triples[0][0] is not None:
        raise TeacherError("the first row of input_token_logprobs is not null", where="rows[0]")
    return _numbers([triple[0] for triple in triples[1:]])


def _top(meta: _Meta, rows: int, k: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Ids int32 and logprobs float32 [R, k] of the top-k."""
    if k == 0:
        return np.zeros((rows, 0), dtype=np.int32), np.zeros((rows, 0), dtype=np.float32)
    if meta.input_top_logprobs is not None:
        return _nested(meta.input_top_logprobs, rows, k)
    if meta.input_top_logprobs_val_flat_b64 is not None:
        values = _buffer(
            meta.input_top_logprobs_val_flat_b64, _FLOATS, meta.input_top_logprobs_val_flat_b64_dtype
        )
        ids = _buffer(meta.input_top_logprobs_idx_flat_b64, _INTS, meta.input_top_logprobs_idx_flat_b64_dtype)
    else:
        values = _numbers(meta.input_top_logprobs_val_flat)
        ids = _integers(meta.input_top_logprobs_idx_flat)
    # Versions differ in whether the shape counts the null rows, which the data never holds.
    shape, nulls = meta.input_top_logprobs_shape, meta.input_top_logprobs_null_prefix
    if nulls != 1 or shape not in ((rows, k), (rows + nulls, k)):
        raise TeacherError("the top-k has another shape", got=f"{shape} after {nulls} null rows")
    if values.shape != (rows * k,) or ids.shape != (rows * k,):
        raise TeacherError(
            "the top-k has another size", got=f"{values.size} and {ids.size}", expected=rows * k
        )
    return _as_ids(ids).reshape(rows, k), values.astype(np.float32).reshape(rows, k)


def _nested(
    listed: list[list[_Triple] | None], rows: int, k: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    if len(listed) != rows + 1 or listed[0]:
        raise TeacherError(
            "input_top_logprobs has the wrong number of rows", got=len(listed), expected=rows + 1
        )
    full = [row or [] for row in listed[1:]]
    short = next((index for index, row in enumerate(full) if len(row) != k), None)
    if short is not None:
        raise TeacherError(f"a row has not {k} ranked members", where=f"rows[{short}]", got=len(full[short]))
    ids = _integers([triple[1] for row in full for triple in row])
    values = _numbers([triple[0] for row in full for triple in row])
    return _as_ids(ids).reshape(rows, k), values.reshape(rows, k)


def _extra(listed: list[list[_Triple] | None] | None, question: Question) -> NDArray[np.float32]:
    """Logprobs float32 [R, E] of the ids named at each row; NaN where none is or the server has none."""
    named, wanted = question.extra_ids, _named(question)
    rows = len(question.ids) - question.start
    if listed is None or named is None or len(listed) != rows + 1 or listed[0]:
        raise TeacherError("the answer lacks the logprobs of the named ids")
    full = [row or [] for row in listed[1:]]
    if any([triple[1] for triple in row] != wanted for row in full):
        raise TeacherError("the answer scores other ids than those that were named")
    values = [[np.nan if triple[0] is None else triple[0] for triple in row] for row in full]
    with np.errstate(over="ignore"):
        table = np.asarray(values, dtype=np.float64).astype(np.float32)
    column = np.searchsorted(np.asarray(wanted), np.where(named == ABSENT_ID, wanted[0], named))
    return np.where(named == ABSENT_ID, np.float32(np.nan), np.take_along_axis(table, column, axis=1))


def _numbers(values: list[float | None] | list[float] | None) -> NDArray[np.float32]:
    if values is None or None in values:
        raise TeacherError("a logprob is missing")
    with np.errstate(over="ignore"):
        return np.asarray(values, dtype=np.float64).astype(np.float32)


def _integers(values: list[int] | None) -> NDArray[np.int64]:
    if values is None:
        raise TeacherError("the ids of the top-k are missing")
    try:
        return np.asarray(values, dtype=np.int64)
    except OverflowError as failure:
        raise TeacherError("a token id is out of range") from failure


def _as_ids(values: NDArray[np.int64]) -> NDArray[np.int32]:
    if np.any((values < 0) | (values > np.iinfo(np.int32).max)):
        raise TeacherError("a token id is not one")
    return values.astype(np.int32)


def _buffer(data: bytes | None, dtypes: dict[str, str], name: str) -> NDArray[Any]:
    dtype = dtypes.get(name)
    if data is None or dtype is None or len(data) % np.dtype(dtype).itemsize:
        raise TeacherError("the encoded top-k cannot be read", got=name, expected=" or ".join(dtypes))
    return np.frombuffer(data, dtype=dtype)
