"""Makes a question of what a caller asks, and the scores of no position."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from atroposlib.errors import TeacherError, UsageError
from atroposlib.teacher.protocol import LogprobDtype, Question
from atroposlib.teacher.scores import MAX_ID
from atroposlib.types import ABSENT_ID, TeacherScores


def made(
    ids: Sequence[int], k: int, start: int, extra_ids: NDArray[np.int32] | None, dtype: LogprobDtype
) -> Question:
    """The question that a caller asks of :meth:`atroposlib.teacher.teacher.Teacher.score`.

    Raises:
        UsageError: ids, ``k``, ``start`` or ``extra_ids`` that make no sense.
        TeacherError: teacher.refused for a sequence without tokens.
    """
    if k < 0:
        raise UsageError("a teacher cannot be asked for fewer than 0 top tokens", got=k, expected=">= 0")
    if len(ids) == 0:
        raise TeacherError("a sequence without tokens cannot be scored", code="teacher.refused")
    given = np.asarray(ids)
    if given.ndim != 1 or given.dtype.kind not in "iu" or given.min() < 0 or given.max() > MAX_ID:
        raise UsageError("token ids are integers of at least 0", got=f"{given.dtype} {given.shape}")
    if not 1 <= start <= len(given):
        raise UsageError(
            "scores start at a token that has one before it", got=start, expected=f"1 .. {len(given)}"
        )
    extra = None if extra_ids is None else _named(extra_ids, len(given) - start)
    return Question(np.ascontiguousarray(given, dtype=np.int32), int(k), int(start), extra, dtype)


def _named(extra_ids: NDArray[np.int32], rows: int) -> NDArray[np.int32]:
    if extra_ids.ndim != 2 or len(extra_ids) != rows or extra_ids.shape[1] == 0:
        raise UsageError(
            "extra_ids has one row for each scored token", got=extra_ids.shape, expected=(rows, "E")
        )
    lowest, highest = extra_ids.min(initial=0), extra_ids.max(initial=0)
    if extra_ids.dtype.kind not in "iu" or lowest < ABSENT_ID or highest > MAX_ID:
        raise UsageError("extra_ids are token ids, or -1 for none", got=f"{extra_ids.dtype} from {lowest}")
    return np.ascontiguousarray(extra_ids, dtype=np.int32)


def nothing(question: Question, tokenizer: str) -> TeacherScores:
    """The scores of no position."""
    width = question.k + 1
    extra = None if question.extra_ids is None else np.zeros(question.extra_ids.shape, np.float32)
    return TeacherScores(
        ids=np.zeros((0, width), np.int32),
        logprobs=np.zeros((0, width), np.float32),
        start=question.start,
        model="",
        tokenizer=tokenizer,
        extra_logprobs=extra,
    )
