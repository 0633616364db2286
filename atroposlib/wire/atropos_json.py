"""Atropos's JSON: a posted body becomes validated groups, stored groups become a batch.

A group is validated and encoded once, when it is posted; its bytes are spliced into answers as they are.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import orjson
from pydantic import TypeAdapter, ValidationError

from atroposlib.errors import WireError
from atroposlib.wire.posted import PostedGroup
from atroposlib.wire.schema import ATROPOS_KEYS, RIDING_KEYS, ScoredData, Teacher
from atroposlib.wire.shapes import (
    check_columns,
    check_free_form,
    check_length,
    check_rows,
    pad_columns,
    replace_negative_infinity,
)

NO_EXAMPLE = orjson.dumps(
    {
        key: []
        for key in ATROPOS_KEYS
        if key not in ("overrides", "group_overrides", "env_id", "distill_token_ids", "distill_logprobs")
    }
)
"""What Atropos shows as the latest example before there is one."""

_group = TypeAdapter(ScoredData)
_groups = TypeAdapter(list[ScoredData])


def decode_group(body: bytes) -> list[PostedGroup]:
    """Read the body of POST /scored_data.

    Args:
        body: JSON object; ``NaN`` and ``Infinity`` literals are recognised and told by their path.

    Returns:
        The one group, so that both routes go the same way.

    Raises:
        WireError: wire.invalid_group with the field path in ``where``.
    """
    try:
        data = _group.validate_json(body)
    except ValidationError as error:
        _refuse(error)
    return [_posted(data, "")]


def decode_groups(body: bytes) -> list[PostedGroup]:
    """Read the body of POST /scored_data_list, a JSON array of groups. Raises as :func:`decode_group`."""
    try:
        listed = _groups.validate_json(body)
    except ValidationError as error:
        _refuse(error)
    return [_posted(data, f"[{index}].") for index, data in enumerate(listed)]


def batch_parts(payloads: Sequence[bytes]) -> Iterator[bytes]:
    """The answer of GET /batch in pieces, without copying the groups."""
    yield b'{"batch":['
    for index, payload in enumerate(payloads):
        if index:
            yield b","
        yield payload
    yield b"]}"


def _refuse(error: ValidationError) -> NoReturn:
    first, *others = error.errors(include_url=False)
    more = f" (and {len(others)} more)" if others else ""
    got = None if first["type"] == "json_invalid" else repr(first["input"])[:80]
    raise WireError(f"{first['msg']}{more}", where=_path(first["loc"]) or None, got=got) from error


def _path(loc: Sequence[int | str]) -> str:
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)
    return "".join(parts).removeprefix(".")


def _posted(data: ScoredData, prefix: str) -> PostedGroup:
    lengths = _check_sequences(data, prefix)
    _check_optional(data, prefix, lengths)
    _normalise_targets(data, prefix, lengths)
    for index, teacher in enumerate(data.teachers or ()):
        _normalise_teacher(teacher, f"{prefix}teachers[{index}]", len(lengths))
    return PostedGroup(
        group_id=data.group_id or uuid.uuid4().hex,
        env_id=data.env_id,
        sequences=len(lengths),
        policy_version=data.policy_version,
        payload=_encode(data),
    )


def _check_sequences(data: ScoredData, prefix: str) -> list[int]:
    if not data.tokens:
        raise WireError("the group has no sequences", where=f"{prefix}tokens")
    lengths = [len(row) for row in data.tokens]
    if 0 in lengths:
        raise WireError("the sequence has no tokens", where=f"{prefix}tokens[{lengths.index(0)}]")
    check_rows(data.masks, lengths, f"{prefix}masks")
    check_length(data.scores, len(lengths), f"{prefix}scores")
    return lengths


def _check_optional(data: ScoredData, prefix: str, lengths: Sequence[int]) -> None:
    for name in ("ref_logprobs", "inference_logprobs"):
        rows = getattr(data, name)
        check_rows(rows, lengths, f"{prefix}{name}")
        replace_negative_infinity(rows or ())
    for name in ("advantages", "overrides"):
        values = getattr(data, name)
        if values is not None:
            check_length(values, len(lengths), f"{prefix}{name}")
    for name in ("messages", "generation_params", "overrides", "group_overrides", "images"):
        check_free_form(getattr(data, name), f"{prefix}{name}")


def _normalise_targets(data: ScoredData, prefix: str, lengths: Sequence[int]) -> None:
    ids, logprobs = data.distill_token_ids, data.distill_logprobs
    if ids is None and logprobs is None:
        return
    if ids is None or logprobs is None:
        missing = "distill_token_ids" if ids is None else "distill_logprobs"
        raise WireError("ids and logprobs belong together", where=f"{prefix}{missing}", got="null")
    check_length(ids, len(lengths), f"{prefix}distill_token_ids")
    check_length(logprobs, len(lengths), f"{prefix}distill_logprobs")
    for index, length in enumerate(lengths):
        where = f"{prefix}distill_token_ids[{index}]"
        if len(ids[index]) > length:
            raise WireError(
                "more rows than tokens", where=where, got=len(ids[index]), expected=f"at most {length}"
            )
        check_columns(ids[index], logprobs[index], f"{prefix}distill_logprobs[{index}]")
        replace_negative_infinity(logprobs[index])
    pad_columns(ids, logprobs, lengths)


def _normalise_teacher(teacher: Teacher, where: str, sequences: int) -> None:
    for name in ("tokens", "token_ids", "logprobs", "student_chunk_id", "teacher_chunk_id"):
        values = getattr(teacher, name)
        if values is not None:
            check_length(values, sequences, f"{where}.{name}")
    check_free_form(teacher.model_extra, where)
    if teacher.token_ids is None or teacher.logprobs is None:
        return
    for index, (ids, logprobs) in enumerate(zip(teacher.token_ids, teacher.logprobs, strict=True)):
        check_columns(ids, logprobs, f"{where}.logprobs[{index}]")
        replace_negative_infinity(logprobs)


def _encode(data: ScoredData) -> bytes:
    fields: dict[str, Any] = {name: getattr(data, name) for name in ATROPOS_KEYS}
    fields |= {name: getattr(data, name) for name in RIDING_KEYS if name in data.model_fields_set}
    if data.teachers is not None:
        fields["teachers"] = [_teacher_fields(teacher) for teacher in data.teachers]
    try:
        return orjson.dumps(fields)
    except orjson.JSONEncodeError:
        # orjson knows 64-bit integers only; a free-form field (a seed, an id) may hold a larger one.
        return json.dumps(fields, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()


def _teacher_fields(teacher: Teacher) -> dict[str, Any]:
    named = {
        name: getattr(teacher, name) for name in Teacher.model_fields if name in teacher.model_fields_set
    }
    return named | (teacher.model_extra or {})
