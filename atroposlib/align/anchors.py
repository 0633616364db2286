"""Anchors of a diff: short strings of symbols that both sides of a gap have equally often."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from atroposlib.align.stretches import Gaps, Ints, positions

Pieces = tuple[Ints, Ints, Ints]
"""Begin in the student's stream, begin in the teacher's, length: int64 [P] each."""

# Arrays, because a single number would warn where it overflows, which is how a hash is made.
_ODD = np.array([0x9E3779B97F4A7C15], dtype=np.uint64)


def anchors(student: npt.NDArray[np.int32], teacher: npt.NDArray[np.int32], gaps: Gaps, size: int) -> Pieces:
    """Pieces of strings of ``size`` symbols that a gap has equally often on both sides.

    The first such string of the student is paired with the first of the teacher, and so on; pairs that follow
    each other are one piece. Strings are told apart by a hash, so pieces have to be verified.

    Returns:
        Pieces, rising on the student's side.
    """
    ours = _starts(student, gaps.student, gaps.student_ends - size + 1)
    theirs = _starts(teacher, gaps.teacher, gaps.teacher_ends - size + 1)
    keys = np.concatenate([_keys(student, *ours, size), _keys(teacher, *theirs, size)])
    here, there = _equally_often(keys, len(ours[0]))
    order = np.argsort(here)
    places = ours[0][here[order]], theirs[0][there[order]]
    steps = np.diff(places[0])
    follows = (steps == np.diff(places[1])) & (steps <= size)
    first = np.flatnonzero(np.append(True, ~follows)[: len(order)])
    last = np.flatnonzero(np.append(~follows, True)[: len(order)])
    return places[0][first], places[1][first], places[0][last] - places[0][first] + size


def continues(symbols: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    """Whether each symbol is a byte inside a character of UTF-8."""
    found: npt.NDArray[np.bool_] = (symbols >= 0x80) & (symbols < 0xC0)
    return found


def _starts(stream: npt.NDArray[np.int32], begins: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Every position in these stretches where a string may begin, and the number of its stretch.

    The last bytes of two characters are equal by chance more often than not, so none begins there.
    """
    at, stretch = positions(begins, ends)
    whole = ~continues(stream[at])
    return at[whole], stretch[whole]


def _keys(stream: npt.NDArray[np.int32], at: Ints, gap: Ints, size: int) -> npt.NDArray[np.uint32]:
    """A hash of the string that begins at each position, another one in every gap."""
    hashes, factor, width = stream.astype(np.uint64) * _ODD, _ODD, 1
    while width < size:
        hashes = hashes[:-width] * factor + hashes[width:]
        factor, width = factor * factor, 2 * width
    mixed = (hashes[at] ^ (hashes[at] >> np.uint64(29))) + gap.astype(np.uint64)
    found: npt.NDArray[np.uint32] = ((mixed * _ODD) >> np.uint64(32)).astype(np.uint32)
    return found


def _equally_often(keys: npt.NDArray[np.uint32], ours: int) -> tuple[Ints, Ints]:
    """Indices of the student's keys and of the teacher's that have the same rank among equal keys."""
    order = np.argsort((keys & np.uint32(0xFFFF)).astype(np.uint16), kind="stable")
    # Stable and 16 bits wide at a time: a radix sort, which takes linear time.
    order = order[np.argsort((keys[order] >> np.uint32(16)).astype(np.uint16), kind="stable")]
    ranked = keys[order]
    begins = np.flatnonzero(np.append(True, ranked[1:] != ranked[:-1])[: len(keys)])
    sizes = np.diff(np.append(begins, len(keys)))
    of_student = np.append(0, np.cumsum(order < ours))
    counts = of_student[begins + sizes] - of_student[begins]
    even = 2 * counts == sizes
    first, _ = positions(begins[even], (begins + counts)[even])
    return order[first], order[first + np.repeat(counts[even], counts[even])] - ours


def chained(pieces: Pieces) -> Pieces:
    """The pieces that rise on both sides and hold the most symbols together, cut where they overlap."""
    student, teacher, lengths = pieces
    if (np.diff(teacher) <= 0).any():
        chain = _heaviest_chain(teacher, lengths)
        student, teacher, lengths = student[chain], teacher[chain], lengths[chain]
    cut = np.zeros(len(lengths), dtype=np.int64)
    for begins in (student, teacher):
        taken = np.maximum.accumulate(begins + lengths)[:-1]
        cut[1:] = np.maximum(cut[1:], taken - begins[1:])
    kept = cut < lengths
    return (student + cut)[kept], (teacher + cut)[kept], (lengths - cut)[kept]


def _heaviest_chain(begins: Ints, lengths: Ints) -> Ints:
    """Indices of the rising subsequence of the largest total length, by a Fenwick tree of the best so far."""
    ranks = np.empty(len(begins), dtype=np.int64)
    ranks[np.argsort(begins)] = np.arange(1, len(begins) + 1)
    best: list[tuple[int, int]] = [(0, -1)] * (len(begins) + 1)
    before: list[int] = []
    for index, (rank, length) in enumerate(zip(ranks.tolist(), lengths.tolist(), strict=True)):
        at, reached = rank - 1, (0, -1)
        while at:
            reached = max(reached, best[at])
            at &= at - 1
        before.append(reached[1])
        mine, at = (reached[0] + length, index), rank
        while at < len(best):
            best[at] = max(best[at], mine)
            at += at & -at
    # The last entry of the tree need not cover all ranks, so the best is looked for among all of them.
    chain = [max(best)[1]]
    while before[chain[-1]] >= 0:
        chain.append(before[chain[-1]])
    return np.array(chain[::-1], dtype=np.int64)
