"""What a teacher is given to read of a sequence, and where in it the student's positions lie.

Axes: T tokens of the student's sequence, U tokens that the teacher reads, K columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atroposlib.errors import TeacherError
from atroposlib.teacher.protocol import Capabilities
from atroposlib.teacher.targets import Positions, kept_positions, kept_span
from atroposlib.types import ABSENT_ID, ABSENT_LOGPROB

Rows = tuple[Any, Any]
"""Ids and logprobs (nats) of a sequence, each [T][K] as lists or [T, K] as an array."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One sequence as one teacher reads it. To a teacher with other tokens, positions are those of its own.

    Attributes:
        ids: U token ids; the student's own stand verbatim at the end.
        first: First position of the student's sequence that is scored.
        end: End of the positions that are scored.
        shift: What a position in ``ids`` is above the student's position of the same token.
    """

    ids: list[int]
    first: int
    end: int
    shift: int = 0

    @property
    def start(self) -> int:
        """Position in ``ids`` of the first token that is scored."""
        return self.first + self.shift

    def cut(self, tokens: int | None) -> Reading:
        """The reading without what stands behind its first ``tokens`` ids; None cuts nothing."""
        if tokens is None or len(self.ids) <= tokens:
            return self
        return replace(self, ids=self.ids[:tokens], end=max(self.first, tokens - self.shift))


@dataclass(frozen=True, slots=True)
class Part:
    """One sequence of a group on its way to one teacher.

    Attributes:
        kept: Which of its T positions are to have a target.
        reading: What the teacher reads; None when it is not asked.
        masked: Why it is not asked, when there are positions to score.
    """

    kept: NDArray[np.bool_]
    reading: Reading | None
    masked: str | None = None

    @property
    def known(self) -> Mapping[str, int]:
        """Positions that can have no target whatever the teacher says, by reason: none."""
        return {}

    def behind(self, tokens: int | None) -> int:
        """How many positions are to have a target and stand behind the first ``tokens`` ids that are read."""
        return 0 if self.reading is None else int(self.kept[self.reading.cut(tokens).end :].sum())

    def placed(self, rows: Rows, reading: Reading) -> Rows:
        """The rows [U, K] that a teacher gave for ``reading``, at the student's positions [T, K].

        Raises:
            TeacherError: They do not fit the reading.
        """
        return at_student_positions(rows, self, reading)


def plain_part(tokens: Sequence[int], mask: Sequence[int] | None, positions: Positions) -> Part:
    """The sequence up to its last kept position, as it is; nothing is asked where nothing is kept."""
    masks = tokens if mask is None else mask
    kept = kept_positions(masks, "all" if mask is None else positions)
    first, end = kept_span(masks, "all" if mask is None else positions)
    return Part(kept, Reading(list(tokens[:end]), first, end) if end > first else None)


def has_images(images: object) -> bool:
    """Whether the ``images`` of a group hold any: ids alone do not say what they show."""
    return any(image is not None for image in images) if isinstance(images, list | tuple) else bool(images)


def longest_of(servers: Iterable[Capabilities]) -> int | None:
    """Most tokens that all these servers score at once; None where none has told."""
    # One more token is sampled.
    return min((one.max_model_len - 1 for one in servers if one.max_model_len is not None), default=None)


def as_arrays(rows: Rows, length: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """A teacher's rows as two arrays [U, K]; short rows of lists are filled up with absent columns.

    Raises:
        TeacherError: There is not one row a token, or not as many ids as logprobs; no value is used.
    """
    ids, logprobs = rows
    if len(ids) != length or len(logprobs) != length:
        raise TeacherError(
            "the teacher's rows do not fit the sequence",
            got=f"{len(ids)} rows of ids, {len(logprobs)} of logprobs",
            expected=f"{length} of each",
        )
    if not isinstance(ids, np.ndarray):
        ids, logprobs = _padded(ids, logprobs)
    if ids.ndim != 2 or ids.shape != np.shape(logprobs):
        raise TeacherError("a teacher's row has another number of ids than of logprobs")
    if np.isnan(logprobs).any():
        raise TeacherError("a logprob is NaN")
    return ids, logprobs


def _padded(ids: Any, logprobs: Any) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    if any(len(some) != len(others) for some, others in zip(ids, logprobs, strict=True)):
        raise TeacherError("a teacher's row has another number of ids than of logprobs")
    width = max(map(len, ids), default=0)
    wide_ids = [[*row, *[ABSENT_ID] * (width - len(row))] for row in ids]
    wide_logprobs = [[*row, *[ABSENT_LOGPROB] * (width - len(row))] for row in logprobs]
    try:
        return np.array(wide_ids, np.int64), np.array(wide_logprobs, np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise TeacherError("a teacher's rows are no numbers", got=str(error)[:80]) from error


def at_student_positions(rows: Rows, part: Part, reading: Reading) -> Rows:
    """The rows [U, K] that a teacher gave for ``reading``, at the student's positions [T, K].

    Rows at positions that are not kept, or that the teacher did not read, are absent. Lists give lists.
    """
    ids, logprobs = as_arrays(rows, len(reading.ids))
    placed_ids = np.full((len(part.kept), ids.shape[1]), ABSENT_ID, ids.dtype)
    placed = np.full(placed_ids.shape, ABSENT_LOGPROB, logprobs.dtype)
    here = np.flatnonzero(part.kept[reading.first : reading.end]) + reading.first
    placed_ids[here], placed[here] = ids[here + reading.shift], logprobs[here + reading.shift]
    placed[placed_ids == ABSENT_ID] = ABSENT_LOGPROB
    return (placed_ids, placed) if isinstance(rows[0], np.ndarray) else (placed_ids.tolist(), placed.tolist())


def said(rows: Rows) -> int:
    """How many of the rows name a token."""
    ids = np.asarray(rows[0])
    return int((ids != ABSENT_ID).any(axis=1).sum()) if ids.size else 0
