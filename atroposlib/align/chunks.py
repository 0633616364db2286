"""Chunks: the smallest runs of tokens on both sides that stand for the same bytes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from atroposlib.align.streams import Stream
from atroposlib.align.stretches import Ints, Runs, gaps_between, positions

NO_CHUNK = -1


@dataclass(frozen=True, slots=True)
class Alignment:
    """Two tokenizations of one text. T student tokens, U teacher tokens, C chunks.

    Attributes:
        student_chunk_id: int32 [T], rising from 0 without a gap; ``NO_CHUNK`` at a token that stands for
            bytes which the other side does not have.
        teacher_chunk_id: int32 [U], likewise.
        valid: bool [C]. Whether both sides of the chunk have tokens; a marker that the other side lacks is a
            chunk of its own with nothing on that side.
    """

    student_chunk_id: npt.NDArray[np.int32]
    teacher_chunk_id: npt.NDArray[np.int32]
    valid: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        """C."""
        return len(self.valid)

    def exact(self) -> npt.NDArray[np.bool_]:
        """bool [C]: valid chunks of one token on each side."""
        ours = np.bincount(self.student_chunk_id + 1, minlength=len(self) + 1)[1:]
        theirs = np.bincount(self.teacher_chunk_id + 1, minlength=len(self) + 1)[1:]
        found: npt.NDArray[np.bool_] = self.valid & (ours == 1) & (theirs == 1)
        return found


@dataclass(frozen=True, slots=True)
class _Spans:
    """Chunks as spans of symbols: begins and ends int64 [C] on both sides."""

    student: tuple[Ints, Ints]
    teacher: tuple[Ints, Ints]


def chunks(student: Stream, teacher: Stream, runs: Runs) -> Alignment:
    """The chunks of two streams, given where they are equal.

    A chunk reaches from one common boundary of tokens to the next within one run, so a token that touches a
    symbol outside of all runs is in no chunk. Time is linear in T + U, but for a binary search each.
    """
    spans = _with_lone_markers(_between_boundaries(student, teacher, runs), student, teacher, runs)
    return Alignment(
        _ids_at(student, *spans.student),
        _ids_at(teacher, *spans.teacher),
        (spans.student[0] < spans.student[1]) & (spans.teacher[0] < spans.teacher[1]),
    )


def _boundaries(stream: Stream) -> Ints:
    ends = np.concatenate([np.zeros(1, dtype=np.int64), stream.ends])
    # Tokens may be empty.
    distinct: Ints = ends[np.append(True, ends[1:] != ends[:-1])]
    return distinct


def _between_boundaries(student: Stream, teacher: Stream, runs: Runs) -> _Spans:
    ours, theirs = _boundaries(student), _boundaries(teacher)
    first = np.searchsorted(ours, runs.student)
    counts = np.searchsorted(ours, runs.student + runs.lengths, side="right") - first
    # A run that lies within one token has no boundary, and the search ends before where it began.
    counts = np.maximum(counts, 0)
    run = np.repeat(np.arange(len(counts)), counts)
    begins_at = np.cumsum(counts) - counts
    here = ours[np.arange(len(run)) + (first - begins_at)[run]]
    there = here + (runs.teacher - runs.student)[run]
    found = np.searchsorted(theirs, there)
    common = theirs[np.minimum(found, len(theirs) - 1)] == there
    run, here, there = run[common], here[common], there[common]
    together = run[1:] == run[:-1]
    return _Spans((here[:-1][together], here[1:][together]), (there[:-1][together], there[1:][together]))


def _with_lone_markers(spans: _Spans, student: Stream, teacher: Stream, runs: Runs) -> _Spans:
    """The spans and, where only markers stand between two runs, each of them as a span of its own."""
    if int(runs.lengths.sum()) == len(student) == len(teacher):
        return spans
    gaps = gaps_between(runs, len(student), len(teacher))
    counts = gaps.student_ends - gaps.student, gaps.teacher_ends - gaps.teacher
    lone = np.flatnonzero(
        (counts[0] + counts[1] > 0)
        & (student.markers_in(gaps.student, gaps.student_ends) == counts[0])
        & (teacher.markers_in(gaps.teacher, gaps.teacher_ends) == counts[1])
    )
    if not len(lone):
        return spans
    ours, gap = positions(gaps.student[lone], gaps.student_ends[lone])
    before = gaps.teacher[lone][gap]
    theirs, gap = positions(gaps.teacher[lone], gaps.teacher_ends[lone])
    behind = gaps.student_ends[lone][gap]
    begins = (
        np.concatenate([spans.student[0], ours, behind]),
        np.concatenate([spans.teacher[0], before, theirs]),
    )
    ends = (
        np.concatenate([spans.student[1], ours + 1, behind]),
        np.concatenate([spans.teacher[1], before, theirs + 1]),
    )
    # Every span moves at least one of the two sides on.
    order = np.argsort(begins[0] + begins[1], kind="stable")
    return _Spans((begins[0][order], ends[0][order]), (begins[1][order], ends[1][order]))


def _ids_at(stream: Stream, begins: Ints, ends: Ints) -> npt.NDArray[np.int32]:
    """int32 [T]: the span that each token lies in; an empty token goes with the one after it."""
    real = np.flatnonzero(begins < ends)
    if not len(real):
        return np.full(len(stream.starts), NO_CHUNK, dtype=np.int32)
    at = np.searchsorted(begins[real], stream.starts, side="right") - 1
    last = ends[real][np.maximum(at, 0)]
    inside = (at >= 0) & (stream.starts < last) & (stream.ends <= last)
    return np.where(inside, real[np.maximum(at, 0)], NO_CHUNK).astype(np.int32)
