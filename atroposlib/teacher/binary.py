"""Scores as bytes: what a request and an answer of ``/v1/atropos/scores`` hold (docs/vllm-plugin.md).

The request is a frame (:mod:`atroposlib.wire.container`) of the format ``atropos-scores``. The answer has a
head and a layout of its own: with few columns a frame's header would be most of what is sent and decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import msgspec
import numpy as np
import orjson
from numpy.typing import NDArray

from atroposlib.errors import TeacherError, WireError
from atroposlib.teacher.checks import checked
from atroposlib.teacher.protocol import LogprobDtype, Question
from atroposlib.types import ABSENT_ID, ABSENT_LOGPROB, TeacherScores
from atroposlib.wire import container

PROTOCOL = 1
"""Version of the routes; a client asks only servers of its own."""

SCORES_PATH = "/v1/atropos/scores"
CAPABILITIES_PATH = "/v1/atropos/capabilities"
SCORES_TYPE = "application/vnd.atropos.scores"
"""Media type of a request and of its answer."""

MAX_SEQUENCES = 1024
"""Sequences of one request."""

_FORMAT = "atropos-scores"
_KINDS: dict[LogprobDtype, str] = {"float16": "<f2", "float32": "<f4"}
_TOLD_CHARACTERS = 200


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a server says of itself on ``/v1/atropos/capabilities``.

    Attributes:
        server: Server and version, as ``vllm 0.32.0``.
        model: Model id that it serves.
        max_model_len: Longest prompt and completion together, in tokens.
        max_k: Largest k, and most extra ids at a position.
        vocab_size: Ids are below it.
        extra_ids: Whether it scores ids that the caller names.
        protocol: :data:`PROTOCOL` of the server.
    """

    server: str
    model: str
    max_model_len: int
    max_k: int
    vocab_size: int
    extra_ids: bool
    protocol: int = PROTOCOL


class AnswerHead(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What stands before the arrays of an answer, and says how large they are.

    Attributes:
        model: Model id that the server answers for.
        server: Server and version.
        rows: R of each sequence.
        columns: K = k + 1.
        extra: E, 0 when no ids were named.
        dtype: Type of ``logprobs``.
    """

    model: str
    server: str
    rows: list[int]
    columns: int
    extra: int
    dtype: LogprobDtype


_encoder = msgspec.json.Encoder()
_head_decoder = msgspec.json.Decoder(AnswerHead)
_LENGTH_BYTES = 4
_HEAD_ALIGNMENT = 8


def encode_request(questions: Sequence[Question], model: str | None) -> bytes:
    """The request for the scores of S sequences, all with one ``k`` and one ``dtype``.

    Args:
        questions: At least one; each scores at least one position. Either all name extra ids, with one E, or
            none does.
        model: Name of the model, None for the one that is served.
    """
    first = questions[0]
    arrays: dict[str, NDArray[Any]] = {
        "lengths": np.array([len(question.ids) for question in questions], np.int32),
        "starts": np.array([question.start for question in questions], np.int32),
        "ids": np.concatenate([question.ids for question in questions]).astype(np.int32, copy=False),
        "facts": _json({"model": model, "k": first.k, "dtype": first.dtype}),
    }
    extra = [question.extra_ids for question in questions if question.extra_ids is not None]
    if extra:
        arrays["extra_ids"] = np.concatenate(extra).astype(np.int32, copy=False)
    return container.write(arrays, "none", _FORMAT)


def decode_request(body: bytes) -> tuple[list[Question], str | None]:
    """The questions of a request, as views of ``body``, and the name of the model that they are for.

    Raises:
        WireError: The body is no frame, or its parts do not fit together. Whether the model has the ids and
            room for them is the server's to check.
    """
    arrays = container.read(body, kind=_FORMAT)
    model, k, dtype = _read_facts(arrays)
    lengths = _take(arrays, "lengths", "i4", None)
    starts = _take(arrays, "starts", "i4", len(lengths))
    if not 1 <= len(lengths) <= MAX_SEQUENCES:
        raise _invalid("the number of sequences is outside its limits", "lengths", len(lengths))
    if not ((starts >= 1) & (starts < lengths)).all():
        raise _invalid("a sequence has no position from its start on, or starts before 1", "starts")
    ids = _take(arrays, "ids", "i4", int(lengths.sum(dtype=np.int64)))
    if (ids < 0).any():
        raise _invalid("a token id is negative", "ids", int(ids.min()))
    rows = (lengths - starts).astype(np.int64)
    extra = _take_extra_ids(arrays, int(rows.sum()))
    if arrays:
        raise _invalid("the request holds an unknown array", min(arrays)[:80])
    sequences = np.split(ids, np.cumsum(lengths[:-1], dtype=np.int64))
    extras = [None] * len(rows) if extra is None else np.split(extra, np.cumsum(rows[:-1]))
    questions = [
        Question(sequence, k, int(start), named, dtype)
        for sequence, start, named in zip(sequences, starts, extras, strict=True)
    ]
    return questions, model


def encode_answer(scores: Sequence[TeacherScores], dtype: LogprobDtype) -> bytes:
    """The answer: scores of S sequences of one request, their top-k's logprobs rounded to ``dtype``.

    The token that stands in the sequence keeps its logprob in float32.
    """
    first = scores[0]
    extra = [one.extra_logprobs for one in scores if one.extra_logprobs is not None]
    head = AnswerHead(
        model=first.model,
        server=first.server,
        rows=[len(one.ids) for one in scores],
        columns=first.ids.shape[1],
        extra=extra[0].shape[1] if extra else 0,
        dtype=dtype,
    )
    text = _encoder.encode(head)
    text += b" " * (-(_LENGTH_BYTES + len(text)) % _HEAD_ALIGNMENT)
    logprobs = np.concatenate([one.logprobs for one in scores])
    arrays: list[tuple[NDArray[Any], str]] = [
        (np.concatenate([one.ids for one in scores]), "<i4"),
        (logprobs[:, 0], "<f4"),
        *((one, "<f4") for one in extra),
        (logprobs[:, 1:], _KINDS[dtype]),
    ]
    blocks = (array.astype(kind, copy=False).tobytes() for array, kind in arrays)
    return b"".join((len(text).to_bytes(_LENGTH_BYTES, "little"), text, *blocks))


def decode_answer(body: bytes, questions: Sequence[Question]) -> list[TeacherScores]:
    """The checked scores of ``questions`` in an answer; nothing of them keeps ``body`` in memory.

    Raises:
        TeacherError: teacher.bad_reply when anything of the answer is not what was asked for.
    """
    head, start = _read_head(body, questions)
    rows, columns, extra = sum(head.rows), head.columns, head.extra
    kind = _KINDS[head.dtype]
    shapes: list[tuple[str, tuple[int, ...]]] = [
        ("<i4", (rows, columns)),
        ("<f4", (rows,)),
        ("<f4", (rows, extra)),
        (kind, (rows, columns - 1)),
    ]
    size = start + rows * (columns * 4 + 4 + extra * 4 + (columns - 1) * int(kind[-1]))
    if len(body) != size:
        raise _broken("it is not as long as its head says", got=len(body), expected=size)
    views = []
    for dtype, shape in shapes:
        view = np.ndarray(shape, dtype, buffer=body, offset=start)
        start += view.nbytes
        views.append(view)
    ids = views[0].copy()
    logprobs = np.empty((rows, columns), np.float32)
    logprobs[:, 0] = views[1]
    logprobs[:, 1:] = views[3]
    named = views[2].copy() if extra else None
    return [
        checked(
            TeacherScores(
                ids[end - count : end],
                logprobs[end - count : end],
                question.start,
                head.model,
                server=head.server,
                extra_logprobs=None if named is None else named[end - count : end],
            ),
            question,
        )
        for question, count, end in zip(questions, head.rows, accumulate(head.rows), strict=True)
    ]


def selected_first(ids: NDArray[Any], logprobs: NDArray[Any], k: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Columns as :class:`TeacherScores` has them, from what engines give.

    Args:
        ids: [R, 1 + w], the token that stands in the sequence, then the top-w in falling order, which may
            hold that token too; w is k, or all of a vocabulary that is smaller.
        logprobs: [R, 1 + w] in nats; -inf, or vLLM's -9999, for a probability of zero.
        k: Top-k tokens that were asked for.

    Returns:
        Ids int32 and logprobs float32, [R, k + 1].
    """
    rows, width = ids.shape
    # One more column than there is in the top-w, all absent: what moves into the last place.
    top_ids = np.full((rows, k + 1), ABSENT_ID, np.int32)
    top_logprobs = np.full((rows, k + 1), -np.inf, np.float32)
    top_ids[:, : width - 1] = ids[:, 1:]
    top_logprobs[:, : width - 1] = logprobs[:, 1:]
    passed = np.logical_or.accumulate(top_ids[:, :k] == ids[:, :1], axis=1)
    source = np.arange(k) + passed
    columns = np.concatenate([ids[:, :1], np.take_along_axis(top_ids, source, axis=1)], axis=1)
    values = np.concatenate([logprobs[:, :1], np.take_along_axis(top_logprobs, source, axis=1)], axis=1)
    absent = values <= ABSENT_LOGPROB
    columns, values = columns.astype(np.int32, copy=False), values.astype(np.float32, copy=False)
    columns[absent] = ABSENT_ID
    values[absent] = -np.inf
    return columns, values


def _read_head(body: bytes, questions: Sequence[Question]) -> tuple[AnswerHead, int]:
    """The head of an answer to these questions, and where its arrays start."""
    start = _LENGTH_BYTES + int.from_bytes(body[:_LENGTH_BYTES], "little")
    try:
        head = _head_decoder.decode(body[_LENGTH_BYTES:start])
    except (msgspec.DecodeError, UnicodeDecodeError) as failure:
        raise _broken("its head is none", got=str(failure)) from failure
    first = questions[0]
    extra = 0 if first.extra_ids is None else first.extra_ids.shape[1]
    asked = [len(question.ids) - question.start for question in questions]
    told = (head.rows, head.columns, head.extra, head.dtype)
    wanted = (asked, first.k + 1, extra, first.dtype)
    if told != wanted:
        raise _broken(
            "it has other rows, columns or types than were asked for",
            got=str(told)[:_TOLD_CHARACTERS],
            expected=str(wanted)[:_TOLD_CHARACTERS],
        )
    return head, start


def _broken(what: str, *, got: object = None, expected: object = None) -> TeacherError:
    return TeacherError(f"the binary answer is broken: {what}", got=got, expected=expected)


def _take_extra_ids(arrays: container.Arrays, rows: int) -> NDArray[np.int32] | None:
    if "extra_ids" not in arrays:
        return None
    extra = _take(arrays, "extra_ids", "i4", rows, None)
    if extra.shape[1] < 1 or (extra < ABSENT_ID).any():
        raise _invalid("an id that the caller names is none", "extra_ids")
    return extra


def _read_facts(arrays: container.Arrays) -> tuple[str | None, int, LogprobDtype]:
    """Model, k and dtype of a request."""
    facts = _read_json(_take(arrays, "facts", "u1", None))
    model, k, dtype = (facts.get(name) for name in ("model", "k", "dtype"))
    if model is not None and not isinstance(model, str):
        raise _invalid("the model's name is no text", "model")
    # A bool is an int to Python.
    if type(k) is not int or not 0 <= k <= np.iinfo(np.int32).max:
        raise _invalid("the number of top tokens is none", "k", k)
    if dtype not in ("float16", "float32"):
        raise _invalid("the type of logprobs is unknown", "dtype", dtype, "float16 or float32")
    return model, k, dtype


def _take(arrays: container.Arrays, name: str, kind: str, *shape: int | None) -> NDArray[Any]:
    """Remove an array of this kind from ``arrays``; None in ``shape`` takes any length."""
    array = arrays.pop(name, None)
    if array is None:
        raise _invalid("an array is missing", name)
    fits = len(shape) == array.ndim and all(map(_allows, shape, array.shape))
    if array.dtype != kind or not fits:
        raise _invalid("an array is of another kind", name, f"{array.dtype} {array.shape}", f"{kind} {shape}")
    return array


def _allows(wanted: int | None, length: int) -> bool:
    return wanted is None or wanted == length


def _json(facts: dict[str, Any]) -> NDArray[np.uint8]:
    return np.frombuffer(orjson.dumps(facts), np.uint8)


def _read_json(array: NDArray[Any]) -> dict[str, Any]:
    try:
        facts = orjson.loads(array.tobytes())
    except orjson.JSONDecodeError as error:
        raise _invalid("the facts are no JSON", "facts", str(error)) from error
    if not isinstance(facts, dict):
        raise _invalid("the facts are no JSON object", "facts", type(facts).__name__)
    return facts


def _invalid(what: str, where: str, got: object = None, expected: object = None) -> WireError:
    return WireError(what, code="wire.invalid_request", where=where, got=got, expected=expected)
