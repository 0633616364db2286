"""One group as a frame: the compact form that travels on /v1 and lies in the store (docs/wire.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from atroposlib.errors import WireError
from atroposlib.types import Group, ScoredDataGroup, Targets, TeacherTargets
from atroposlib.wire import container
from atroposlib.wire.arrays import shared_targets, student_targets, to_arrays
from atroposlib.wire.checks import check_lengths, check_sequences, check_shapes
from atroposlib.wire.json_text import json_bytes, parse_json
from atroposlib.wire.limits import DEFAULT, Limits, too_large
from atroposlib.wire.schema import CHUNK_IDS
from atroposlib.wire.shapes import check_free_form, check_length, short
from atroposlib.wire.targets import compact

LogprobDtype = Literal["float16", "float32"]

_DTYPES: dict[str, type[np.float16] | type[np.float32]] = {"float16": np.float16, "float32": np.float32}
_FLOATS = ("advantages", "ref_logprobs", "inference_logprobs")
_TARGETS = ("starts", "counts", "token_ids", "logprobs")


def encode_group(
    group: ScoredDataGroup | Group,
    *,
    logprob_dtype: LogprobDtype = "float16",
    codec: container.Codec = "zstd",
) -> bytes:
    """The frame of a group.

    Present ids with a logprob of -9999 or less become absent; rows that say nothing at the edges of a
    sequence, and such columns at the end, are left out. A row that only rounding to ``logprob_dtype`` would
    make sum above 1 + 1e-3 is rounded down.

    Args:
        group: Lists as an environment collects them, or arrays.
        logprob_dtype: Of the targets' logprobs.
        codec: zstd, or none for a frame that any reader of safetensors opens.

    Raises:
        WireError: Lengths do not agree, ids are none, or a value is not JSON; values such as the size of a
            logprob are the receiver's to check (:func:`atroposlib.wire.checks.check_group`).
    """
    if not isinstance(group, Group):
        group = to_arrays(group, strict=True)
    else:
        check_shapes(group)
    dtype = _DTYPES[logprob_dtype]
    arrays: dict[str, NDArray[Any]] = {"lengths": _lengths(group.tokens)}
    arrays["tokens"] = _flat(group.tokens, np.int32, "tokens")
    arrays["masks"] = _flat(group.masks, np.int32, "masks")
    for name in _FLOATS:
        rows = getattr(group, name)
        if rows is not None:
            arrays[name] = _flat(rows, np.float32, name)
    targets = shared_targets(group.targets, group.teachers)
    if targets is not None and targets is not student_targets(group.teachers):
        _add_targets(arrays, "distill", compact(targets, dtype))
    for index, teacher in enumerate(group.teachers):
        _add_teacher(arrays, f"teachers.{index}", teacher, dtype)
    arrays["rest"] = np.frombuffer(_rest_json(group), np.uint8)
    return container.write(arrays, codec)


def decode_group(frame: bytes | memoryview, limits: Limits = DEFAULT) -> Group:
    """The group of a frame, as read-only views of it or of its decompressed data.

    Lengths and limits are checked; values are :func:`atroposlib.wire.checks.check_group`'s to check.

    Raises:
        WireError: wire.bad_encoding for a broken frame, wire.too_large beyond a limit, wire.invalid_group
            for a group whose parts do not fit together.
    """
    arrays = container.read(frame, limits)
    lengths = _take_lengths(arrays, limits)
    rest = _read_rest(_take(arrays, "rest", "u1"), limits)
    scores, facts = _scores(rest.pop("scores", None)), _facts(rest.pop("teachers", None), limits)
    tokens = _split(_take(arrays, "tokens", "i4"), lengths, "tokens")
    masks = _split(_take(arrays, "masks", "i4"), lengths, "masks")
    floats = {name: _split(_take(arrays, name, "f4"), lengths, name) for name in _FLOATS if name in arrays}
    targets = _take_targets(arrays, "distill")
    teachers = [_take_teacher(arrays, index, fact, lengths) for index, fact in enumerate(facts)]
    if arrays:
        raise WireError("the frame has an unknown array", where=min(arrays)[:80])
    targets = shared_targets(targets, teachers)
    group = Group(tokens, masks, scores, targets=targets, teachers=teachers, rest=rest, **floats)
    check_shapes(group, limits)
    return group


def _flat(rows: Sequence[NDArray[Any]], dtype: type[np.int32] | type[np.float32], where: str) -> NDArray[Any]:
    """All rows in one, cast to ``dtype`` where that keeps every id."""
    joined = np.concatenate(rows) if rows else np.empty(0, dtype)
    cast = joined.astype(dtype, copy=False)
    if dtype is np.int32 and joined.dtype != dtype and not np.array_equal(cast, joined):
        raise WireError("an id does not fit 32 bits", where=where)
    return cast


def _lengths(rows: Sequence[NDArray[Any]]) -> NDArray[np.int32]:
    return np.array([len(row) for row in rows], np.int32)


def _add_targets(arrays: dict[str, NDArray[Any]], prefix: str, targets: Targets) -> None:
    values = (targets.starts, targets.counts, targets.ids, targets.logprobs)
    arrays |= {f"{prefix}.{name}": value for name, value in zip(_TARGETS, values, strict=True)}


def _add_teacher(
    arrays: dict[str, NDArray[Any]],
    prefix: str,
    teacher: TeacherTargets,
    dtype: type[np.float16] | type[np.float32],
) -> None:
    if teacher.targets is not None:
        _add_targets(arrays, prefix, compact(teacher.targets, dtype))
    if teacher.tokens is not None:
        arrays[f"{prefix}.lengths"] = _lengths(teacher.tokens)
    for name in ("tokens", *CHUNK_IDS):
        rows = getattr(teacher, name)
        if rows is not None:
            arrays[f"{prefix}.{name}"] = _flat(rows, np.int32, f"{prefix}.{name}")


def _rest_json(group: Group) -> bytes:
    rest: dict[str, Any] = {name: value for name, value in group.rest.items() if value is not None}
    rest["scores"] = group.scores
    if group.teachers:
        rest["teachers"] = [teacher.facts for teacher in group.teachers]
    for name, value in rest.items():
        check_free_form(value, name)
    try:
        return json_bytes(rest)
    except (TypeError, ValueError) as error:
        raise WireError("the group holds a value that JSON cannot carry", got=str(error)[:200]) from error


def _take(arrays: container.Arrays, name: str, *kinds: str, axes: int = 1) -> NDArray[Any]:
    array = arrays.pop(name, None)
    if array is None:
        raise WireError("the frame lacks an array", where=name)
    if array.dtype.str[1:] not in kinds or array.ndim != axes:
        got = f"{array.dtype} with {array.ndim} axes"
        raise WireError(
            "the array is of another kind", where=name, got=got, expected=f"{' or '.join(kinds)}, {axes} axes"
        )
    return array


def _split(flat: NDArray[Any], lengths: Sequence[int], where: str) -> list[NDArray[Any]]:
    """Views of each sequence's part."""
    if len(flat) != sum(lengths):
        raise WireError("the lengths do not agree", where=where, got=len(flat), expected=sum(lengths))
    rows: list[NDArray[Any]] = []
    end = 0
    for length in lengths:
        begin, end = end, end + length
        rows.append(flat[begin:end])
    return rows


def _take_targets(arrays: container.Arrays, prefix: str) -> Targets | None:
    if not any(f"{prefix}.{name}" in arrays for name in _TARGETS):
        return None
    return Targets(
        starts=_take(arrays, f"{prefix}.starts", "i4"),
        counts=_take(arrays, f"{prefix}.counts", "i4"),
        ids=_take(arrays, f"{prefix}.token_ids", "i4", axes=2),
        logprobs=_take(arrays, f"{prefix}.logprobs", "f2", "f4", axes=2),
    )


def _take_teacher(
    arrays: container.Arrays, index: int, facts: dict[str, Any], lengths: Sequence[int]
) -> TeacherTargets:
    prefix = f"teachers.{index}"
    tokens: list[NDArray[np.int32]] | None = None
    own = lengths
    if f"{prefix}.lengths" in arrays:
        own = _own_lengths(_take(arrays, f"{prefix}.lengths", "i4"), len(lengths), f"{prefix}.lengths")
        tokens = _split(_take(arrays, f"{prefix}.tokens", "i4"), own, f"{prefix}.tokens")
    chunks = {
        name: _split(_take(arrays, f"{prefix}.{name}", "i4"), expected, f"{prefix}.{name}")
        for name, expected in zip(CHUNK_IDS, (lengths, own), strict=True)
        if f"{prefix}.{name}" in arrays
    }
    return TeacherTargets(facts=facts, tokens=tokens, targets=_take_targets(arrays, prefix), **chunks)


def _own_lengths(lengths: NDArray[np.int32], sequences: int, where: str) -> list[int]:
    check_length(lengths, sequences, where)
    if lengths.min() < 0:
        raise WireError("a length is negative", where=where, got=lengths.min())
    own: list[int] = lengths.tolist()
    return own


def _take_lengths(arrays: container.Arrays, limits: Limits) -> list[int]:
    found = _take(arrays, "lengths", "i4")
    # A list of numbers takes many times the array, so the array is looked at first.
    check_sequences(len(found), limits)
    lengths: list[int] = found.tolist()
    check_lengths(lengths, limits)
    return lengths


def _read_rest(text: NDArray[np.uint8], limits: Limits) -> dict[str, Any]:
    rest = parse_json(text.tobytes(), limits.rest_values, "rest")
    if not isinstance(rest, dict):
        raise WireError("the rest is no JSON object", where="rest", got=type(rest).__name__)
    return {name: value for name, value in rest.items() if value is not None}


def _scores(scores: Any) -> list[float]:
    if not isinstance(scores, list) or not all(type(score) in (int, float) for score in scores):
        raise WireError("the scores are no list of numbers", where="scores", got=short(scores))
    try:
        return [float(score) for score in scores]
    except OverflowError as error:
        raise WireError("a score is too large", where="scores") from error


def _facts(facts: Any, limits: Limits) -> list[dict[str, Any]]:
    if facts is None:
        return []
    if not isinstance(facts, list) or not all(isinstance(fact, dict) for fact in facts):
        raise WireError("the teachers are no list of objects", where="teachers", got=short(facts))
    if len(facts) > limits.teachers:
        raise too_large("too many teachers", where="teachers", got=len(facts), most=limits.teachers)
    return facts
