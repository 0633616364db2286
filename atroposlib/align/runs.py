"""Where two streams of symbols say the same: the runs of equal symbols, in the order of both streams.

Streams that differ are brought together again by a diff in the manner of patience diff: what both have at
their begin and end, then long strings of symbols that both have equally often, then shorter ones in the gaps
that are left. Whatever is not found equal stays outside of the runs; nothing is guessed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from atroposlib.align.anchors import anchors, chained, continues
from atroposlib.align.markers import is_lone_marker
from atroposlib.align.stretches import Ints, Runs, gaps_between, positions, runs_of

__all__ = ["Runs", "equal_runs", "runs_of"]

Symbols = npt.NDArray[np.int32]

GRAMS = ((16, None), (8, None), (4, 1024))
"""How long the strings that anchor a run are, and in how large gaps they are looked for: what is short is
soon found twice by chance."""

_FIRST_LOOK = 64
_LONGEST_CHARACTER = 4


def equal_runs(student: Symbols, teacher: Symbols) -> Runs:
    """The runs of two streams, N and M symbols long, in O((N + M) log(N + M)) time.

    A run is as long as it can be, but begins and ends between two characters where what stands beside it
    differs: bytes that two characters share by chance say nothing. A marker that the other side lacks ends a
    run, and does not keep the text around it from being found.
    """
    lone = is_lone_marker(student), is_lone_marker(teacher)
    if not (lone[0].any() or lone[1].any()):
        return _runs(student, teacher)
    ours, theirs = np.flatnonzero(~lone[0]), np.flatnonzero(~lone[1])
    return _spread(_runs(student[ours], teacher[theirs]), ours, theirs)


def _spread(runs: Runs, student: Ints, teacher: Ints) -> Runs:
    """Runs of streams of which some symbols were left out, with all symbols in place.

    Args:
        runs: Of what is left of both streams.
        student: Where its symbols stand in the whole stream, rising.
        teacher: Likewise.
    """
    # Every piece of a run as one number: where it begins in the student's stream.
    pieces = [runs.student]
    for begins, places in ((runs.student, student), (runs.teacher, teacher)):
        cuts = np.flatnonzero(np.diff(places) != 1) + 1
        run = np.searchsorted(begins, cuts, side="right") - 1
        inside = (run >= 0) & (cuts < (begins + runs.lengths)[run]) if len(runs) else cuts < 0
        pieces.append(cuts[inside] + (runs.student - begins)[run[inside]])
    begins = np.unique(np.concatenate(pieces))
    run = np.searchsorted(runs.student, begins, side="right") - 1
    ends = np.minimum(np.append(begins[1:], len(student)), (runs.student + runs.lengths)[run])
    there = begins + (runs.teacher - runs.student)[run]
    return Runs(student[begins], teacher[there], ends - begins)


def _runs(student: Symbols, teacher: Symbols) -> Runs:
    shorter = min(len(student), len(teacher))
    head = _equal_head(student[:shorter], teacher[:shorter])
    if head == len(student) == len(teacher):
        return runs_of([(0, 0, head)])
    tail = _equal_head(student[::-1][: shorter - head], teacher[::-1][: shorter - head])
    found = runs_of([(0, 0, head), (len(student) - tail, len(teacher) - tail, tail)])
    if head + tail < shorter:
        found = _with_anchored(found, student, teacher)
    return _whole_characters(found, student, teacher)


def _equal_head(some: Symbols, others: Symbols) -> int:
    differs = some != others
    return int(differs.argmax()) if differs.any() else len(some)


def _with_anchored(found: Runs, student: Symbols, teacher: Symbols) -> Runs:
    """The runs and what is equal between them."""
    for size, largest_gap in GRAMS:
        gaps = gaps_between(found, len(student), len(teacher)).with_room(size, largest_gap)
        if not len(gaps):
            continue
        pieces = anchors(student, teacher, gaps, size)
        # The hashes of two strings may be equal by chance.
        equal = _equal_lengths(student, teacher, pieces, 1)
        real = equal >= size
        pieces = chained((pieces[0][real], pieces[1][real], equal[real]))
        found = _extended(_sorted(found, Runs(*pieces)), student, teacher)
    return found


def _sorted(some: Runs, others: Runs) -> Runs:
    student = np.concatenate([some.student, others.student])
    order = np.argsort(student, kind="stable")
    return Runs(
        student[order],
        np.concatenate([some.teacher, others.teacher])[order],
        np.concatenate([some.lengths, others.lengths])[order],
    )


def _extended(runs: Runs, student: Symbols, teacher: Symbols) -> Runs:
    """The runs with what is equal at both ends of every gap, those that come to touch made one."""
    gaps = gaps_between(runs, len(student), len(teacher))
    room = np.minimum(gaps.student_ends - gaps.student, gaps.teacher_ends - gaps.teacher)
    heads = _equal_lengths(student, teacher, (gaps.student, gaps.teacher, room), 1)
    last = gaps.student_ends - 1, gaps.teacher_ends - 1, room - heads
    tails = _equal_lengths(student, teacher, last, -1)
    # Before the first run and behind the last there may be equal symbols too.
    lengths = np.concatenate([np.zeros(1, np.int64), runs.lengths, np.zeros(1, np.int64)])
    lengths[:-1] += heads
    lengths[1:] += tails
    begins = np.append(0, gaps.student_ends - tails), np.append(0, gaps.teacher_ends - tails)
    kept = lengths > 0
    return _joined(Runs(begins[0][kept], begins[1][kept], lengths[kept]))


def _joined(runs: Runs) -> Runs:
    ends = runs.student + runs.lengths, runs.teacher + runs.lengths
    apart = (runs.student[1:] != ends[0][:-1]) | (runs.teacher[1:] != ends[1][:-1])
    first = np.flatnonzero(np.append(True, apart)[: len(runs)])
    last = np.flatnonzero(np.append(apart, True)[: len(runs)])
    return Runs(runs.student[first], runs.teacher[first], ends[0][last] - runs.student[first])


def _equal_lengths(student: Symbols, teacher: Symbols, pieces: tuple[Ints, Ints, Ints], step: int) -> Ints:
    """How many symbols are equal from each pair of places on, int64 [P].

    Args:
        student: N symbols.
        teacher: M symbols.
        pieces: Places in the student's stream, in the teacher's, most symbols to compare: int64 [P] each.
        step: 1 to go on from there, -1 to go back.
    """
    here, there, limits = pieces
    found = np.zeros(len(limits), dtype=np.int64)
    going, width = np.flatnonzero(limits > 0), _FIRST_LOOK
    while len(going):
        begun = found[going]
        counts = np.minimum(limits[going] - begun, width)
        at, piece = positions(np.zeros_like(counts), counts)
        moved = step * (at + begun[piece])
        differing = np.flatnonzero(
            student[here[going][piece] + moved] != teacher[there[going][piece] + moved]
        )
        # Backwards, so that the first difference of a piece is written last.
        counts[piece[differing[::-1]]] = at[differing[::-1]]
        found[going] += counts
        # Long pieces are looked at in growing steps, so that the work follows what is equal.
        going = going[(counts == width) & (found[going] < limits[going])]
        width *= 8
    return found


def _whole_characters(runs: Runs, student: Symbols, teacher: Symbols) -> Runs:
    """The runs without the part of a character at their begin or end, where the rest of it differs."""
    begins, ends = runs.student.copy(), runs.student + runs.lengths
    shift = runs.teacher - runs.student
    # What begins both texts is no rest of anything.
    inside = (runs.student > 0) | (runs.teacher > 0)
    for _ in range(_LONGEST_CHARACTER - 1):
        late = inside & (begins < ends) & _continues(student, begins)
        early = (begins < ends) & (_continues(student, ends) | _continues(teacher, ends + shift))
        if not (late.any() or early.any()):
            break
        begins += late
        ends = np.maximum(ends - early, begins)
    kept = ends > begins
    return Runs(begins[kept], (begins + shift)[kept], (ends - begins)[kept])


def _continues(stream: Symbols, at: Ints) -> npt.NDArray[np.bool_]:
    """Whether a byte inside a character stands there; beyond the end there is none."""
    return (at < len(stream)) & continues(stream[np.minimum(at, len(stream) - 1)])
