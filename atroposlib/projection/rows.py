"""Sparse rows of a projection: weights summed cell by cell, the heaviest columns of each row kept."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

NO_ID = -1


@dataclass(frozen=True, slots=True)
class Cells:
    """Entries of a sparse matrix; a cell that occurs more than once is their sum. N entries.

    Attributes:
        student: int64 [N]. Row.
        teacher: int64 [N]. Column.
        weights: float64 [N], above 0.
    """

    student: npt.NDArray[np.int64]
    teacher: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows with at most k columns, heaviest first; of equal ones, the lowest teacher id first.

    Attributes:
        indices: int64 [V_s, k]. Teacher ids, ``NO_ID`` where a row has no further one.
        weights: float64 [V_s, k]. 0 beside ``NO_ID``, but for what the scale trick puts there.
    """

    indices: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float64]

    def normalised(self) -> Rows:
        """The rows with sum 1; empty ones stay empty."""
        sums = self.weights.sum(axis=1, keepdims=True)
        return Rows(self.indices, self.weights / np.where(sums > 0, sums, 1.0))


def joined(parts: list[Cells]) -> Cells:
    """The cells of several matrices of one shape, each cell once, in the order of rows and columns."""
    student = np.concatenate([part.student for part in parts])
    teacher = np.concatenate([part.teacher for part in parts])
    weights = np.concatenate([part.weights for part in parts])
    width = int(teacher.max(initial=0)) + 1
    cells, place = np.unique(student * width + teacher, return_inverse=True)
    sums = np.bincount(place, weights, minlength=len(cells)).astype(np.float64)
    return Cells(cells // width, cells % width, sums)


def heaviest(cells: Cells, row_count: int, k: int) -> Rows:
    """The k heaviest columns of each of ``row_count`` rows, as shares of the whole row.

    Args:
        cells: Each cell once, as :func:`joined` returns them.
        row_count: V_s.
        k: Columns kept.
    """
    sums = np.bincount(cells.student, cells.weights, minlength=row_count)
    order = np.lexsort((cells.teacher, -cells.weights, cells.student))
    student, teacher, weights = cells.student[order], cells.teacher[order], cells.weights[order]
    counts = np.bincount(student, minlength=row_count)
    rank = np.arange(len(student)) - np.repeat(np.cumsum(counts) - counts, counts)
    kept = rank < k
    indices = np.full((row_count, k), NO_ID, dtype=np.int64)
    shares = np.zeros((row_count, k))
    at = student[kept], rank[kept]
    indices[at] = teacher[kept]
    shares[at] = weights[kept] / sums[student[kept]]
    return Rows(indices, shares)
