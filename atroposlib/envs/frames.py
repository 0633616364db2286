"""A group as the frame that an environment posts, less what no API would take of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from atroposlib.config.env import LogprobDtype
from atroposlib.errors import WireError
from atroposlib.types import ABSENT_ID, Group, ScoredDataGroup, Targets
from atroposlib.wire.arrays import to_arrays
from atroposlib.wire.frame import encode_group
from atroposlib.wire.json_text import json_bytes
from atroposlib.wire.media import FRAME_TYPE
from atroposlib.wire.schema import ScoredData
from atroposlib.wire.shapes import check_free_form
from atroposlib.wire.targets import heavy_rows, without_rows

FRAME_HEADERS = {"Content-Type": FRAME_TYPE}

NOT_PROBABILITIES = "not_probabilities"
MISSHAPEN = "misshapen"
OWN_MEMBER = "own_member"
STUDENT_LOGPROBS = ("inference_logprobs", "ref_logprobs")


def frame_of(group: ScoredDataGroup, logprob_dtype: LogprobDtype) -> tuple[bytes, Counter[str]]:
    """The frame of a group, and how much of it was left out for it, by reason.

    ``not_probabilities``: target rows whose probabilities sum above 1 + 1e-3, or with a value that is none.
    ``misshapen``: target rows that do not fit their sequence or whose ids are none; the whole sequence's rows
    go, or a teacher's, when its tokens do not fit. ``inference_logprobs``, ``ref_logprobs``: sequences whose
    array does not fit them or holds a NaN; the whole group's array goes. ``own_member``: members that only
    the environment knows and JSON cannot carry.

    Raises:
        WireError: The group itself cannot be a frame.
    """
    left_out: Counter[str] = Counter()
    group = _without_own_trouble(group, left_out)
    arrays = _sound(_arrays(group, left_out), left_out)
    return encode_group(arrays, logprob_dtype=logprob_dtype), +left_out


def _without_own_trouble(group: ScoredDataGroup, left_out: Counter[str]) -> ScoredDataGroup:
    """The group without members of the environment's own that JSON cannot carry."""
    kept: dict[str, Any] = {}
    for name, value in group.items():
        if name not in ScoredData.model_fields:
            try:
                check_free_form(value, name)
                json_bytes(value)
            except (WireError, TypeError, ValueError):
                left_out[OWN_MEMBER] += 1
                continue
        kept[name] = value
    return cast(ScoredDataGroup, kept)


def _arrays(group: ScoredDataGroup, left_out: Counter[str]) -> Group:
    try:
        arrays = to_arrays(group, strict=True)
    except WireError:
        # What the student sampled is not repaired: a mask that is none would leave its token untrained.
        student: Any = {name: group.get(name) for name in ("tokens", "masks", "scores")}
        to_arrays(student, strict=True)
        arrays = to_arrays(group, strict=False)
        left_out[MISSHAPEN] = _misshapen_rows(group, arrays)
    for name in STUDENT_LOGPROBS:
        rows = getattr(arrays, name)
        if rows is None and group.get(name) is None:
            continue
        if rows is None or any((np.isnan(row) | (row == np.inf)).any() for row in rows):
            left_out[name] += len(arrays.tokens)
            nothing: dict[str, Any] = {name: None}
            arrays = replace(arrays, **nothing)
    return arrays


def _sound(arrays: Group, left_out: Counter[str]) -> Group:
    """The group without rows that are no probabilities."""
    targets = _sound_targets(arrays.targets, left_out)
    teachers = [
        replace(
            teacher,
            # Shared targets stay shared, and their rows are counted once.
            targets=targets
            if teacher.targets is arrays.targets
            else _sound_targets(teacher.targets, left_out),
        )
        for teacher in arrays.teachers
    ]
    return replace(arrays, targets=targets, teachers=teachers)


def _sound_targets(targets: Targets | None, left_out: Counter[str]) -> Targets | None:
    if targets is None:
        return None
    heavy = heavy_rows(targets.ids, targets.logprobs)
    left_out[NOT_PROBABILITIES] += int(heavy.sum())
    return without_rows(targets, heavy)


def _misshapen_rows(group: ScoredDataGroup, arrays: Group) -> int:
    """Listed rows that name a token and that the arrays lack, of the group and of its teachers."""
    members: list[tuple[Mapping[str, Any], str, Targets | None]] = [
        (group, "distill_token_ids", arrays.targets)
    ]
    entries = group.get("teachers") or ()
    members += [
        (entry, "token_ids", teacher.targets) for entry, teacher in zip(entries, arrays.teachers, strict=True)
    ]
    return sum(max(0, _listed_rows(lists.get(name)) - _rows(targets)) for lists, name, targets in members)


def _rows(targets: Targets | None) -> int:
    return 0 if targets is None else int((targets.ids != ABSENT_ID).any(axis=1).sum())


def _listed_rows(sequences: Any) -> int:
    return sum(_names_a_token(row) for rows in _listed(sequences) for row in _listed(rows))


def _listed(value: Any) -> Sequence[Any] | NDArray[Any]:
    """What a list or an array holds; nothing where something else stands."""
    is_listed = isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim > 0)
    return value if is_listed else ()


def _names_a_token(row: Any) -> bool:
    return any(isinstance(value, int | float | np.number) and value >= 0 for value in _listed(row))
