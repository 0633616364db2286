"""Checks and repairs of a group's arrays: lengths that must agree, absent columns, -inf."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from atroposlib.errors import WireError
from atroposlib.types import ABSENT_ID, ABSENT_LOGPROB

NEGATIVE_INFINITY = float("-inf")


def check_length(values: Sequence[Any], expected: int, where: str) -> None:
    """Raise WireError unless a list has the expected length."""
    if len(values) != expected:
        raise WireError("the lengths do not agree", where=where, got=len(values), expected=expected)


def check_rows(rows: Sequence[Sequence[Any]] | None, lengths: Sequence[int], where: str) -> None:
    """Raise WireError unless there is one row a sequence, each of that sequence's length; None passes."""
    if rows is None:
        return
    check_length(rows, len(lengths), where)
    for index, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        check_length(row, length, f"{where}[{index}]")


def check_columns(ids: Sequence[Sequence[Any]], logprobs: Sequence[Sequence[Any]], where: str) -> None:
    """Raise WireError unless every row of logprobs [T][K] is as long as its row of ids."""
    check_length(logprobs, len(ids), where)
    for position, (id_row, logprob_row) in enumerate(zip(ids, logprobs, strict=True)):
        if len(id_row) != len(logprob_row):
            check_length(logprob_row, len(id_row), f"{where}[{position}]")


def replace_negative_infinity(rows: Sequence[list[float]]) -> None:
    """Write -9999.0 for -Infinity, in place: JSON has no infinity and the loss masks that value."""
    for row in rows:
        if NEGATIVE_INFINITY in row:
            row[:] = [ABSENT_LOGPROB if value == NEGATIVE_INFINITY else value for value in row]


def pad_columns(
    ids: list[list[list[int]]], logprobs: list[list[list[float]]], lengths: Sequence[int]
) -> None:
    """Make ragged targets rectangular [G][T][K], in place; what was not there is absent.

    Rows stand at positions 0, 1, .. of their sequence, so missing rows are the last ones.

    Args:
        ids: Column ids, at most T rows a sequence, of any lengths.
        logprobs: Logprobs (nats) beside them, of the same lengths.
        lengths: T of each sequence.
    """
    columns = max((len(row) for sequence in ids for row in sequence), default=0)
    _pad(ids, ABSENT_ID, columns, lengths)
    _pad(logprobs, ABSENT_LOGPROB, columns, lengths)


def _pad(arrays: list[list[list[Any]]], absent: float, columns: int, lengths: Sequence[int]) -> None:
    for sequence, length in zip(arrays, lengths, strict=True):
        for row in sequence:
            if len(row) < columns:
                row.extend([absent] * (columns - len(row)))
        sequence.extend([absent] * columns for _ in range(length - len(sequence)))


def check_free_form(value: Any, where: str) -> None:
    """Raise WireError at the first number in a JSON value that is not finite."""
    if isinstance(value, float):
        if not isfinite(value):
            raise WireError("the number is not finite", where=where, got=value)
    elif isinstance(value, Mapping):
        for key, member in value.items():
            check_free_form(member, f"{where}.{key}")
    elif isinstance(value, list):
        for index, member in enumerate(value):
            check_free_form(member, f"{where}[{index}]")
