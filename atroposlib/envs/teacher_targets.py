"""Teacher targets of one group: rectangular arrays out of what was scored, absent rows for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from atroposlib.errors import TeacherError
from atroposlib.types import ABSENT_ID, ABSENT_LOGPROB

Number = TypeVar("Number", int, float)
Rows = tuple[list[list[int]], list[list[float]]]


def check_rows(rows: Rows, length: int) -> Rows:
    """The rows of one sequence when they are one a token, with as many ids as logprobs in each.

    Raises:
        TeacherError: They are not; no value of them is used.
    """
    ids, logprobs = rows
    if len(ids) != length or len(logprobs) != length:
        raise TeacherError(
            "the teacher's rows do not fit the sequence",
            got=f"{len(ids)} rows of ids, {len(logprobs)} of logprobs",
            expected=f"{length} of each",
        )
    if any(len(some) != len(others) for some, others in zip(ids, logprobs, strict=True)):
        raise TeacherError("a teacher's row has another number of ids than of logprobs")
    return rows


def rectangular(
    scored: Sequence[Rows | None], lengths: Sequence[int]
) -> tuple[list[list[list[int]]], list[list[list[float]]]]:
    """``distill_token_ids`` and ``distill_logprobs`` [G][T][K] of a group.

    Args:
        scored: Rows of each of the G sequences; None for a sequence that was not scored.
        lengths: Tokens T of each sequence.

    Returns:
        Every row K columns wide. Position 0, missing columns and every row of a sequence that was not
        scored are absent (id -1, logprob -9999.0).
    """
    columns = max((len(row) for rows in scored if rows is not None for row in rows[0]), default=1)
    token_ids: list[list[list[int]]] = []
    logprobs: list[list[list[float]]] = []
    for rows, length in zip(scored, lengths, strict=True):
        ids, values = rows if rows is not None else ([[] for _ in range(length)], [[] for _ in range(length)])
        # Nothing precedes position 0, so no teacher speaks of it.
        token_ids.append(_padded([[], *ids[1:]], columns, ABSENT_ID))
        logprobs.append(_padded([[], *values[1:]], columns, ABSENT_LOGPROB))
    return token_ids, logprobs


def _padded(rows: Sequence[Sequence[Number]], columns: int, absent: Number) -> list[list[Number]]:
    return [list(row) + [absent] * (columns - len(row)) for row in rows]
