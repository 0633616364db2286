"""Turns a vLLM ``prompt_logprobs`` reply into arrays, or refuses all of it.

A wrong target ruins a run without a trace, so the whole reply is checked before any value of it is used.
For T tokens and ``prompt_logprobs=k`` a stock server sends a list of T entries: the first is null, each
other one an object ``{"<token id>": {"logprob", "rank", ...}}`` with the token that stands there and the
top-k. Where that token is inside the top-k it is one member for both, so an entry has k or k + 1 members,
in an order that nobody should rely on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atroposlib.errors import TeacherError
from atroposlib.types import ABSENT_ID, ABSENT_LOGPROB, TeacherScores

SLACK = 1e-3
"""Rounding allowed: nats above 0 or out of order, and probability above 1 in sum."""

MAX_ID = 2**31 - 1


@dataclass(frozen=True, slots=True)
class _Members:
    """All members of the R rows after the null one, flattened to M.

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


def parse_prompt_logprobs(
    reply: Any, ids: Sequence[int], k: int, *, model: str = "", version: str | None = None
) -> TeacherScores:
    """The scores in ``reply`` of the T tokens ``ids``: R = T - 1 rows from position 1, K = k + 1 columns.

    Column 0 is the token that stands in the sequence, columns 1.. the top-k without it in falling order. The
    last column is absent where that token is inside the top-k; k = 0 gives column 0 alone. A member at -9999
    (vLLM's -inf) is absent. Fewer than k members are accepted only where they hold all of the probability, as
    they do for a vocabulary smaller than k.

    Raises:
        TeacherError: teacher.bad_reply when anything is missing, out of order, doubled, or not a probability.
    """
    if not isinstance(reply, list) or len(reply) != len(ids):
        got = len(reply) if isinstance(reply, list) else type(reply).__name__
        raise _refusal("prompt_logprobs has the wrong number of rows", got=got, expected=len(ids))
    if reply and reply[0] is not None:
        raise _refusal("the first row of prompt_logprobs is not null", position=0)
    sequence = np.asarray(ids, dtype=np.int64)[1:]
    members = _flatten(reply[1:])
    _check_probabilities(members)
    selected = _selected(members, sequence)
    top = _top_k(members, sequence, k)
    # A stable sort by "is the selected token" moves it behind the others and keeps their order.
    is_selected = members.token[top] == sequence[:, None]
    order = np.argsort(is_selected | (top < 0), axis=1, kind="stable")
    columns = np.where(is_selected | (top < 0), -1, top)
    columns = np.concatenate([selected[:, None], np.take_along_axis(columns, order, axis=1)], axis=1)
    logprobs = np.where(columns < 0, -np.inf, members.logprob[columns]).astype(np.float32)
    absent = np.isneginf(logprobs)
    token_ids = np.where(absent, ABSENT_ID, members.token[columns]).astype(np.int32)
    return TeacherScores(ids=token_ids, logprobs=logprobs, start=1, model=model, version=version)


def to_lists(scores: TeacherScores, length: int) -> tuple[list[list[int]], list[list[float]]]:
    """``scores`` as Atropos's lists [T][K], T = ``length``; -1 and -9999.0 where nothing is scored."""
    width = scores.ids.shape[1]
    token_ids = np.full((length, width), ABSENT_ID, dtype=np.int32)
    logprobs = np.full((length, width), ABSENT_LOGPROB, dtype=np.float64)
    rows = slice(scores.start, scores.start + len(scores.ids))
    token_ids[rows] = scores.ids
    logprobs[rows] = np.where(scores.ids == ABSENT_ID, ABSENT_LOGPROB, scores.logprobs)
    return token_ids.tolist(), logprobs.tolist()


def _refusal(
    what: str, *, position: int | None = None, got: Any = None, expected: Any = None
) -> TeacherError:
    where = None if position is None else f"prompt_logprobs[{position}]"
    return TeacherError(what, where=where, got=got, expected=expected)


def _flatten(rows: Sequence[Any]) -> _Members:
    keys: list[str] = []
    values: list[Any] = []
    counts: list[int] = []
    for position, row in enumerate(rows, start=1):
        if not isinstance(row, Mapping) or not row:
            raise _refusal("a row of prompt_logprobs is empty", position=position, got=row)
        keys.extend(row)
        values.extend(row.values())
        counts.append(len(row))
    row_of = np.repeat(np.arange(len(rows)), counts)
    try:
        logprob = [value["logprob"] for value in values]
        rank = [value["rank"] for value in values]
    except (TypeError, KeyError) as failure:
        raise _refusal("a member of prompt_logprobs lacks its logprob or rank") from failure
    if not set(map(type, logprob)) <= {float, int}:
        raise _refusal("a logprob is not a number")
    if not set(map(type, rank)) <= {int}:
        raise _refusal("a rank is not an integer")
    try:
        logprobs = np.asarray(logprob, dtype=np.float64)
        ranks = np.asarray(rank, dtype=np.int64)
    except OverflowError as failure:
        raise _refusal("a logprob or rank is out of range") from failure
    logprobs[logprobs <= ABSENT_LOGPROB] = -np.inf
    return _Members(row_of, _token_ids(keys, row_of), logprobs, ranks, np.asarray(counts, dtype=np.int64))


def _token_ids(keys: Sequence[str], row_of: NDArray[np.int64]) -> NDArray[np.int64]:
    try:
        tokens = np.fromiter(map(int, keys), dtype=np.int64, count=len(keys))
    except (ValueError, OverflowError) as failure:
        raise _refusal("a token id is not an integer") from failure
    # Only the canonical spelling: with "07" beside "7" one token would stand in a row twice.
    spelled = np.fromiter(map(str.__eq__, map(str, tokens.tolist()), keys), dtype=np.bool_, count=len(keys))
    _require(spelled & (tokens >= 0) & (tokens <= MAX_ID), row_of, "a token id is not one")
    return tokens


def _check_probabilities(members: _Members) -> None:
    _require(~np.isnan(members.logprob), members.row, "a logprob is NaN")
    _require(members.logprob <= SLACK, members.row, "a logprob is above 0")
    total = np.bincount(members.row, weights=np.exp(members.logprob), minlength=len(members.count))
    _require(
        total <= 1 + SLACK,
        np.arange(len(total)),
        "the probabilities of a row exceed 1; the server's --logprobs-mode must be one of logprobs",
    )


def _selected(members: _Members, sequence: NDArray[np.int64]) -> NDArray[np.int64]:
    """Index [R] of the member that is the token standing in the sequence."""
    found = np.flatnonzero(members.token == sequence[members.row])
    index = np.full(len(sequence), -1, dtype=np.int64)
    index[members.row[found]] = found
    _require(index >= 0, np.arange(len(index)), "a row lacks the token that stands in the sequence")
    return index


def _top_k(members: _Members, sequence: NDArray[np.int64], k: int) -> NDArray[np.int64]:
    """Index [R, k] of the members by rank 1..k, -1 where a small vocabulary has no more."""
    rows = len(sequence)
    in_top = members.rank <= k
    _require(members.rank >= 1, members.row, "a rank is below 1")
    stray = ~in_top & (members.token != sequence[members.row])
    _require(
        ~stray, members.row, "a member is neither in the top-k nor the token that stands in the sequence"
    )
    top = np.full((rows, k), -1, dtype=np.int64)
    chosen = np.flatnonzero(in_top)
    top[members.row[chosen], members.rank[chosen] - 1] = chosen
    filled = (top >= 0).sum(axis=1)
    taken = np.bincount(members.row[chosen], minlength=rows)
    positions = np.arange(rows)
    _require(taken == filled, positions, "a rank stands in a row twice")
    _require(
        (filled == k) | _whole_vocabulary(members), positions, f"a row has fewer than {k} ranked members"
    )
    _require(_leading(top >= 0), positions, "a rank is missing from a row")
    _check_order(members, top, sequence)
    return top


def _whole_vocabulary(members: _Members) -> NDArray[np.bool_]:
    """Whether each row [R] holds all probability, and as many members as every other row."""
    total = np.bincount(members.row, weights=np.exp(members.logprob), minlength=len(members.count))
    alike = members.count == members.count.max(initial=0)
    return np.asarray((np.abs(total - 1) <= SLACK) & alike.all())


def _leading(present: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether in each row [R] the true entries of ``present`` [R, k] all come first."""
    return np.asarray((present[:, 1:] <= present[:, :-1]).all(axis=1))


def _check_order(members: _Members, top: NDArray[np.int64], sequence: NDArray[np.int64]) -> None:
    """Logprobs must fall with the rank, and the selected token must not exceed a top-k that it is not in."""
    by_rank = np.where(top < 0, -np.inf, members.logprob[top])
    falling = np.asarray((by_rank[:, 1:] <= by_rank[:, :-1] + SLACK).all(axis=1))
    _require(falling, np.arange(len(top)), "logprobs do not fall with the rank")
    if top.shape[1]:
        outside = members.rank > top.shape[1]
        last = by_rank[members.row[outside], -1]
        fits = np.asarray(members.logprob[outside] <= last + SLACK)
        _require(fits, members.row[outside], "a token outside the top-k is likelier than the last inside")


def _require(holds: NDArray[np.bool_], row_of: NDArray[Any], what: str) -> None:
    """Refuse the reply at the first false entry of ``holds``; ``row_of`` says which row it is of."""
    if not holds.all():
        raise _refusal(what, position=int(row_of[np.argmin(holds)]) + 1)
