"""From a teacher's scores to the targets of a group: which positions are kept, and their rows as one array.

Axes: G sequences of a group, T tokens of a sequence, R rows, K columns, E ids that the caller named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atroposlib.teacher.checks import require_rows
from atroposlib.types import ABSENT_ID, IGNORED, Targets, TeacherScores
from atroposlib.wire.targets import heavy_rows, repeated

Positions = Literal["completion", "all"]
"""Which positions have a target: those that are trained, or all but the first."""


def kept_positions(mask: ArrayLike, positions: Positions) -> NDArray[np.bool_]:
    """Which of the T positions of a sequence are kept; never position 0, which nothing precedes.

    Args:
        mask: ``masks`` [T] of the sequence: ``IGNORED`` where the token is not trained.
        positions: What is kept of it.
    """
    masks = np.asarray(mask)
    kept = np.ones(len(masks), np.bool_) if positions == "all" else masks != IGNORED
    kept[:1] = False
    return kept


def kept_span(mask: ArrayLike, positions: Positions) -> tuple[int, int]:
    """First kept position, and the end of what a teacher has to read; (1, 1) where nothing is kept.

    Tokens after the last kept one say nothing about it, so they are not sent.
    """
    kept = np.flatnonzero(kept_positions(mask, positions))
    return (int(kept[0]), int(kept[-1]) + 1) if len(kept) else (1, 1)


def with_extra(scores: TeacherScores, extra_ids: NDArray[np.int32]) -> TeacherScores:
    """The scores with the ids that the caller named as further columns [R, K + E].

    An id that its row holds already, and one that the teacher gave no logprob for, is absent there, so no
    probability counts twice. Scores without extra logprobs come back as they are.

    Raises:
        TeacherError: teacher.bad_reply for a row whose probabilities exceed 1 with those of the named ids.
    """
    if scores.extra_logprobs is None:
        return scores
    given = np.where(np.isfinite(scores.extra_logprobs), extra_ids, ABSENT_ID)
    ids = np.concatenate([scores.ids, given], axis=1)
    logprobs = np.concatenate([scores.logprobs, scores.extra_logprobs], axis=1)
    ids[:, scores.ids.shape[1] :][repeated(ids)[:, scores.ids.shape[1] :]] = ABSENT_ID
    logprobs[ids == ABSENT_ID] = -np.inf
    require_rows(
        ~heavy_rows(ids, logprobs), "the top-k and the ids that were named have a probability above 1"
    )
    return replace(scores, ids=ids, logprobs=logprobs, extra_logprobs=None)


def to_targets(
    scores: Sequence[TeacherScores | None], masks: Sequence[ArrayLike], positions: Positions
) -> Targets:
    """The targets of a group: one row for each position from a sequence's first kept one to its last.

    Args:
        scores: What the teacher said of each of the G sequences; None where it did not score it.
        masks: ``masks`` [G][T].
        positions: Which positions are kept.

    Returns:
        Rows at positions that are not kept are all absent, and so are columns that a narrower answer lacks.
        A sequence that was not scored, or of which nothing is kept, has no rows. Logprobs are float32.
    """
    kept = [kept_positions(mask, positions) for mask in masks]
    spans = [_span(one, rows) if one is not None else (0, 0) for one, rows in zip(scores, kept, strict=True)]
    starts = np.array([start if end > start else 0 for start, end in spans], np.int32)
    counts = np.array([end - start for start, end in spans], np.int32)
    columns = max((one.ids.shape[1] for one in scores if one is not None), default=0)
    ids = np.full((int(counts.sum()), columns), ABSENT_ID, np.int32)
    logprobs = np.full(ids.shape, -np.inf, np.float32)
    end = 0
    for one, rows, (first, last) in zip(scores, kept, spans, strict=True):
        if one is None or last == first:
            continue
        begin, end = end, end + last - first
        source = slice(first - one.start, last - one.start)
        width, here = one.ids.shape[1], rows[first:last, None]
        ids[begin:end, :width] = np.where(here, one.ids[source], ABSENT_ID)
        logprobs[begin:end, :width] = np.where(here, one.logprobs[source], -np.inf)
    return Targets(starts, counts, ids, logprobs)


def _span(scores: TeacherScores, kept: NDArray[np.bool_]) -> tuple[int, int]:
    """First and end of the kept positions that the scores cover."""
    end = min(len(kept), scores.start + len(scores.ids))
    covered = np.flatnonzero(kept[scores.start : end]) + scores.start
    return (int(covered[0]), int(covered[-1]) + 1) if len(covered) else (0, 0)
