"""Checks targets that are posted as nested lists [G][<= T][<= K], and makes them rectangular.

Plain Python on purpose: making arrays of a million Python numbers takes longer than looking at them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from typing import Any, TypeVar

from atroposlib.errors import WireError
from atroposlib.types import ABSENT_ID, ABSENT_LOGPROB
from atroposlib.wire.limits import Limits, too_large
from atroposlib.wire.shapes import check_length, replace_negative_infinity
from atroposlib.wire.targets import MOST_LOGPROB, MOST_MASS

Number = TypeVar("Number", int, float)
Lists = list[list[list[Number]]]


def check_target_lists(
    ids: Lists[int] | None,
    logprobs: Lists[float] | None,
    names: tuple[str, str],
    lengths: Sequence[int],
    limits: Limits,
    refuse_heavy: bool,
) -> int:
    """Check lengths and values of one teacher's targets; write -9999.0 for -Infinity, in place.

    Args:
        ids: Column ids, at most T rows a sequence.
        logprobs: Logprobs (nats) beside them.
        names: Paths of the two.
        lengths: T of each sequence.
        limits: Bounds.
        refuse_heavy: Refuse a row whose probabilities sum above 1 + 1e-3.

    Returns:
        Positions x columns, were they rectangular.

    Raises:
        WireError: With the path of what is wrong.
    """
    if ids is None and logprobs is None:
        return 0
    if ids is None or logprobs is None:
        raise WireError("ids and logprobs belong together", where=names[ids is not None], got="null")
    check_length(ids, len(lengths), names[0])
    check_length(logprobs, len(lengths), names[1])
    for index, length in enumerate(lengths):
        if len(ids[index]) > length:
            raise WireError(
                "more rows than tokens",
                where=f"{names[0]}[{index}]",
                got=len(ids[index]),
                expected=f"at most {length}",
            )
        check_length(logprobs[index], len(ids[index]), f"{names[1]}[{index}]")
        replace_negative_infinity(logprobs[index])
        _check_sequence(ids[index], logprobs[index], f"{names[1]}[{index}]", refuse_heavy)
    columns = _width(ids)
    if columns > limits.columns:
        raise too_large("too many columns", where=names[0], got=columns, most=limits.columns)
    return sum(lengths) * columns


def pad_columns(ids: Lists[int], logprobs: Lists[float], lengths: Sequence[int]) -> None:
    """Make ragged targets rectangular [G][T][K], in place; what was not there is absent.

    Rows stand at positions 0, 1, .. of their sequence, so missing rows are the last ones.
    """
    columns = _width(ids)
    _pad(ids, ABSENT_ID, columns, lengths)
    _pad(logprobs, ABSENT_LOGPROB, columns, lengths)


def _width(ids: Lists[int]) -> int:
    return max((len(row) for sequence in ids for row in sequence), default=0)


def _check_sequence(
    ids: Sequence[Sequence[int]], logprobs: Sequence[Sequence[float]], where: str, refuse_heavy: bool
) -> None:
    for position, (id_row, row) in enumerate(zip(ids, logprobs, strict=True)):
        if len(id_row) != len(row):
            check_length(row, len(id_row), f"{where}[{position}]")
        # Absent columns count here too, so a row that passes needs no closer look.
        if row and (max(row) > MOST_LOGPROB or (refuse_heavy and sum(map(exp, row)) > MOST_MASS)):
            _check_row(id_row, row, f"{where}[{position}]", refuse_heavy)


def _check_row(ids: Sequence[int], logprobs: Sequence[float], where: str, refuse_heavy: bool) -> None:
    """Look at the present columns of one row; an id that stands there twice counts once."""
    mass = 0.0
    seen: set[int] = set()
    for column, (token, logprob) in enumerate(zip(ids, logprobs, strict=True)):
        if token == ABSENT_ID:
            continue
        if logprob > MOST_LOGPROB:
            path = f"{where}[{column}]"
            raise WireError("the logprob is above zero", where=path, got=logprob, expected="at most 0.001")
        if token not in seen:
            seen.add(token)
            mass += exp(logprob)
    if refuse_heavy and mass > MOST_MASS:
        raise WireError(
            "the probabilities of the row sum above one",
            where=where,
            got=mass,
            expected=f"at most {MOST_MASS}",
        )


def _pad(arrays: list[list[list[Any]]], absent: float, columns: int, lengths: Sequence[int]) -> None:
    for sequence, length in zip(arrays, lengths, strict=True):
        for row in sequence:
            if len(row) < columns:
                row.extend([absent] * (columns - len(row)))
        sequence.extend([absent] * columns for _ in range(length - len(sequence)))
