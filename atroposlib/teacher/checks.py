"""Checks a reply that has become arrays: every route's answer passes here before a value of it is used."""

from __future__ import annotations

from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from atroposlib.errors import TeacherError
from atroposlib.teacher.protocol import Question
from atroposlib.types import ABSENT_ID, TeacherScores

SLACK = 1e-3
"""Rounding allowed: nats above 0 or out of order, and probability above 1 in sum."""

LEAST_BEST = -17.0
"""Nats below which the likeliest token of no vocabulary is: 17 is the logarithm of 24 million tokens."""

EXTRA_SLACK = 0.3
"""Nats between the logprobs of one token among the top-k and among the ids that the caller named. Engines may
compute the two by different matrix products, whose bfloat16 logits differ by a unit in the last place."""

FLOAT16_ROUNDING = 2.0**-11
"""Largest relative error of a logprob that travelled as float16."""

_INT32, _FLOAT32 = np.dtype(np.int32), np.dtype(np.float32)


def checked(scores: TeacherScores, question: Question) -> TeacherScores:
    """``scores``, when they answer ``question`` and can be true.

    Of R = T - start rows and K = k + 1 columns each row must hold: the token that stands there in column 0
    (absent only at probability 0), then the top-k without it, falling, no id twice, no NaN, nothing above 0,
    probabilities that do not exceed 1 in sum. The last column is absent where the standing token is inside
    the top-k; more are absent only where the row holds all of the probability, as with a vocabulary below k.

    Raises:
        TeacherError: teacher.bad_reply, with ``rows[i]`` as where for what is wrong in one row.
    """
    rows = len(question.ids) - question.start
    _require_array("ids", scores.ids, _INT32, (rows, question.k + 1))
    _require_array("logprobs", scores.logprobs, _FLOAT32, (rows, question.k + 1))
    if scores.start != question.start:
        _refuse("the rows start at another position", got=scores.start, expected=question.start)
    if rows:
        absent = scores.ids < 0
        _check_ids(scores.ids, absent, question)
        _check_logprobs(scores.logprobs, absent, question)
    if scores.extra_logprobs is not None:
        _check_extra(scores, scores.extra_logprobs, question)
    return scores


def require_rows(holds: NDArray[np.bool_], what: str) -> None:
    """Refuse the reply at the first row of ``holds`` ([R] or [R, K]) that is not all true."""
    # Three times as fast as ``all`` on so small arrays.
    if np.count_nonzero(holds) != holds.size:
        rows = holds.reshape(len(holds), -1).all(axis=1)
        _refuse(what, where=f"rows[{int(np.argmin(rows))}]")


def _require_array(name: str, array: NDArray[np.generic], dtype: np.dtype, shape: tuple[int, ...]) -> None:
    if array.dtype != dtype or array.shape != shape:
        _refuse(
            f"the {name} of the answer have another shape or type",
            got=f"{array.dtype} {list(array.shape)}",
            expected=f"{dtype} {list(shape)}",
        )


# A reply of 256 tokens and a small k costs as many microseconds as the next two functions call numpy.


def _check_ids(ids: NDArray[np.int32], absent: NDArray[np.bool_], question: Question) -> None:
    right = (ids[:, 0] == question.ids[question.start :]) | absent[:, 0]
    require_rows(right, "column 0 is not the token that stands in the sequence")
    ordered = np.sort(ids, axis=1)
    require_rows(ordered[:, 0] >= ABSENT_ID, "an id is negative")
    flat = ordered.reshape(-1)
    # Equal neighbours are rare, and are then mostly absent ones.
    if np.count_nonzero(flat[1:] == flat[:-1]):
        once = (ordered[:, 1:] != ordered[:, :-1]) | (ordered[:, 1:] == ABSENT_ID)
        require_rows(once, "an id stands in a row twice")


def _check_logprobs(logprobs: NDArray[np.float32], absent: NDArray[np.bool_], question: Question) -> None:
    # A comparison with NaN is false, so this refuses NaN too; exp comes after it and cannot overflow.
    require_rows(logprobs <= SLACK, "a logprob is NaN or above 0")
    require_rows((logprobs == -np.inf) == absent, "a logprob is -inf beside an id, or finite beside none")
    # Columns, since numpy walks along rows of a few numbers slowly.
    columns = np.ascontiguousarray(logprobs.T)
    mass = np.exp(columns).sum(axis=0)
    inside = absent[:, -1]
    several = np.count_nonzero(inside) != np.count_nonzero(absent)
    slack: NDArray[np.float32] | float = SLACK
    if question.dtype == "float16" and (several or mass.max() > 1 + SLACK):
        slack = SLACK + _rounding_of_mass(logprobs)
    require_rows(
        mass <= 1 + slack,
        "the probabilities of a row exceed 1; the server's --logprobs-mode must be one of logprobs",
    )
    if question.k == 0:
        return
    require_rows(
        np.maximum(columns[0], columns[1]) >= LEAST_BEST,
        "no token of a row has a probability; the server's --logprobs-mode must be one of logprobs",
    )
    require_rows((columns[2:] <= columns[1:-1] + np.float32(SLACK)).T, "logprobs do not fall along a row")
    if several:
        # One column is absent beside a standing token of the top-k; column -2 is column 0 where k is 1.
        short = inside & (absent[:, -2] | absent[:, 0])
        require_rows(~short | (mass >= 1 - slack), f"a row has fewer than {question.k} tokens of the top-k")
    factor = np.float32(1 - FLOAT16_ROUNDING if question.dtype == "float16" else 1)
    require_rows(
        (columns[0] <= columns[-1] * factor + np.float32(SLACK)) | inside,
        "a token outside the top-k is likelier than the last inside",
    )


def _rounding_of_mass(logprobs: NDArray[np.float32]) -> NDArray[np.float32]:
    """What float16 may have added to the sum of probabilities of each row, [R]."""
    finite = np.where(np.isneginf(logprobs), np.float32(0.0), logprobs)
    return np.asarray(FLOAT16_ROUNDING * (np.exp(logprobs) * np.abs(finite)).sum(axis=1), dtype=np.float32)


def _check_extra(scores: TeacherScores, extra: NDArray[np.float32], question: Question) -> None:
    """A named id that its row lists has its logprob there, and one that is not listed is less likely."""
    named = question.extra_ids
    if named is None:
        _refuse("the answer has logprobs of ids that nobody named")
    _require_array("extra logprobs", extra, _FLOAT32, named.shape)
    missing = np.isnan(extra)
    require_rows(missing | (extra <= SLACK), "the logprob of a named id is above 0")
    require_rows(missing | (named != ABSENT_ID), "a logprob where no id was named")
    if not extra.size:
        return
    known = np.where(missing, np.float32(-np.inf), extra)
    listed = np.zeros(named.shape, dtype=np.bool_)
    for ids, logprobs in zip(scores.ids.T, scores.logprobs.T, strict=True):
        same = (named == ids[:, None]) & ~missing
        row, column = np.nonzero(same)
        alike = np.ones(len(named), dtype=np.bool_)
        alike[row] = np.abs(known[row, column] - logprobs[row]) <= EXTRA_SLACK
        require_rows(alike, "the logprob of a named id is not that of the same token in its row")
        listed |= same
    if question.k:
        inside = scores.ids[:, -1] == ABSENT_ID
        least = np.where(np.isneginf(scores.logprobs), np.float32(np.inf), scores.logprobs).min(axis=1)
        last = np.where(inside, least, scores.logprobs[:, -1])
        fits = listed | (known <= last[:, None] + np.float32(EXTRA_SLACK))
        require_rows(fits, "a named id outside the top-k is likelier than the last inside")


def _refuse(what: str, *, where: str | None = None, got: object = None, expected: object = None) -> NoReturn:
    raise TeacherError(what, where=where, got=got, expected=expected)
