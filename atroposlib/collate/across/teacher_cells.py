"""A teacher's named tokens at cuts as masses of common outcomes, given the class of the cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from atroposlib.collate.across.pair import TokenizerPair
from atroposlib.projection.splits import NO_ID

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

_Value = TypeVar("_Value", bound=np.generic)

_NOT_A_CELL = np.iinfo(np.int32).max
_COLUMN_BITS = 16


@dataclass(frozen=True, slots=True)
class TeacherCells:
    """Fields of :class:`~atroposlib.collate.across.chunk_arrays.ChunkArrays` of the same names."""

    cells: Ints
    cell_mass: Floats
    cell_open: Flags
    tail_mass: Floats
    observed_cell: Ints
    sampled_cell: Flags
    boundary: Floats


def teacher_cells(pair: TokenizerPair, ids: Ints, probabilities: Floats, before: Ints) -> TeacherCells:
    """The cells of R rows with K columns, of which column 0 is the token that stands in the text.

    What was not shipped is taken to be split between class and others as what was: the class has the
    probability ``inside / seen``, and given the class every named token of it ``seen / inside`` times its
    own. So the named share stays ``seen``, and with every token named all is exact.

    Args:
        pair: The two vocabularies.
        ids: int64 [R, K], each once in a row; negative for none.
        probabilities: float64 [R, K], 0 beside an absent id.
        before: int64 [R, 2]. Byte before the cut on both sides, which decides the class.
    """
    at = pair.teacher.rows(ids)
    allowed = pair.safe[before[:, 0]] & pair.safe[before[:, 1]]
    inside = (ids >= 0) & _picked(allowed, pair.teacher.first.take(at))
    seen = probabilities.sum(1)
    in_class = np.where(inside, probabilities, 0.0)
    share = in_class.sum(1) / seen
    # Rounding may carry a whole distribution above 1.
    mass = in_class / (share * np.maximum(seen, 1.0))[:, None]
    component = np.where(inside, pair.teacher.component.take(at), NO_ID)
    cells, cell_mass, named = _grouped(component, mass)
    observed = _cell_of(component[:, 0], cells)
    count = np.take_along_axis(np.pad(named, ((0, 0), (0, 1))), observed[:, None], axis=1)[:, 0]
    others = np.where(ids[:, 1:] >= 0, probabilities[:, 1:], np.inf).min(axis=1, initial=np.inf)
    return TeacherCells(
        cells=cells,
        cell_mass=cell_mass,
        cell_open=(cells != NO_ID) & (named < pair.teacher_sizes[cells]),
        tail_mass=np.where(component == NO_ID, mass, 0.0).sum(1),
        observed_cell=observed,
        sampled_cell=(count == 1) & (probabilities[:, 0] < others) & np.isfinite(others),
        boundary=np.log(share),
    )


def same_cells(pair: TokenizerPair, tokens: Ints, cells: Ints, observed: Ints) -> Flags:
    """bool [R]: whether each student token lies in the observed cell; K stands for the tail."""
    component = pair.student.component[pair.student.rows(tokens)]
    found: Flags = _cell_of(component, cells) == observed
    return found


def _grouped(component: npt.NDArray[np.int32], mass: Floats) -> tuple[Ints, Floats, Ints]:
    """Of each row its distinct components [R, K], their mass, and how many columns each has."""
    # One number each of component and column: numpy sorts those several times faster than it finds an order.
    keys = np.where(component == NO_ID, _NOT_A_CELL, component.astype(np.int64))
    keys = np.sort(keys << _COLUMN_BITS | np.arange(component.shape[1]), axis=1)
    ordered = keys >> _COLUMN_BITS
    new = np.ones(ordered.shape, dtype=np.bool_)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    masses = _picked(mass, keys & ((1 << _COLUMN_BITS) - 1))
    starts = np.flatnonzero(new)
    listed = ordered.ravel()[starts] != _NOT_A_CELL
    cells: Ints = np.full(component.size, NO_ID, dtype=np.int64)
    named: Ints = np.zeros(component.size, dtype=np.int64)
    sums: Floats = np.zeros(component.size)
    cells[starts[listed]] = ordered.ravel()[starts[listed]]
    named[starts[listed]] = np.diff(np.append(starts, component.size))[listed]
    sums[starts[listed]] = np.add.reduceat(masses.ravel(), starts)[listed]
    shape = component.shape
    return cells.reshape(shape), sums.reshape(shape), named.reshape(shape)


def _picked(values: npt.NDArray[_Value], columns: npt.NDArray[np.integer]) -> npt.NDArray[_Value]:
    """``numpy.take_along_axis`` along the rows' axis, in half the time."""
    begins = np.arange(len(values))[:, None] * values.shape[1]
    found: npt.NDArray[_Value] = values.ravel().take(begins + columns)
    return found


def _cell_of(component: npt.NDArray[np.integer], cells: Ints) -> Ints:
    """int64 [R]: the column that lists the component; K where none does."""
    equal = (cells == component[:, None]) & (cells != NO_ID)
    found: Ints = np.where(equal.any(1), equal.argmax(1), cells.shape[1])
    return found
