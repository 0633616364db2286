"""What can be counted of a projection, and examples of its rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from atroposlib.projection.files import Projection

ROUNDING = 1e-3
"""How far a row's sum may be from 1; files may hold 16-bit weights."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Counts of one projection.

    Attributes:
        rows: V_s.
        entries: Entries that are not 0.
        columns: Most entries of one row.
        highest_teacher_id: The largest teacher id, -1 where there is no entry.
        exact: Rows with one entry, of weight 1.
        several: Rows with several entries, or with one of another weight.
        empty: Rows without any.
        least_sum: Smallest sum of a row that is not empty.
        most_sum: Largest.
        off_rows: Rows that are not empty and whose sum is further than :data:`ROUNDING` from 1.
    """

    rows: int
    entries: int
    columns: int
    highest_teacher_id: int
    exact: int
    several: int
    empty: int
    least_sum: float
    most_sum: float
    off_rows: int


def figures(projection: Projection) -> Figures:
    """Count a projection."""
    cells = projection.cells
    counts = np.bincount(cells.student, minlength=projection.student_size)
    sums = np.bincount(cells.student, cells.weights, minlength=projection.student_size)
    some = sums[counts > 0]
    exact = int(((counts == 1) & (sums == 1)).sum())
    return Figures(
        rows=projection.student_size,
        entries=len(cells.student),
        columns=int(counts.max(initial=0)),
        highest_teacher_id=int(cells.teacher.max(initial=-1)),
        exact=exact,
        several=len(some) - exact,
        empty=projection.student_size - len(some),
        least_sum=float(some.min(initial=np.inf)) if len(some) else 0.0,
        most_sum=float(some.max(initial=0.0)),
        off_rows=int((np.abs(some - 1) > ROUNDING).sum()),
    )


def examples(projection: Projection, count: int) -> dict[int, list[tuple[int, float]]]:
    """Up to ``count`` rows of several entries, evenly over the ids: teacher ids and weights by student id."""
    cells = projection.cells
    counts = np.bincount(cells.student, minlength=projection.student_size)
    several = np.flatnonzero(counts > 1)
    chosen = several[np.linspace(0, len(several) - 1, min(count, len(several))).astype(np.int64)]
    ends = np.cumsum(counts)
    found = {}
    for row in chosen.tolist():
        at = slice(int(ends[row] - counts[row]), int(ends[row]))
        entries = zip(cells.teacher[at].tolist(), cells.weights[at].tolist(), strict=True)
        found[row] = sorted(entries, key=lambda entry: -entry[1])
    return found
