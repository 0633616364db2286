"""From the lists of a group to its arrays and back. Axes: G sequences, T or U tokens, R rows, K columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from atroposlib.errors import WireError
from atroposlib.types import (
    ABSENT_ID,
    ABSENT_LOGPROB,
    IGNORED,
    Group,
    ScoredDataGroup,
    Targets,
    TeacherEntry,
    TeacherTargets,
)
from atroposlib.wire.checks import check_shapes
from atroposlib.wire.schema import ARRAY_KEYS, CHUNK_IDS, TEACHER_ARRAY_KEYS
from atroposlib.wire.shapes import are_whole, check_length, check_rows, short
from atroposlib.wire.target_lists import rectangular, targets_from_lists

Rows = Sequence[Sequence[Any]]

_INT32 = np.iinfo(np.int32)
_LARGEST = float(np.finfo(np.float32).max)


def to_arrays(group: ScoredDataGroup, *, strict: bool) -> Group:
    """A group of lists as arrays; absent entries and edges as in a frame.

    Where a row lists an id twice, the second is absent.

    Args:
        group: As it is posted, or as GET /batch delivers it.
        strict: Raise at whatever does not fit. Otherwise what cannot be trained is left out: a sequence whose
            targets are misshapen has no rows; a row with an id or logprob that is none, or whose
            probabilities sum above 1 + 1e-3, is absent; a teacher whose tokens or chunk ids do not fit keeps
            its facts alone; other arrays that do not fit are None; a token that is no id is -1, and such a
            mask is ``IGNORED``. Floats are clipped to float32's range.

    Raises:
        WireError: wire.invalid_group with the field's path; when not strict, only for a group without
            sequences or scores, or an entry of ``teachers`` that is no object.
    """
    for name in ("tokens", "masks", "scores"):
        if group.get(name) is None:
            raise WireError("the field is missing", where=name)
    tokens = _int_rows(group["tokens"], "tokens", ABSENT_ID, strict)
    lengths = [len(row) for row in tokens]
    rest: dict[str, Any] = {
        key: value for key, value in group.items() if key not in ARRAY_KEYS and value is not None
    }
    advantages = _fitting_rows(rest.get("advantages"), lengths)
    if advantages is not None:
        del rest["advantages"]
    teachers = [
        _teacher(entry, tokens, f"teachers[{index}]", strict)
        for index, entry in enumerate(group.get("teachers") or ())
    ]
    names = ("distill_token_ids", "distill_logprobs")
    targets = targets_from_lists(
        group.get("distill_token_ids"), group.get("distill_logprobs"), lengths, names, strict
    )
    arrays = Group(
        tokens=tokens,
        masks=_int_rows(group["masks"], "masks", IGNORED, strict),
        scores=_scores(group["scores"]),
        advantages=advantages,
        ref_logprobs=_float_rows(group.get("ref_logprobs"), lengths, "ref_logprobs", strict),
        inference_logprobs=_float_rows(
            group.get("inference_logprobs"), lengths, "inference_logprobs", strict
        ),
        targets=shared_targets(targets, teachers),
        teachers=teachers,
        rest=rest,
    )
    if strict:
        check_shapes(arrays)
    return arrays


def student_targets(teachers: Sequence[TeacherTargets]) -> Targets | None:
    """The targets of the first teacher that speaks the student's tokens: what ``distill_*`` repeats."""
    for teacher in teachers:
        same = teacher.facts.get("same_tokenizer") in (None, True)
        others = (teacher.tokens, teacher.student_chunk_id, teacher.teacher_chunk_id)
        if same and teacher.targets is not None and all(array is None for array in others):
            return teacher.targets
    return None


def shared_targets(targets: Targets | None, teachers: Sequence[TeacherTargets]) -> Targets | None:
    """The group's own targets, or ``student_targets``' object where they say the same."""
    first = student_targets(teachers)
    if targets is None or first is None or targets is first:
        return first or targets
    pairs = (
        (targets.starts, first.starts),
        (targets.counts, first.counts),
        (targets.ids, first.ids),
        (targets.logprobs, first.logprobs),
    )
    return first if all(np.array_equal(one, other) for one, other in pairs) else targets


def to_lists(group: Group) -> ScoredDataGroup:
    """A group of arrays as lists that JSON can carry.

    Absent entries are -1 and -9999.0; targets are rectangular [G][T][K] over all positions. Only what the
    group has is there.
    """
    return cast(ScoredDataGroup, _listed(json_ready(group)))


def json_ready(group: Group) -> dict[str, Any]:
    """The members of a group as JSON has them, with numpy arrays for the innermost lists."""
    lengths = [len(row) for row in group.tokens]
    members: dict[str, Any] = {"tokens": group.tokens, "masks": group.masks, "scores": group.scores}
    for name in ("advantages", "ref_logprobs", "inference_logprobs"):
        rows = getattr(group, name)
        if rows is not None:
            members[name] = [np.where(row == -np.inf, np.float32(ABSENT_LOGPROB), row) for row in rows]
    members |= group.rest
    if group.targets is not None:
        members["distill_token_ids"], members["distill_logprobs"] = rectangular(group.targets, lengths)
    if group.teachers:
        members["teachers"] = [_entry(teacher, lengths) for teacher in group.teachers]
    return members


def _entry(teacher: TeacherTargets, lengths: list[int]) -> dict[str, Any]:
    entry: dict[str, Any] = dict(teacher.facts)
    for name in ("tokens", *CHUNK_IDS):
        if getattr(teacher, name) is not None:
            entry[name] = getattr(teacher, name)
    if teacher.targets is not None:
        own = lengths if teacher.tokens is None else [len(row) for row in teacher.tokens]
        entry["token_ids"], entry["logprobs"] = rectangular(teacher.targets, own)
    return entry


def _listed(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {key: _listed(member) for key, member in value.items()}
    if isinstance(value, list):
        return [_listed(member) for member in value]
    return value


def _teacher(
    entry: TeacherEntry, tokens: list[NDArray[np.int32]], where: str, strict: bool
) -> TeacherTargets:
    if not isinstance(entry, Mapping):
        raise WireError("the entry is no object", where=where, got=short(entry))
    facts = {key: value for key, value in entry.items() if key not in TEACHER_ARRAY_KEYS}
    try:
        theirs, chunks = _other_tokens(entry, tokens, where)
    except WireError:
        if strict:
            raise
        # Its rows must not pass for rows at the student's tokens.
        return TeacherTargets(facts)
    lengths = [len(row) for row in (tokens if theirs is None else theirs)]
    names = (f"{where}.token_ids", f"{where}.logprobs")
    targets = targets_from_lists(entry.get("token_ids"), entry.get("logprobs"), lengths, names, strict)
    return TeacherTargets(facts, theirs, targets, **chunks)


def _other_tokens(
    entry: TeacherEntry, tokens: list[NDArray[np.int32]], where: str
) -> tuple[list[NDArray[np.int32]] | None, dict[str, list[NDArray[np.int32]]]]:
    """A teacher's tokens, None where they are the student's, and its chunk ids by name."""
    listed = entry.get("tokens")
    theirs = None if listed is None else _int_rows(listed, f"{where}.tokens", ABSENT_ID, True)
    if theirs is not None:
        check_length(theirs, len(tokens), f"{where}.tokens")
        has_chunks = any(entry.get(name) is not None for name in CHUNK_IDS)
        if not has_chunks and all(map(np.array_equal, theirs, tokens)):
            theirs = None
    chunks: dict[str, list[NDArray[np.int32]]] = {}
    for name, spoken in zip(CHUNK_IDS, (tokens, theirs or tokens), strict=True):
        rows = cast(Rows | None, entry.get(name))
        if rows is not None:
            chunks[name] = _int_rows(rows, f"{where}.{name}", ABSENT_ID, True)
            check_rows(chunks[name], [len(row) for row in spoken], f"{where}.{name}")
    return theirs, chunks


def _int_rows(rows: Rows, where: str, instead: int, strict: bool) -> list[NDArray[np.int32]]:
    return [_int_row(row, f"{where}[{index}]", instead, strict) for index, row in enumerate(rows)]


def _int_row(row: Sequence[Any], where: str, instead: int, strict: bool) -> NDArray[np.int32]:
    values = np.asarray(row)
    if not values.size:
        return np.empty(0, np.int32)
    if values.ndim == 1 and are_whole(values) and values.min() >= _INT32.min and values.max() <= _INT32.max:
        return values.astype(np.int32)
    if strict:
        raise WireError("these are no ids", where=where, got=short(row))
    fitting: Iterable[int] = (value if _is_int32(value) else instead for value in row)
    return np.fromiter(fitting, np.int32, count=len(row))


def _is_int32(value: Any) -> bool:
    return isinstance(value, int) and _INT32.min <= value <= _INT32.max


def _scores(scores: Sequence[Any]) -> list[float]:
    try:
        return [float(score) for score in scores]
    except (TypeError, ValueError, OverflowError) as error:
        raise WireError("the scores are no numbers", where="scores", got=short(scores)) from error


def _float_rows(
    rows: Rows | None, lengths: Sequence[int], where: str, strict: bool
) -> list[NDArray[np.float32]] | None:
    if rows is None:
        return None
    fitting = _fitting_rows(rows, lengths)
    if fitting is None and strict:
        raise WireError("these are not as many numbers as tokens", where=where, got=short(rows))
    return fitting


def _fitting_rows(rows: Rows | None, lengths: Sequence[int]) -> list[NDArray[np.float32]] | None:
    """The rows as float32, or None unless there is one number a token."""
    if rows is None or len(rows) != len(lengths):
        return None
    try:
        arrays = [np.asarray(row, dtype=np.float64) for row in rows]
    except (TypeError, ValueError):
        return None
    if [array.shape for array in arrays] != [(length,) for length in lengths]:
        return None
    return [_float32(array) for array in arrays]


def _float32(values: NDArray[np.float64]) -> NDArray[np.float32]:
    clipped = np.where(np.isfinite(values), np.clip(values, -_LARGEST, _LARGEST), values)
    return clipped.astype(np.float32)
