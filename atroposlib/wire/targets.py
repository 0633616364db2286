"""Arithmetic on targets: what is absent, what sums above one, trimming, rounding. Axes: R rows, K columns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atroposlib.types import ABSENT_ID, ABSENT_LOGPROB, Targets

MOST_LOGPROB = 1e-3
"""Largest logprob (nats) of a present entry: 0, and what float arithmetic may add to it."""

MOST_MASS = 1 + 1e-3
"""Largest sum of a row's probabilities."""

_MARGIN = 1e-5
"""More than single precision errs in the sum of 256 probabilities."""

Logprobs = NDArray[np.float16] | NDArray[np.float32] | NDArray[np.float64]


@contextmanager
def hostile_values() -> Iterator[None]:
    """For what computes with values that nobody has checked: NaN and infinity are found, not warned of."""
    with np.errstate(over="ignore", invalid="ignore"):
        yield


@hostile_values()
def row_mass(logprobs: Logprobs, counted: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Sum of the probabilities of each row [R] over the ``counted`` entries [R, K], in float64."""
    masses: NDArray[np.float64] = np.where(counted, np.exp(logprobs.astype(np.float64)), 0.0).sum(axis=1)
    return masses


@hostile_values()
def suspect_rows(logprobs: Logprobs) -> NDArray[np.intp]:
    """Indices of rows that may sum above ``MOST_MASS``, or hold a NaN, a +inf or a logprob above the largest.

    A fast look in single precision that misses none; the caller looks at these rows exactly.
    """
    masses = np.exp(logprobs.astype(np.float32, copy=False))
    # An absent entry is zero already, where -inf stands beside it.
    suspects: NDArray[np.intp] = np.flatnonzero(~(masses.sum(axis=1) <= MOST_MASS - _MARGIN))
    return suspects


def repeated(ids: NDArray[Any]) -> NDArray[np.bool_]:
    """Which entries [R, K] list an id that an earlier column of their row has listed."""
    again = np.zeros(ids.shape, dtype=bool)
    rows = np.flatnonzero(_equal_to_left(np.sort(ids, axis=1)).any(axis=1))
    if len(rows):
        order = np.argsort(ids[rows], axis=1, kind="stable")
        later = np.zeros(order.shape, dtype=bool)
        later[:, 1:] = _equal_to_left(np.take_along_axis(ids[rows], order, axis=1))
        found = np.zeros(order.shape, dtype=bool)
        np.put_along_axis(found, order, later, axis=1)
        again[rows] = found
    return again


def _equal_to_left(ordered: NDArray[Any]) -> NDArray[np.bool_]:
    """Which entries of sorted rows, but the first [R, K - 1], repeat a present id."""
    equal: NDArray[np.bool_] = ordered[:, 1:] == ordered[:, :-1]
    equal &= ordered[:, 1:] != ABSENT_ID
    return equal


@hostile_values()
def heavy_rows(ids: NDArray[np.int32], logprobs: Logprobs) -> NDArray[np.bool_]:
    """Which rows [R] have probabilities that sum above ``MOST_MASS``, or hold a value that is no logprob.

    An id that is listed twice counts once.
    """
    heavy = np.zeros(len(ids), dtype=bool)
    rows = suspect_rows(logprobs)
    if len(rows):
        ids, logprobs = ids[rows], logprobs[rows]
        counted = (ids != ABSENT_ID) & ~repeated(ids)
        heavy[rows] = ~(row_mass(logprobs, counted) <= MOST_MASS)
        heavy[rows] |= (counted & ~(logprobs <= MOST_LOGPROB)).any(axis=1)
    return heavy


def without_rows(targets: Targets, rows: NDArray[np.bool_]) -> Targets:
    """The same targets with some rows [R] made absent."""
    if not rows.any():
        return targets
    ids, logprobs = targets.ids.copy(), targets.logprobs.copy()
    ids[rows], logprobs[rows] = ABSENT_ID, -np.inf
    return Targets(targets.starts, targets.counts, ids, logprobs)


@hostile_values()
def compact(targets: Targets, dtype: type[np.float16] | type[np.float32]) -> Targets:
    """The targets as they travel: absent entries marked, absent edges cut off, logprobs rounded.

    A present id with a logprob of -9999 or less becomes absent. Rows before the first and after the last
    row of a sequence that says something go, and so do the last columns when they are all absent.
    """
    ids = targets.ids.astype(np.int32, copy=False)
    logprobs: NDArray[Any] = targets.logprobs
    nothing = (logprobs <= ABSENT_LOGPROB) | (ids == ABSENT_ID)
    if nothing.any() or not ids.size:
        ids = np.where(nothing, np.int32(ABSENT_ID), ids)
        logprobs = np.where(nothing, logprobs.dtype.type(-np.inf), logprobs)
        starts, counts, kept = _trim(targets, ~nothing.all(axis=1))
        columns = np.flatnonzero(~nothing.all(axis=0))
        width = int(columns[-1]) + 1 if len(columns) else 0
        ids, logprobs = ids[kept, :width], logprobs[kept, :width]
    else:
        starts, counts = np.where(targets.counts, targets.starts, 0), targets.counts
    ids = np.ascontiguousarray(ids)
    return Targets(_int32(starts), _int32(counts), ids, np.ascontiguousarray(round_logprobs(logprobs, dtype)))


def _int32(values: NDArray[Any]) -> NDArray[np.int32]:
    return values.astype(np.int32, copy=False)


def _trim(
    targets: Targets, said: NDArray[np.bool_]
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.bool_]]:
    """Starts and counts [G] without the silent edges, and which rows [R] are left."""
    starts, counts = targets.starts.copy(), targets.counts.copy()
    kept = np.zeros(len(said), dtype=bool)
    ends = np.cumsum(targets.counts)
    for index, (count, end) in enumerate(zip(targets.counts.tolist(), ends.tolist(), strict=True)):
        rows = np.flatnonzero(said[end - count : end])
        first, last = (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, 0)
        starts[index] = starts[index] + first if len(rows) else 0
        counts[index] = last - first
        kept[end - count + first : end - count + last] = True
    return starts, counts, kept


@hostile_values()
def round_logprobs(logprobs: Logprobs, dtype: type[np.float16] | type[np.float32]) -> NDArray[Any]:
    """Logprobs [R, K] in ``dtype``; a row that only rounding would make sum too high is rounded down."""
    if logprobs.dtype == dtype:
        return logprobs
    rounded: NDArray[Any] = logprobs.astype(dtype)
    rows = suspect_rows(rounded)
    if len(rows):
        exact = logprobs[rows]
        all_of_it = np.ones(exact.shape, dtype=bool)
        pushed = (row_mass(rounded[rows], all_of_it) > MOST_MASS) & (row_mass(exact, all_of_it) <= MOST_MASS)
        rows, exact = rows[pushed], exact[pushed]
        near = rounded[rows]
        rounded[rows] = np.where(near > exact, np.nextafter(near, dtype(-np.inf)), near)
    return rounded
