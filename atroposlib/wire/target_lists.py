"""Targets between nested lists [G][T][K] and flat rows [R, K]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atroposlib.errors import WireError
from atroposlib.types import ABSENT_ID, ABSENT_LOGPROB, Targets
from atroposlib.wire.schema import MAX_ID
from atroposlib.wire.shapes import are_whole, short
from atroposlib.wire.targets import compact, heavy_rows, repeated

Lists = Sequence[Sequence[Sequence[Any]]]
Block = tuple[NDArray[np.int64], NDArray[np.float64]]

_NOTHING: Block = (np.empty((0, 0), np.int64), np.empty((0, 0), np.float64))


def targets_from_lists(
    ids: Lists | None, logprobs: Lists | None, lengths: Sequence[int], names: Sequence[str], strict: bool
) -> Targets | None:
    """Flat rows out of nested lists; None where there are none.

    Args:
        ids: Column ids [G][<= T][<= K]; missing rows are the last ones, missing columns too.
        logprobs: Logprobs (nats) beside them, of the same lengths.
        lengths: T of each sequence.
        names: Paths of ``ids`` and ``logprobs``.
        strict: Raise at what does not fit; otherwise leave it out, see
            :func:`atroposlib.wire.arrays.to_arrays`.

    Raises:
        WireError: When strict.
    """
    if ids is None and logprobs is None:
        return None
    if ids is None or logprobs is None or not len(ids) == len(logprobs) == len(lengths):
        if strict:
            what = "there is not one list of ids and one of logprobs for each sequence"
            raise WireError(what, where=names[0 if ids is None else 1], expected=len(lengths))
        return None
    blocks: list[Block] = []
    for index, length in enumerate(lengths):
        try:
            blocks.append(_block(ids[index], logprobs[index], length, f"{names[1]}[{index}]"))
        except WireError:
            if strict:
                raise
            blocks.append(_NOTHING)
    return _joined(blocks, names[0], strict)


def rectangular(
    targets: Targets, lengths: Sequence[int]
) -> tuple[list[NDArray[np.int32]], list[NDArray[np.float32]]]:
    """G arrays of ids and of logprobs (nats), each [T, K] over all positions; absent is -1 and -9999.0."""
    columns = targets.ids.shape[1]
    flat = targets.logprobs.astype(np.float32)
    flat[targets.ids == ABSENT_ID] = ABSENT_LOGPROB
    ends = np.cumsum(targets.counts).tolist()
    ids: list[NDArray[np.int32]] = []
    logprobs: list[NDArray[np.float32]] = []
    for index, length in enumerate(lengths):
        ids.append(np.full((length, columns), ABSENT_ID, np.int32))
        logprobs.append(np.full((length, columns), ABSENT_LOGPROB, np.float32))
        start, count = int(targets.starts[index]), int(targets.counts[index])
        rows = slice(ends[index] - count, ends[index])
        ids[index][start : start + count] = targets.ids[rows]
        logprobs[index][start : start + count] = flat[rows]
    return ids, logprobs


def _block(ids: Sequence[Sequence[Any]], logprobs: Sequence[Sequence[Any]], length: int, where: str) -> Block:
    """The rows of one sequence as int64 and float64 [<= T, K]."""
    try:
        widths, others = [len(row) for row in ids], [len(row) for row in logprobs]
    except TypeError as error:
        raise WireError("there is no list for each position", where=where, got=str(error)) from error
    if len(widths) > length:
        raise WireError("more rows than tokens", where=where, got=len(widths), expected=f"at most {length}")
    if widths != others:
        raise WireError("there are not as many logprobs as ids", where=where)
    columns = max(widths, default=0)
    if min(widths, default=0) < columns:
        ids, logprobs = _padded(ids, ABSENT_ID, columns), _padded(logprobs, ABSENT_LOGPROB, columns)
    if not columns:
        return np.empty((len(widths), 0), np.int64), np.empty((len(widths), 0), np.float64)
    try:
        id_array, logprob_array = np.asarray(ids), np.asarray(logprobs, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise WireError("these are no numbers", where=where, got=str(error)[:80]) from error
    if id_array.ndim != 2 or logprob_array.ndim != 2 or not are_whole(id_array):
        raise WireError("these are no ids", where=where, got=short(ids[0]))
    if id_array.dtype.kind in "uf":
        # Beyond int64 a cast would make some other number.
        id_array = id_array.clip(ABSENT_ID - 1, MAX_ID)
    return id_array.astype(np.int64), logprob_array


def _padded(rows: Sequence[Sequence[Any]], absent: float, columns: int) -> list[list[Any]]:
    return [[*row, *[absent] * (columns - len(row))] for row in rows]


def _joined(blocks: Sequence[Block], name: str, strict: bool) -> Targets:
    counts = np.array([len(block[0]) for block in blocks], np.int32)
    columns = max(block[0].shape[1] for block in blocks)
    ids = np.full((int(counts.sum()), columns), ABSENT_ID, np.int64)
    logprobs = np.full(ids.shape, -np.inf)
    end = 0
    for block_ids, block_logprobs in blocks:
        begin, end = end, end + len(block_ids)
        ids[begin:end, : block_ids.shape[1]] = block_ids
        logprobs[begin:end, : block_ids.shape[1]] = block_logprobs
    outside = (ids < ABSENT_ID) | (ids >= MAX_ID)
    if strict and outside.any():
        raise WireError("these are no ids", where=name, got=ids[outside][0], expected="-1, or 0 to 2^31 - 1")
    unusable = outside.any(axis=1)
    ids[outside] = ABSENT_ID
    narrow = ids.astype(np.int32)
    if not strict:
        unusable |= heavy_rows(narrow, logprobs)
    narrow[repeated(narrow)] = ABSENT_ID
    narrow[unusable] = ABSENT_ID
    starts = np.zeros(len(blocks), np.int32)
    # compact() rounds the float64 that JSON carries; nothing else sees it.
    return compact(Targets(starts, counts, narrow, logprobs), np.float32)
