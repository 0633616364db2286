"""The common outcomes of two vocabularies: ids that one text may begin with are one component."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from atroposlib.align.markers import BYTES, marker_symbols
from atroposlib.align.tables.table import Vocabulary
from atroposlib.projection.speller import Speller
from atroposlib.projection.splits import NO_ID, Splits, split

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Quotient:
    """The components of the graph between each token and the other side's first token of its bytes.

    C components, numbered by their lowest student id. Every component has ids of both sides; an id without
    a counterpart is in none, so its mass is part of the tail on its side.

    Attributes:
        student: int32 [V_s]. The component of each student id, ``NO_ID`` for none.
        teacher: int32 [V_t]. Likewise.
    """

    student: Ints
    teacher: Ints

    def __len__(self) -> int:
        """C."""
        return int(self.student.max(initial=NO_ID)) + 1

    def sizes(self) -> npt.NDArray[np.int64]:
        """int64 [C, 2]: how many ids of the student and of the teacher each component has."""
        return np.stack(
            [np.bincount(side[side != NO_ID], minlength=len(self)) for side in (self.student, self.teacher)],
            axis=1,
        )


def quotient(student: Speller, teacher: Speller) -> Quotient:
    """The quotient of two vocabularies; time and memory are linear in their sizes."""
    return quotient_of(
        student.vocabulary, teacher.vocabulary, split(student, teacher), split(teacher, student)
    )


def quotient_of(student: Vocabulary, teacher: Vocabulary, there: Splits, back: Splits) -> Quotient:
    """The quotient, given how each side's tokens are written on the other side.

    Markers that pair (:func:`atroposlib.align.markers.marker_symbols`) are one component.
    """
    ours, theirs = np.flatnonzero(there.first != NO_ID), np.flatnonzero(back.first != NO_ID)
    paired = _paired_markers(student, teacher)
    begins = np.concatenate([ours, back.first[theirs], paired[:, 0]])
    ends = np.concatenate([there.first[ours], theirs, paired[:, 1]]) + len(student)
    lowest = _lowest_connected(len(student) + len(teacher), begins, ends)
    linked = np.zeros(len(lowest), dtype=np.bool_)
    linked[begins] = linked[ends] = True
    component = np.full(len(lowest), NO_ID, dtype=np.int32)
    component[linked] = np.unique(lowest[linked], return_inverse=True)[1]
    return Quotient(component[: len(student)], component[len(student) :])


def _paired_markers(student: Vocabulary, teacher: Vocabulary) -> npt.NDArray[np.int64]:
    """int64 [M, 2]: every student marker beside every teacher marker that it pairs with."""
    ours, theirs = marker_symbols(student, teacher)
    pairs = [
        (number, other)
        for number, symbol in ours.items()
        if symbol >= BYTES
        for other, their_symbol in theirs.items()
        if their_symbol == symbol
    ]
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def _lowest_connected(
    count: int, begins: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """int64 [N]: the lowest node that each of N nodes is connected with, given the edges."""
    lowest = np.arange(count)
    while True:
        some, others = lowest[begins], lowest[ends]
        joined = lowest.copy()
        np.minimum.at(joined, np.maximum(some, others), np.minimum(some, others))
        # Every node now points to a lower one; follow to the end.
        while not np.array_equal(joined, joined[joined]):
            joined = joined[joined]
        if np.array_equal(joined, lowest):
            return lowest
        lowest = joined
