"""Puts the standing token before the top-k of a server that ranks by order and gives the two apart."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from atroposlib.teacher.checks import SLACK, require_rows
from atroposlib.types import ABSENT_ID


def with_standing(
    standing: NDArray[np.int32],
    own: NDArray[np.float32],
    top_ids: NDArray[np.int32],
    top_logprobs: NDArray[np.float32],
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Columns as in :class:`atroposlib.types.TeacherScores`.

    Args:
        standing: int32 [R], the tokens that stand in the sequence.
        own: float32 [R], their logprobs in nats.
        top_ids: int32 [R, k], the top-k in falling order, the standing token among them or not;
            ``ABSENT_ID`` where the row has no more.
        top_logprobs: float32 [R, k] in nats, ``-inf`` beside an absent id.

    Returns:
        Ids int32 and logprobs float32 [R, k + 1].

    Raises:
        TeacherError: teacher.bad_reply when the two disagree about the standing token.
    """
    inside = top_ids == standing[:, None]
    require_rows(np.count_nonzero(inside, axis=1) <= 1, "an id stands in a row twice")
    row, column = np.nonzero(inside)
    alike = np.ones(len(own), dtype=np.bool_)
    # NaN and -inf differ from everything here, and are refused.
    with np.errstate(invalid="ignore"):
        alike[row] = np.abs(top_logprobs[row, column] - own[row]) <= SLACK
    require_rows(alike, "the standing token has another logprob inside the top-k")
    with np.errstate(invalid="ignore"):
        falls = top_logprobs[:, 1:] <= top_logprobs[:, :-1] + np.float32(SLACK)
    require_rows(falls, "logprobs do not fall along a row")
    # A stable sort by "is the standing token" moves it behind the others and keeps their order.
    order = np.argsort(inside | (top_ids == ABSENT_ID), axis=1, kind="stable")
    others = np.where(inside, ABSENT_ID, top_ids)
    values = np.where(inside, np.float32(-np.inf), top_logprobs)
    ids = np.concatenate([standing[:, None], np.take_along_axis(others, order, axis=1)], axis=1)
    logprobs = np.concatenate([own[:, None], np.take_along_axis(values, order, axis=1)], axis=1)
    absent = np.isneginf(logprobs)
    return np.where(absent, np.int32(ABSENT_ID), ids), logprobs
