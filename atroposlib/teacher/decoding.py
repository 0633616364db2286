"""Reads large JSON replies in other processes: parsing holds Python's lock, and nobody else is served."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

import msgspec

from atroposlib.errors import TeacherError
from atroposlib.offload import Offload
from atroposlib.teacher.protocol import Question
from atroposlib.teacher.transport import Peer
from atroposlib.types import TeacherScores

WORKERS = 2
"""Processes at most. Each parses some 40 MB of JSON a second, one step behind the servers that write it."""

OFF_LOOP_BYTES = 500_000
"""Replies above this are read elsewhere: reading them takes longer than four milliseconds."""

JSON_BYTES_PER_CANDIDATE = 400
"""Most bytes of a reply per token that it tells of; vLLM's take 70, a long name of a token adds to them."""

SLACK_BYTES = 1 << 18

Facts = TypeVarTuple("Facts")
T = TypeVar("T")


class _Pool:
    """The processes that all teachers of this process share.

    Attributes:
        offload: None until the first large reply.
        users: Who has not released it yet.
    """

    def __init__(self) -> None:
        self.offload: Offload | None = None
        self.users = 0


_pool = _Pool()


def retain() -> None:
    """Keep the shared processes, once they have started, until :func:`release`."""
    _pool.users += 1


def release() -> None:
    """Undo one :func:`retain`; the last one ends the processes."""
    _pool.users -= 1
    if _pool.users == 0 and _pool.offload is not None:
        _pool.offload.close()
        _pool.offload = None


def byte_limit(question: Question, named: int = 0) -> int:
    """Bytes that a JSON reply has at most: scores of all positions, and of ``named`` more ids at each."""
    return SLACK_BYTES + JSON_BYTES_PER_CANDIDATE * len(question.ids) * (question.k + 1 + named)


async def read_reply(
    peer: Peer,
    read: Callable[[bytes, Question, *Facts], TeacherScores],
    body: bytes,
    question: Question,
    *facts: *Facts,
) -> TeacherScores:
    """``read(body, question, *facts)``, in another process when ``body`` is large.

    Args:
        peer: Who answered.
        read: Turns the body into checked scores; a function of a module, so that it can be sent.
        body: The answer.
        question: What was asked.
        *facts: More arguments of ``read``; pickled like the rest.

    Raises:
        TeacherError: What ``read`` raises, with the server's address in front of its where.
    """
    try:
        if len(body) <= OFF_LOOP_BYTES:
            return read(body, question, *facts)
        if _pool.offload is None:
            _pool.offload = Offload(WORKERS, lost=_lost, preloaded=["atroposlib.teacher.probing"])
        return await _pool.offload.in_process(read, body, question, *facts)
    except TeacherError as error:
        where = f"{peer.root} {error.where}" if error.where else peer.root
        raise TeacherError(
            error.what, code=error.code, where=where, got=error.got, expected=error.expected, fix=error.fix
        ) from error


def parsed(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """``body`` as the decoder's type.

    Raises:
        TeacherError: teacher.bad_reply when it is not JSON, or JSON of another shape.
    """
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as failure:
        raise TeacherError("the answer is not JSON of the expected shape", got=str(failure)) from failure


def _lost() -> TeacherError:
    return TeacherError(
        "the process that read the answer died",
        code="teacher.worker_lost",
        fix="the machine has too little memory; lower teacher_top_k or the tokens in flight",
    )
