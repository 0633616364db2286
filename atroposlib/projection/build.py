"""Builds the projection of a student's vocabulary on a teacher's, out of how their tokens are spelled.

The steps are those of NeMo RL's builder, on bytes and in sparse memory: a token's first spelled tokens share
its weight by powers of ten, the teacher's tokens add theirs to the same cells, rows are normalised, what is
equal on both sides stands alone, and the heaviest columns are kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from atroposlib.align.tables.table import TEXT
from atroposlib.projection.rows import NO_ID, Cells, Rows, heaviest, joined
from atroposlib.projection.specials import special_cells
from atroposlib.projection.speller import Speller
from atroposlib.projection.splits import KEPT, Splits, split

WIDTH = 32
"""Columns of a row before what is equal is put in and the row is cut."""

SCALE_WEIGHT = 0.2
"""What the scale trick makes of the last of these columns."""


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """Which steps are taken.

    Attributes:
        top_k: Columns of the result.
        reverse_pass: Whether how the teacher's tokens are spelled by the student counts too.
        special_tokens: Whether markers are mapped.
        exact_map: Whether a token whose bytes the teacher has as one token is mapped to that one alone.
        scale_trick: Whether the last of :data:`WIDTH` columns, of a token or of none, has weight .2 and is
            kept. Weight of no token is lost, which scales a row of few columns down.
    """

    top_k: int = 4
    reverse_pass: bool = True
    special_tokens: bool = True
    exact_map: bool = True
    scale_trick: bool = False


def build(student: Speller, teacher: Speller, options: BuildOptions) -> Rows:
    """The projection: V_s rows of ``top_k`` teacher ids with weights that sum to 1, or that are empty.

    Time is linear in the vocabularies, but for their specials and a sort; no dense matrix is made.
    """
    there = split(student, teacher)
    back = split(teacher, student) if options.reverse_pass else None
    return build_of(student, teacher, there, back, options)


def build_of(
    student: Speller, teacher: Speller, there: Splits, back: Splits | None, options: BuildOptions
) -> Rows:
    """The projection, given how each side's tokens are written on the other side.

    Args:
        student: V_s ids.
        teacher: V_t ids.
        there: The student's tokens in the teacher's.
        back: The teacher's in the student's; None for no reverse pass.
        options: The other steps.
    """
    parts = [_spelled(there)]
    if back is not None:
        spelled = _spelled(back)
        parts.append(Cells(spelled.teacher, spelled.student, spelled.weights))
    exact = _equal_tokens(student, teacher, there) if options.exact_map else {}
    if options.special_tokens:
        cells, pairs = special_cells(student.vocabulary, teacher.vocabulary)
        parts.append(cells)
        if options.exact_map:
            exact |= pairs
    rows = heaviest(joined(parts), len(student.vocabulary), WIDTH)
    if options.scale_trick:
        _scale(rows)
    rows = rows.normalised()
    _stand_alone(rows, exact)
    return _cut(rows, options)


def _spelled(splits: Splits) -> Cells:
    """The first tokens of each spelling, with weights that fall by ten and sum to 1."""
    rows, places = np.nonzero(splits.ids != NO_ID)
    weights = 10.0 ** -np.arange(KEPT)
    sums = np.cumsum(weights)[np.minimum(splits.counts[rows], KEPT) - 1]
    return Cells(rows, splits.ids[rows, places].astype(np.int64), weights[places] / sums)


def _equal_tokens(student: Speller, teacher: Speller, there: Splits) -> dict[int, int]:
    """The teacher's id of equal bytes for every student id that has one: the one that it would write."""
    written: npt.NDArray[np.bool_] = there.counts == 1
    found = {}
    for number in np.flatnonzero(student.vocabulary.kinds == TEXT).tolist():
        if written[number]:
            found[number] = int(there.ids[number, 0])
        elif (other := teacher.by_bytes.get(student.parts[number])) is not None:
            found[number] = other
    return found


def _scale(rows: Rows) -> None:
    filled = rows.indices[:, 0] != NO_ID
    rows.weights[filled, -1] = SCALE_WEIGHT


def _stand_alone(rows: Rows, exact: dict[int, int]) -> None:
    numbers = np.fromiter(exact.keys(), dtype=np.int64, count=len(exact))
    rows.indices[numbers], rows.weights[numbers] = NO_ID, 0.0
    rows.indices[numbers, 0] = np.fromiter(exact.values(), dtype=np.int64, count=len(exact))
    rows.weights[numbers, 0] = 1.0


def _cut(rows: Rows, options: BuildOptions) -> Rows:
    kept = np.arange(options.top_k)
    if options.scale_trick:
        kept[-1] = WIDTH - 1
    return Rows(rows.indices[:, kept], rows.weights[:, kept]).normalised()
