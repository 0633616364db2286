"""Which chunks of a view stay, and why the other kept tokens have no target."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from atroposlib.align.chunks import NO_CHUNK, Alignment
from atroposlib.align.markers import BYTES, UNKNOWN_TEXT
from atroposlib.align.runs import Runs
from atroposlib.align.streams import Stream
from atroposlib.align.views.reasons import BORDER, CUT_CHARACTER, CUT_END, LONE_MARKER, NO_VIEW, NOT_EQUAL
from atroposlib.align.views.showing import Shown

Flags = npt.NDArray[np.bool_]
ChunkIds = npt.NDArray[np.int32]


def masked_chunks(
    stream: Stream, alignment: Alignment, runs: Runs, shown: Shown, kept: Flags
) -> tuple[ChunkIds, ChunkIds, Counter[str]]:
    """The chunk ids int32 [T] and [U] of the chunks that can be trained, and why other kept tokens cannot.

    Args:
        stream: The student's, T tokens.
        alignment: C chunks.
        runs: Where both streams are equal.
        shown: What the teacher is shown.
        kept: bool [T]. Tokens that are to have a target.
    """
    ids = alignment.student_chunk_id
    partly = np.bincount(ids[~kept] + 1, minlength=len(alignment) + 1)[1:] > 0
    good = alignment.valid & ~partly
    is_marker = _markers(stream)
    reasons = np.full(len(ids), NOT_EQUAL, dtype=object)
    reasons[_covered(stream, runs)] = BORDER
    reasons[(ids != NO_CHUNK) & np.append(partly, False)[ids]] = BORDER
    reasons[is_marker] = LONE_MARKER
    reasons[~_within(shown, len(ids))] = NO_VIEW
    for (first, last), whole in zip(shown.answers, shown.wholes, strict=True):
        is_whole = stream.ends[first:last] <= whole
        reasons[first:last][~is_whole] = CUT_CHARACTER
        if last < len(ids) or is_marker[last - 1]:
            continue
        final = ids[first:last][is_whole].max(initial=NO_CHUNK)
        if final == NO_CHUNK:
            reasons[first:last][is_whole] = CUT_END
        else:
            good[final] = False
            begin = int(np.flatnonzero(ids == final)[0])
            reasons[begin:last][is_whole[begin - first :]] = CUT_END
    student = _renumbered(ids, good)
    teacher = _renumbered(alignment.teacher_chunk_id, good)
    return student, teacher, Counter(reasons[kept & (student == NO_CHUNK)].tolist())


def _renumbered(ids: ChunkIds, good: Flags) -> ChunkIds:
    numbers = np.where(good, np.cumsum(good) - 1, NO_CHUNK)
    # The last entry is that of tokens in no chunk.
    return np.append(numbers, NO_CHUNK).astype(np.int32)[ids]


def _covered(stream: Stream, runs: Runs) -> Flags:
    """bool [T]: tokens whose bytes are the teacher's too, though it may cut them elsewhere."""
    if not len(runs.lengths):
        return np.zeros(len(stream.starts), dtype=np.bool_)
    run = np.searchsorted(runs.student, stream.starts, side="right") - 1
    covered: Flags = (run >= 0) & (stream.ends <= (runs.student + runs.lengths)[np.maximum(run, 0)])
    return covered


def _markers(stream: Stream) -> Flags:
    """bool [T]: tokens that are markers."""
    first = np.append(stream.symbols, 0)[stream.starts]
    is_marker = (first >= BYTES) | ((first < 0) & ~np.isin(first, UNKNOWN_TEXT))
    markers: Flags = is_marker & (stream.starts < stream.ends)
    return markers


def _within(shown: Shown, length: int) -> Flags:
    """bool [T]: tokens of answers and those that end them."""
    within = np.zeros(length, dtype=np.bool_)
    for first, last in shown.answers:
        within[first : last + 1] = True
    return within
