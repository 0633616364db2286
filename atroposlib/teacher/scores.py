"""Turns the rows of vLLM's ``prompt_logprobs`` into arrays, or refuses all of them.

A wrong target ruins a run without a trace, so the whole reply is checked before any value of it is used.
For T tokens and ``prompt_logprobs=k`` a stock server sends a list of T entries: the first is null, each
other one an object ``{"<token id>": {"logprob", "rank", ...}}`` with the token that stands there and the
top-k. Where that token is inside the top-k it is one member for both, so an entry has k or k + 1 members,
in an order that nobody should rely on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import msgspec
import numpy as np
from numpy.typing import NDArray

from atroposlib.errors import TeacherError
from atroposlib.teacher.checks import SLACK, checked, require_rows
from atroposlib.teacher.protocol import Question
from atroposlib.types import ABSENT_ID, ABSENT_LOGPROB, TeacherScores

MAX_ID = 2**31 - 1

_LOGPROB = re.compile(rb'"logprob"\s*:')


class Member(msgspec.Struct, gc=False):
    """One token of a row: its logprob (nats) and how many tokens are at least as likely."""

    logprob: float
    rank: int


Rows = list[dict[int, Member] | None]


def from_rows(
    rows: Rows | None, question: Question, *, body: bytes, model: str = "", server: str = ""
) -> TeacherScores:
    """The checked scores in the rows of a reply: R = T - start rows, K = k + 1 columns.

    Every row of the reply is checked, also those before the start. A member at -9999 (vLLM's -inf) is absent.

    Args:
        rows: The rows as parsed, None where the reply has none.
        question: What was asked.
        body: The reply as it came.
        model: Model id that the reply names.
        server: Server and version.

    Raises:
        TeacherError: teacher.bad_reply when anything is missing, out of order, doubled, or not a probability.
    """
    if rows is None:
        raise TeacherError(
            "the answer holds no prompt_logprobs", fix="serve the teacher with vLLM or atropos model-server"
        )
    if len(rows) != len(question.ids):
        raise TeacherError(
            "prompt_logprobs has the wrong number of rows", got=len(rows), expected=len(question.ids)
        )
    if rows and rows[0] is not None:
        raise TeacherError("the first row of prompt_logprobs is not null", where="rows[0]")
    full = [row for row in rows[1:] if row]
    if len(full) != len(rows) - 1:
        missing = next(position for position, row in enumerate(rows[1:]) if not row)
        raise TeacherError("a row of prompt_logprobs is empty", where=f"rows[{missing}]")
    whole = replace(question, start=1, extra_ids=None, dtype="float32")
    members = _flatten(full)
    # A key that stands twice in an object leaves its last value and no trace in what was parsed.
    if body.count(b'"logprob":') != (size := len(members.token)) and len(_LOGPROB.findall(body)) != size:
        raise TeacherError("a token or a logprob stands in a row twice")
    ids, logprobs = _columns(members, question.ids[1:], question.k)
    scores = TeacherScores(ids=ids, logprobs=logprobs, start=1, model=model, server=server)
    return cut(checked(scores, whole), question.start)


def cut(scores: TeacherScores, start: int) -> TeacherScores:
    """``scores`` without the rows before position ``start``, which is not before theirs.

    Copies what is left, or whoever keeps it would keep the other rows too.
    """
    skipped = start - scores.start
    if skipped == 0:
        return scores
    extra = scores.extra_logprobs
    return replace(
        scores,
        ids=scores.ids[skipped:].copy(),
        logprobs=scores.logprobs[skipped:].copy(),
        start=start,
        extra_logprobs=None if extra is None else extra[skipped:].copy(),
    )


def to_lists(scores: TeacherScores, length: int) -> tuple[list[list[int]], list[list[float]]]:
    """``scores`` as Atropos's lists [T][K], T = ``length``; -1 and -9999.0 where nothing is scored."""
    width = scores.ids.shape[1]
    token_ids = np.full((length, width), ABSENT_ID, dtype=np.int32)
    logprobs = np.full((length, width), ABSENT_LOGPROB, dtype=np.float64)
    rows = slice(scores.start, scores.start + len(scores.ids))
    token_ids[rows] = scores.ids
    logprobs[rows] = np.where(scores.ids == ABSENT_ID, ABSENT_LOGPROB, scores.logprobs)
    return token_ids.tolist(), logprobs.tolist()


@dataclass(frozen=True, slots=True)
class _Members:
    """All members of the R rows, flattened to M.

    Attributes:
        row: int64 [M], the member's row.
        token: int64 [M], its token id.
        logprob: float64 [M] in nats, -inf where the server says -9999.
        rank: int64 [M], as the server gives it, from 1.
        count: int64 [R], members of each row.
    """

    row: NDArray[np.int64]
    token: NDArray[np.int64]
    logprob: NDArray[np.float64]
    rank: NDArray[np.int64]
    count: NDArray[np.int64]


def _flatten(rows: Sequence[dict[int, Member]]) -> _Members:
    count = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    size = int(count.sum())
    members: list[Member] = list(chain.from_iterable(row.values() for row in rows))
    try:
        token = np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=size)
        rank = np.fromiter([member.rank for member in members], dtype=np.int64, count=size)
    except OverflowError as failure:
        raise TeacherError("a token id or rank is out of range") from failure
    logprob = np.fromiter([member.logprob for member in members], dtype=np.float64, count=size)
    logprob[logprob <= ABSENT_LOGPROB] = -np.inf
    return _Members(np.repeat(np.arange(len(rows)), count), token, logprob, rank, count)


def _columns(
    members: _Members, sequence: NDArray[np.int32], k: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Ids int32 and logprobs float32 [R, k + 1]: the standing token, then the top-k without it by rank."""
    rows = len(members.count)
    _require((members.token >= 0) & (members.token <= MAX_ID), members.row, "a token id is not one")
    _require(members.rank >= 1, members.row, "a rank is below 1")
    _require(members.logprob <= SLACK, members.row, "a logprob is above 0")
    stands = members.token == sequence[members.row]
    own = np.full(rows, -1, dtype=np.int64)
    own[members.row[stands]] = np.flatnonzero(stands)
    require_rows(own >= 0, "a row lacks the token that stands in the sequence")
    own_rank = members.rank[own]
    # A standing token inside the top-k leaves a gap at its rank, which the later ones close.
    column = np.where(stands, 0, members.rank - (own_rank[members.row] < members.rank))
    _require(
        stands | (members.rank <= k),
        members.row,
        "a member is neither in the top-k nor the token that stands in the sequence",
    )
    _require(stands | (members.rank != own_rank[members.row]), members.row, "a rank stands in a row twice")
    grid = np.full((rows, k + 1), -1, dtype=np.int64)
    grid[members.row, column] = np.arange(len(column))
    filled = (grid >= 0).sum(axis=1)
    require_rows(filled == members.count, "a rank stands in a row twice")
    require_rows(_leading(grid >= 0), "a rank is missing from a row")
    inside = own_rank <= k
    wanted = k + 1 - inside
    require_rows((filled == wanted) | _whole_vocabulary(members), f"a row has fewer than {k} ranked members")
    logprobs = np.where(grid < 0, -np.inf, members.logprob[grid])
    _check_own_rank(logprobs, own_rank, inside)
    ids = np.where(np.isneginf(logprobs), ABSENT_ID, members.token[grid])
    return ids.astype(np.int32), logprobs.astype(np.float32)


def _check_own_rank(
    logprobs: NDArray[np.float64], own_rank: NDArray[np.int64], inside: NDArray[np.bool_]
) -> None:
    """The standing token must be as likely as its rank says, among the k columns after it or behind them."""
    rows, k = np.arange(len(logprobs)), logprobs.shape[1] - 1
    before = np.where(own_rank > 1, logprobs[rows, np.minimum(own_rank - 1, k)], np.inf)
    after = np.where(inside, logprobs[rows, np.minimum(own_rank, k)], -np.inf)
    own = logprobs[:, 0]
    fits = (own <= before + SLACK) & (own >= after - SLACK)
    # With k = 0 there is nothing to compare with.
    require_rows(fits | (k == 0), "logprobs do not fall with the rank")


def _whole_vocabulary(members: _Members) -> NDArray[np.bool_]:
    """Whether each row [R] holds all probability, and as many members as every other row."""
    total = np.bincount(members.row, weights=np.exp(members.logprob), minlength=len(members.count))
    alike = members.count == members.count.max(initial=0)
    return np.asarray((np.abs(total - 1) <= SLACK) & alike.all())


def _leading(present: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether in each row [R] the true entries of ``present`` [R, K] all come first."""
    return np.asarray((present[:, 1:] <= present[:, :-1]).all(axis=1))


def _require(holds: NDArray[np.bool_], row: NDArray[np.int64], what: str) -> None:
    """:func:`require_rows` for members: ``row`` says which row each entry of ``holds`` is of."""
    if not holds.all():
        raise TeacherError(what, where=f"rows[{int(row[np.argmin(holds)])}]")
