"""A sequence on its way to a teacher with another tokenizer, and what that teacher said of it, in chunks.

A chunk is what some student tokens and some teacher tokens have in common: the same bytes. It is kept whole
or not at all, since a part of it says nothing about the student's tokens.

Axes: T tokens of the student's sequence, U tokens that the teacher reads, C chunks, K columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from atroposlib.align.chunks import NO_CHUNK
from atroposlib.envs.teacher_reading import Reading, Rows, as_arrays
from atroposlib.types import ABSENT_ID, ABSENT_LOGPROB
from atroposlib.wire.targets import heavy_rows

if TYPE_CHECKING:
    from atroposlib.align.views.viewer import TeacherView

Ids = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Aligned:
    """What a teacher with another tokenizer said of one sequence.

    Attributes:
        tokens: int32 [U], what it read.
        rows: Ids int32 and logprobs float32 (nats) [U, K] at its own positions; absent outside of chunks.
        student_chunk_id: int32 [T], rising from 0 without a gap; ``NO_CHUNK`` where nothing was said.
        teacher_chunk_id: int32 [U], likewise; each chunk has tokens on both sides.
    """

    tokens: Ids
    rows: tuple[Ids, NDArray[np.float32]]
    student_chunk_id: Ids
    teacher_chunk_id: Ids

    @property
    def scored(self) -> int:
        """Student tokens that are in a chunk."""
        return int((self.student_chunk_id != NO_CHUNK).sum())


@dataclass(frozen=True)
class ViewPart:
    """One sequence of a group on its way to a teacher with another tokenizer.

    Attributes:
        kept: bool [T], which positions are to have a target.
        view: The sequence in the teacher's tokens; None when it is not asked.
        masked: Why it is not asked, when there are positions to score.
    """

    kept: NDArray[np.bool_]
    view: TeacherView | None
    masked: str | None = None

    @cached_property
    def chunks(self) -> tuple[Ids, Ids]:
        """Chunk ids [T] and [U] of what both sides have, before the teacher is asked."""
        if self.view is None:
            return np.full(len(self.kept), NO_CHUNK, np.int32), np.zeros(0, np.int32)
        # Nothing comes before the first token, so nothing predicts it.
        lost = np.zeros(len(self.view.ids), np.bool_)
        lost[:1] = True
        return without(self.view.student_chunk_id, self.view.teacher_chunk_id, lost)

    @property
    def known(self) -> Mapping[str, int]:
        """Positions that can have no target whatever the teacher says, by reason."""
        return {} if self.view is None else self.view.masked

    @cached_property
    def reading(self) -> Reading | None:
        """What the teacher reads: up to its last token in a chunk, scored from the first one on."""
        there = np.flatnonzero(self.chunks[1] != NO_CHUNK)
        if self.view is None or not len(there):
            return None
        end = int(there[-1]) + 1
        return Reading(self.view.ids[:end].tolist(), int(there[0]), end)

    def behind(self, tokens: int | None) -> int:
        """How many positions are in chunks that reach behind the first ``tokens`` teacher tokens."""
        ours, theirs = self.chunks
        if tokens is None or len(theirs) <= tokens:
            return 0
        kept, _ = without(ours, theirs, np.arange(len(theirs)) >= tokens)
        return int((ours != NO_CHUNK).sum() - (kept != NO_CHUNK).sum())

    def placed(self, rows: Rows, reading: Reading) -> Aligned:
        """The rows that a teacher gave for ``reading``, without the chunks of which it left a token out.

        Raises:
            TeacherError: The rows do not fit the reading.
        """
        ids, logprobs = as_arrays(rows, len(reading.ids))
        tokens = np.array(reading.ids, np.int32)
        ours, theirs = self.chunks
        lost = np.ones(len(theirs), np.bool_)
        if ids.shape[1]:
            lost[: len(tokens)] = (ids[:, 0] != tokens) | (logprobs[:, 0] <= ABSENT_LOGPROB)
            # No API takes them, and a chunk without one of its rows would be none.
            lost[: len(tokens)] |= heavy_rows(ids, logprobs)
        ours, theirs = without(ours, theirs, lost)
        theirs = theirs[: len(tokens)]
        said = (theirs != NO_CHUNK)[:, None] & (ids != ABSENT_ID)
        kept = (
            np.where(said, ids, ABSENT_ID).astype(np.int32),
            np.where(said, logprobs, ABSENT_LOGPROB).astype(np.float32),
        )
        return Aligned(tokens, kept, ours, theirs)


def without(student: Ids, teacher: Ids, lost: NDArray[np.bool_]) -> tuple[Ids, Ids]:
    """Chunk ids [T] and [U] without the chunks that hold a ``lost`` teacher token, or miss a side.

    The ids that are left rise from 0 without a gap again.
    """
    chunks = int(max(student.max(initial=NO_CHUNK), teacher.max(initial=NO_CHUNK))) + 1
    # One more place, which is that of tokens in no chunk.
    whole = np.zeros(chunks + 1, np.bool_)
    whole[student] = True
    theirs = np.zeros(chunks + 1, np.bool_)
    theirs[teacher] = True
    theirs[teacher[lost]] = False
    whole &= theirs
    whole[NO_CHUNK] = False
    renumbered = np.where(whole, np.cumsum(whole) - 1, NO_CHUNK).astype(np.int32)
    return renumbered[student], renumbered[teacher]
