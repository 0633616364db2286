"""Atropos's JSON: a posted body becomes validated groups, stored groups become a batch.

A group is validated and encoded once, when it is posted; its bytes are spliced into answers as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError

from atroposlib.errors import WireError
from atroposlib.wire.checks import check_cells, check_lengths, check_longest
from atroposlib.wire.identify import posted_group
from atroposlib.wire.json_text import check_values, json_bytes
from atroposlib.wire.limits import DEFAULT, Limits, too_large
from atroposlib.wire.posted import PostedGroup
from atroposlib.wire.schema import ATROPOS_KEYS, RIDING_KEYS, FreeFields, Listed, ScoredData, Teacher
from atroposlib.wire.shapes import (
    check_free_form,
    check_length,
    check_rows,
    locate,
    refuse,
    replace_negative_infinity,
)
from atroposlib.wire.target_checks import check_target_lists, pad_columns

NO_EXAMPLE = orjson.dumps(
    {
        key: []
        for key in ATROPOS_KEYS
        if key not in ("overrides", "group_overrides", "env_id", "distill_token_ids", "distill_logprobs")
    }
)
"""What Atropos shows as the latest example before there is one."""

_group = TypeAdapter(ScoredData)
_groups: TypeAdapter[list[ScoredData]] = TypeAdapter(Listed[ScoredData])


def decode_group(body: bytes, limits: Limits = DEFAULT, *, refuse_heavy: bool = False) -> list[PostedGroup]:
    """Read the body of POST /scored_data.

    Args:
        body: JSON object; ``NaN`` and ``Infinity`` literals are recognised and told by their path.
        limits: Bounds.
        refuse_heavy: Refuse a row whose probabilities sum above 1 + 1e-3.

    Returns:
        The one group, so that both routes go the same way.

    Raises:
        WireError: wire.invalid_group with the field path in ``where``; wire.too_large beyond a limit.
    """
    try:
        data = _group.validate_json(body)
    except ValidationError as error:
        refuse(error)
    return [_posted(data, None, limits, refuse_heavy)]


def decode_groups(body: bytes, limits: Limits = DEFAULT, *, refuse_heavy: bool = False) -> list[PostedGroup]:
    """Read the body of POST /scored_data_list, a JSON array of groups. Raises as :func:`decode_group`."""
    try:
        listed = _groups.validate_json(body)
    except ValidationError as error:
        refuse(error)
    return [_posted(data, index, limits, refuse_heavy) for index, data in enumerate(listed)]


def decode_any(body: bytes, limits: Limits = DEFAULT) -> list[PostedGroup]:
    """Read the JSON body of POST /v1/groups: one object or an array. Raises as :func:`decode_group`."""
    decode = decode_groups if body.lstrip()[:1] == b"[" else decode_group
    return decode(body, limits, refuse_heavy=True)


def _posted(data: ScoredData, place: int | None, limits: Limits, refuse_heavy: bool) -> PostedGroup:
    try:
        _check(data, limits, refuse_heavy)
    except WireError as error:
        locate(error, place)
        raise
    return posted_group(
        _encode(data),
        "json",
        group_id=data.group_id,
        env_id=data.env_id,
        sequences=len(data.tokens),
        policy_version=data.policy_version,
    )


def _check(data: ScoredData, limits: Limits, refuse_heavy: bool) -> None:
    """Check a group and repair in place what the contract lets old clients say otherwise."""
    lengths = [len(row) for row in data.tokens]
    check_lengths(lengths, limits)
    check_rows(data.masks, lengths, "masks")
    check_length(data.scores, len(lengths), "scores")
    _check_optional(data, lengths, limits)
    teachers = data.teachers or []
    if len(teachers) > limits.teachers:
        raise too_large("too many teachers", where="teachers", got=len(teachers), most=limits.teachers)
    _check_rest(data, teachers, lengths, limits)
    ids, logprobs = data.distill_token_ids, data.distill_logprobs
    names = ("distill_token_ids", "distill_logprobs")
    cells = check_target_lists(ids, logprobs, names, lengths, limits, refuse_heavy)
    for index, teacher in enumerate(teachers):
        cells += _check_teacher(teacher, f"teachers[{index}]", lengths, limits, refuse_heavy)
    check_cells(cells, limits)
    if ids is not None and logprobs is not None:
        pad_columns(ids, logprobs, lengths)


def _check_optional(data: ScoredData, lengths: Sequence[int], limits: Limits) -> None:
    for name in ("ref_logprobs", "inference_logprobs"):
        rows = getattr(data, name)
        check_rows(rows, lengths, name)
        replace_negative_infinity(rows or ())
    for name in ("advantages", "overrides"):
        values = getattr(data, name)
        if values is not None:
            check_length(values, len(lengths), name)


def _check_rest(
    data: ScoredData, teachers: Sequence[Teacher], lengths: Sequence[int], limits: Limits
) -> None:
    """Check what a frame of the group would carry as JSON."""
    rest = {name: getattr(data, name) for name in FreeFields.model_fields}
    advantages = rest.pop("advantages")
    for name, value in rest.items():
        check_free_form(value, name, limits.json_depth - 1)
    for index, teacher in enumerate(teachers):
        # The entry stands within the group and its list of teachers.
        check_free_form(teacher.model_extra, f"teachers[{index}]", limits.json_depth - 2)
    if advantages is not None and [len(row) for row in advantages] != list(lengths):
        rest["advantages"] = advantages
    rest["teachers"] = [teacher.model_extra for teacher in teachers]
    check_values(json_bytes(rest), limits.rest_values, "messages")


def _check_teacher(
    teacher: Teacher, where: str, lengths: Sequence[int], limits: Limits, refuse_heavy: bool
) -> int:
    """Positions x columns of the teacher's targets, once they are checked."""
    own = lengths
    if teacher.tokens is not None:
        check_length(teacher.tokens, len(lengths), f"{where}.tokens")
        own = [len(row) for row in teacher.tokens]
        check_longest(own, f"{where}.tokens", limits)
    check_rows(teacher.student_chunk_id, lengths, f"{where}.student_chunk_id")
    check_rows(teacher.teacher_chunk_id, own, f"{where}.teacher_chunk_id")
    names = (f"{where}.token_ids", f"{where}.logprobs")
    return check_target_lists(teacher.token_ids, teacher.logprobs, names, own, limits, refuse_heavy)


def _encode(data: ScoredData) -> bytes:
    fields: dict[str, Any] = {name: getattr(data, name) for name in ATROPOS_KEYS}
    fields |= {name: getattr(data, name) for name in RIDING_KEYS if name in data.model_fields_set}
    if data.teachers is not None:
        fields["teachers"] = [_teacher_fields(teacher) for teacher in data.teachers]
    return json_bytes(fields)


def _teacher_fields(teacher: Teacher) -> dict[str, Any]:
    named = {
        name: getattr(teacher, name) for name in Teacher.model_fields if name in teacher.model_fields_set
    }
    return named | (teacher.model_extra or {})
