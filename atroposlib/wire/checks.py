"""What a group as arrays must be: lengths that agree, values that can be trained, within the limits."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from atroposlib.errors import WireError
from atroposlib.types import ABSENT_ID, IGNORED, Group, Targets, TeacherTargets
from atroposlib.wire.limits import DEFAULT, Limits, too_large
from atroposlib.wire.schema import ARRAY_KEYS, TEACHER_ARRAY_KEYS, FreeFields
from atroposlib.wire.shapes import check_free_form, check_length, check_rows, refuse
from atroposlib.wire.targets import MOST_LOGPROB, MOST_MASS, hostile_values, repeated, row_mass, suspect_rows

_BLOCK_CELLS = 1 << 17
_FLOATS = ("advantages", "ref_logprobs", "inference_logprobs")


def check_group(group: Group, limits: Limits = DEFAULT) -> None:
    """Raise WireError, with the field's path in ``where``, unless a group keeps the contract.

    Ids are >= 0 or absent, scores and advantages finite, reference and inference logprobs no NaN and not
    +inf. In targets a present logprob is finite and <= 1e-3, the probabilities of a row sum to at most
    1 + 1e-3, and no id stands in a row twice. Chunk ids are >= -1. The JSON members have their types.
    """
    check_shapes(group, limits)
    _check_least(group.tokens, 0, "tokens")
    _check_least(group.masks, IGNORED, "masks")
    _check_floats(group)
    for index, score in enumerate(group.scores):
        if not isfinite(score):
            raise WireError("the number is not finite", where=f"scores[{index}]", got=score)
    own = _own_targets(group)
    if own is not None:
        _check_targets(own, ("distill_token_ids", "distill_logprobs"))
    for index, teacher in enumerate(group.teachers):
        where = f"teachers[{index}]"
        _check_least(teacher.tokens or (), 0, f"{where}.tokens")
        _check_least(teacher.student_chunk_id or (), -1, f"{where}.student_chunk_id")
        _check_least(teacher.teacher_chunk_id or (), -1, f"{where}.teacher_chunk_id")
        check_free_form(teacher.facts, where, limits.json_depth - 2)
        if teacher.targets is not None:
            _check_targets(teacher.targets, (f"{where}.token_ids", f"{where}.logprobs"))
    _check_rest(group, limits)


def check_shapes(group: Group, limits: Limits = DEFAULT) -> None:
    """Raise WireError unless the lengths of all arrays agree and lie within the limits."""
    lengths = [len(row) for row in group.tokens]
    check_lengths(lengths, limits)
    check_rows(group.masks, lengths, "masks")
    check_length(group.scores, len(lengths), "scores")
    for name in _FLOATS:
        check_rows(getattr(group, name), lengths, name)
    for name in group.rest:
        if name in ARRAY_KEYS or (name == "advantages" and group.advantages is not None):
            raise WireError("the field is no part of the rest", where=name[:80])
    if len(group.teachers) > limits.teachers:
        raise too_large("too many teachers", where="teachers", got=len(group.teachers), most=limits.teachers)
    own = _own_targets(group)
    cells = 0 if own is None else _check_rows_of(own, lengths, "distill", limits)
    for index, teacher in enumerate(group.teachers):
        cells += _check_teacher(teacher, lengths, f"teachers[{index}]", limits)
    check_cells(cells, limits)


def check_lengths(lengths: Sequence[int], limits: Limits) -> None:
    """Raise WireError unless these can be the lengths T of a group's sequences."""
    check_sequences(len(lengths), limits)
    check_longest(lengths, "tokens", limits)
    if min(lengths) < 1:
        index = next(index for index, length in enumerate(lengths) if length < 1)
        raise WireError("the sequence has no tokens", where=f"tokens[{index}]")


def check_sequences(count: int, limits: Limits) -> None:
    """Raise WireError unless a group may have this many sequences."""
    if not count:
        raise WireError("the group has no sequences", where="tokens")
    if count > limits.sequences:
        raise too_large("too many sequences", where="tokens", got=count, most=limits.sequences)


def check_longest(lengths: Sequence[int], where: str, limits: Limits) -> None:
    """Raise WireError when a sequence has too many tokens."""
    for index, length in enumerate(lengths):
        if length > limits.tokens:
            path = f"{where}[{index}]"
            raise too_large("the sequence is too long", where=path, got=length, most=limits.tokens)


def check_cells(cells: int, limits: Limits) -> None:
    """Raise WireError when rectangular targets would take too many positions x columns."""
    if cells > limits.cells:
        raise too_large("the targets take too many positions x columns", got=cells, most=limits.cells)


def _own_targets(group: Group) -> Targets | None:
    """The group's targets, unless they are a teacher's: those are looked at there."""
    shared = any(teacher.targets is group.targets for teacher in group.teachers)
    return None if shared else group.targets


def _check_teacher(teacher: TeacherTargets, lengths: Sequence[int], where: str, limits: Limits) -> int:
    for name in TEACHER_ARRAY_KEYS & teacher.facts.keys():
        raise WireError("the field is no fact but an array", where=f"{where}.{name}")
    own = lengths
    if teacher.tokens is not None:
        check_length(teacher.tokens, len(lengths), f"{where}.tokens")
        own = [len(row) for row in teacher.tokens]
        check_longest(own, f"{where}.tokens", limits)
    check_rows(teacher.student_chunk_id, lengths, f"{where}.student_chunk_id")
    check_rows(teacher.teacher_chunk_id, own, f"{where}.teacher_chunk_id")
    return 0 if teacher.targets is None else _check_rows_of(teacher.targets, own, where, limits)


def _check_rows_of(targets: Targets, lengths: Sequence[int], where: str, limits: Limits) -> int:
    """Checks that the rows fit their sequences; returns positions x columns."""
    check_length(targets.starts, len(lengths), f"{where}.starts")
    check_length(targets.counts, len(lengths), f"{where}.counts")
    if targets.ids.ndim != 2 or targets.ids.shape != targets.logprobs.shape:
        got = f"{targets.ids.shape} and {targets.logprobs.shape}"
        raise WireError("ids and logprobs are not of the same shape", where=f"{where}.logprobs", got=got)
    rows, columns = map(int, targets.ids.shape)
    if columns > limits.columns:
        raise too_large("too many columns", where=where, got=columns, most=limits.columns)
    starts, counts = targets.starts.astype(np.int64), targets.counts.astype(np.int64)
    outside = (starts < 0) | (counts < 0) | (starts + counts > np.asarray(lengths))
    if outside.any():
        index = int(outside.argmax())
        raise WireError(
            "the rows do not fit the sequence",
            where=f"{where}.counts[{index}]",
            got=f"{counts[index]} rows from {starts[index]}",
            expected=f"rows within {lengths[index]}",
        )
    if int(counts.sum()) != rows:
        raise WireError(
            "the counts do not add up to the rows",
            where=f"{where}.counts",
            got=int(counts.sum()),
            expected=rows,
        )
    return sum(lengths) * columns


def _check_least(rows: Sequence[NDArray[np.int32]], least: int, where: str) -> None:
    for index, row in enumerate(rows):
        if len(row) and row.min() < least:
            column = int((row < least).argmax())
            path = f"{where}[{index}][{column}]"
            raise WireError("the id is too small", where=path, got=row[column], expected=f"at least {least}")


def _check_floats(group: Group) -> None:
    for name in _FLOATS:
        for index, row in enumerate(getattr(group, name) or ()):
            bad = ~np.isfinite(row)
            if name != "advantages":
                bad &= row != -np.inf
            if bad.any():
                column = int(bad.argmax())
                path = f"{name}[{index}][{column}]"
                raise WireError("the number is not finite", where=path, got=row[column])


@hostile_values()
def _check_targets(targets: Targets, names: tuple[str, str]) -> None:
    rows, columns = targets.ids.shape
    if not columns:
        return
    # In blocks, so that what is computed on the way stays small and in the processor's cache.
    step = max(1, _BLOCK_CELLS // columns)
    for begin in range(0, rows, step):
        block = slice(begin, begin + step)
        # Half precision is slow to compare and to add up.
        logprobs = targets.logprobs[block].astype(np.float32, copy=False)
        found = _find_trouble(targets.ids[block], logprobs)
        if found is not None:
            what, field, row, column, got = found
            step_in_row = "" if column is None else f"[{column}]"
            where = f"{names[field]}{_place(targets, begin + row)}{step_in_row}"
            raise WireError(what, where=where, got=got)


Trouble = tuple[str, int, int, int | None, Any]
"""What, in ids (0) or logprobs (1), row, column or None, and the value."""


def _find_trouble(ids: NDArray[np.int32], logprobs: NDArray[np.float32]) -> Trouble | None:
    present = ids != ABSENT_ID
    rows = suspect_rows(logprobs)
    # NaN, +inf and logprobs above zero are suspect, so these few rows hold all of them.
    few = logprobs[rows]
    found = (
        _first("the id is negative and not the absent one", 0, ids, ids < ABSENT_ID)
        or _first("the logprob is not finite", 1, logprobs, present & (logprobs == -np.inf))
        or _first("the logprob is not finite", 1, few, np.isnan(few) | (few == np.inf), rows)
        or _first("the logprob is above zero", 1, few, present[rows] & (few > MOST_LOGPROB), rows)
        or _first("the id stands in this row already", 0, ids, repeated(ids))
    )
    if found is None and len(rows):
        masses = row_mass(few, present[rows])
        if masses.max() > MOST_MASS:
            worst = int(masses.argmax())
            found = ("the probabilities of the row sum above one", 1, int(rows[worst]), None, masses[worst])
    return found


def _first(
    what: str,
    field: int,
    values: NDArray[Any],
    bad: NDArray[np.bool_],
    rows: NDArray[np.intp] | None = None,
) -> Trouble | None:
    """The first bad entry; ``rows`` says which rows ``values`` are, None all."""
    if not bad.any():
        return None
    row, column = divmod(int(bad.argmax()), bad.shape[1])
    return what, field, row if rows is None else int(rows[row]), column, values[row, column]


def _place(targets: Targets, row: int) -> str:
    """``[g][p]`` of a flat row."""
    ends = np.cumsum(targets.counts)
    index = int(np.searchsorted(ends, row, side="right"))
    position = int(targets.starts[index]) + row - int(ends[index] - targets.counts[index])
    return f"[{index}][{position}]"


def _check_rest(group: Group, limits: Limits) -> None:
    try:
        fields = FreeFields.model_validate(group.rest, strict=True)
    except ValidationError as error:
        refuse(error)
    for name in ("advantages", "overrides"):
        values = getattr(fields, name)
        if values is not None:
            check_length(values, len(group.tokens), name)
    for name, value in group.rest.items():
        check_free_form(value, name, limits.json_depth - 1)
