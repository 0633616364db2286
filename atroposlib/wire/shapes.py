"""Checks that groups of lists and groups of arrays share: lengths that must agree, free-form JSON."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping, Sequence, Sized
from math import isfinite
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from atroposlib.errors import WireError
from atroposlib.types import ABSENT_LOGPROB
from atroposlib.wire.limits import DEFAULT, too_large

NEGATIVE_INFINITY = float("-inf")

_HARMLESS = frozenset({int, str, bool, type(None)})


def check_length(values: Sized, expected: int, where: str) -> None:
    """Raise WireError unless a list has the expected length."""
    if len(values) != expected:
        raise WireError("the lengths do not agree", where=where, got=len(values), expected=expected)


def check_rows(rows: Sequence[Sized] | None, lengths: Sequence[int], where: str) -> None:
    """Raise WireError unless there is one row a sequence, each of that sequence's length; None passes."""
    if rows is None:
        return
    check_length(rows, len(lengths), where)
    for index, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        check_length(row, length, f"{where}[{index}]")


def are_whole(values: NDArray[Any]) -> bool:
    """Whether all numbers are whole; 7.0 and True are, as where JSON is read."""
    return values.dtype.kind in "iub" or (
        values.dtype.kind == "f" and bool((values == np.floor(values)).all())
    )


def replace_negative_infinity(rows: Sequence[list[float]]) -> None:
    """Write -9999.0 for -Infinity, in place: JSON has no infinity and the loss masks that value."""
    for row in rows:
        if NEGATIVE_INFINITY in row:
            row[:] = [ABSENT_LOGPROB if value == NEGATIVE_INFINITY else value for value in row]


def check_free_form(value: Any, where: str, depth: int = DEFAULT.json_depth - 1) -> None:
    """Raise WireError at the first number in a JSON value that is not finite, or where it nests too deep.

    Args:
        value: A JSON value; tuples count as lists.
        where: Its path.
        depth: How many containers may lie within each other.
    """
    found = _trouble(value, depth)
    if found is None:
        return
    steps, bad = found
    path = where + "".join(reversed(steps))
    if isinstance(bad, float):
        raise WireError("the number is not finite", where=path, got=bad)
    raise too_large("the value is nested too deep", where=path, most=f"{depth} levels")


def _trouble(value: Any, depth: int) -> tuple[list[str], Any] | None:
    """The first bad value and the steps to it, last one first: paths of good values are never written."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, float):
        return None if isfinite(value) else ([], value)
    if isinstance(value, Mapping):
        members: Iterable[tuple[Any, Any]] = value.items()
        kinds = set(map(type, value.values()))
    elif isinstance(value, list | tuple):
        members, kinds = enumerate(value), set(map(type, value))
    else:
        return None
    if not depth:
        return [], value
    if kinds <= _HARMLESS:
        # Most containers hold text and whole numbers, and need no look at each of them.
        return None
    for key, member in members:
        found = None if type(member) in _HARMLESS else _trouble(member, depth - 1)
        if found is not None:
            found[0].append(f".{str(key)[:80]}" if isinstance(value, Mapping) else f"[{key}]")
            return found
    return None


def refuse(error: ValidationError) -> NoReturn:
    """Raise the first finding of a schema as WireError."""
    first, *others = error.errors(include_url=False)
    more = f" (and {len(others)} more)" if others else ""
    got = None if first["type"] == "json_invalid" else short(first["input"])
    raise WireError(f"{first['msg']}{more}", where=_path(first["loc"]) or None, got=got) from error


def _path(loc: Sequence[int | str]) -> str:
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)
    return "".join(parts).removeprefix(".")


def locate(error: WireError, place: int | None) -> None:
    """Put a group's place in its list before the path of an error; None is a group by itself."""
    if place is not None:
        error.where = f"[{place}].{error.where}" if error.where else f"[{place}]"


def short(value: Any) -> str:
    """A refused value for people, however large it is."""
    return reprlib.repr(value)[:80]
