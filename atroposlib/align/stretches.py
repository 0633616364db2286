"""Stretches of two streams: the runs that are equal, the gaps between them, and the places in them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Runs:
    """R runs, rising on both sides; what no run covers is not equal.

    Attributes:
        student: int64 [R]. First symbol of each run in the student's stream.
        teacher: int64 [R]. First symbol in the teacher's.
        lengths: int64 [R]. Symbols of each run.
    """

    student: Ints
    teacher: Ints
    lengths: Ints

    def __len__(self) -> int:
        """R."""
        return len(self.lengths)


def runs_of(runs: list[tuple[int, int, int]]) -> Runs:
    """Runs out of (student, teacher, length); empty ones are left out."""
    kept = np.array([run for run in runs if run[2] > 0], dtype=np.int64).reshape(-1, 3)
    return Runs(kept[:, 0], kept[:, 1], kept[:, 2])


@dataclass(frozen=True, slots=True)
class Gaps:
    """P stretches of two streams that are not known to be equal, in the order of both.

    Attributes:
        student, student_ends: int64 [P]. Symbols of the student's stream.
        teacher, teacher_ends: int64 [P]. Symbols of the teacher's.
    """

    student: Ints
    student_ends: Ints
    teacher: Ints
    teacher_ends: Ints

    def __len__(self) -> int:
        """P."""
        return len(self.student)

    def with_room(self, at_least: int, at_most: int | None) -> Gaps:
        """Those that hold so many symbols on both sides."""
        sizes = self.student_ends - self.student, self.teacher_ends - self.teacher
        kept = np.minimum(*sizes) >= at_least
        if at_most is not None:
            kept &= np.maximum(*sizes) <= at_most
        return Gaps(self.student[kept], self.student_ends[kept], self.teacher[kept], self.teacher_ends[kept])


def gaps_between(runs: Runs, student_length: int, teacher_length: int) -> Gaps:
    """The R + 1 stretches before, between and behind the runs."""
    return Gaps(
        np.append(0, runs.student + runs.lengths),
        np.append(runs.student, student_length),
        np.append(0, runs.teacher + runs.lengths),
        np.append(runs.teacher, teacher_length),
    )


def positions(begins: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Every position in these stretches, and the number of its stretch."""
    counts = ends - begins
    stretch = np.repeat(np.arange(len(begins)), counts)
    return np.arange(len(stretch)) + (begins - np.cumsum(counts) + counts)[stretch], stretch
