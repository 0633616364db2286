"""The members of a group that carry what its teachers said: rectangular arrays, absent rows for the rest.

Axes: G sequences of a group, T student tokens, U teacher tokens, K columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from atroposlib.align.chunks import NO_CHUNK
from atroposlib.envs.teacher_reading import Rows
from atroposlib.envs.teacher_views import Aligned
from atroposlib.types import ABSENT_ID, ABSENT_LOGPROB, ScoredDataGroup, TeacherEntry


def rectangular(scored: Sequence[Rows | None], lengths: Sequence[int]) -> tuple[list[Any], list[Any]]:
    """``distill_token_ids`` and ``distill_logprobs`` [G][T][K] of a group.

    Args:
        scored: Rows [T][K] of each of the G sequences, K its own; None for one that was not scored.
        lengths: Tokens T of each sequence.

    Returns:
        G lists or G arrays each, as they came, every row K columns wide. Missing columns, and every row of a
        sequence that was not scored, are absent (id -1, logprob -9999.0).
    """
    columns = max((_width(rows[0]) for rows in scored if rows is not None), default=1)
    as_lists = any(rows is not None and not isinstance(rows[0], np.ndarray) for rows in scored)
    filled = [_filled(rows, length, columns, as_lists) for rows, length in zip(scored, lengths, strict=True)]
    return [ids for ids, _ in filled], [logprobs for _, logprobs in filled]


def _width(ids: Any) -> int:
    return len(ids[0]) if len(ids) else 0


def _filled(rows: Rows | None, length: int, columns: int, as_lists: bool) -> Rows:
    if rows is not None and _width(rows[0]) == columns:
        return rows
    ids = np.full((length, columns), ABSENT_ID, np.int32)
    logprobs = np.full((length, columns), ABSENT_LOGPROB, np.float32)
    if rows is not None:
        width = _width(rows[0])
        ids[:, :width] = rows[0]
        logprobs = logprobs.astype(np.asarray(rows[1]).dtype, copy=False)
        logprobs[:, :width] = rows[1]
    return (ids.tolist(), logprobs.tolist()) if as_lists else (ids, logprobs)


def entry(facts: Mapping[str, Any], arrays: tuple[list[Any], list[Any]] | None) -> TeacherEntry:
    """What a teacher with the student's tokenizer said: ``arrays`` [G][T][K], None for nothing."""
    found = dict(facts)
    if arrays is not None:
        found["token_ids"], found["logprobs"] = arrays
    return cast(TeacherEntry, found)


def aligned_entry(
    facts: Mapping[str, Any], aligned: Sequence[Aligned | None], lengths: Sequence[int]
) -> TeacherEntry:
    """What a teacher with another tokenizer said, at its own tokens, with the chunks of both sides.

    Args:
        facts: The entry but for its arrays.
        aligned: What it said of each of the G sequences, None for nothing; empty where it scored nothing.
        lengths: Student tokens T of each sequence.
    """
    found = dict(facts)
    if aligned:
        none = np.zeros(0, np.int32)
        found["tokens"] = [none if one is None else one.tokens for one in aligned]
        found["token_ids"], found["logprobs"] = rectangular(
            [None if one is None else one.rows for one in aligned], [len(ids) for ids in found["tokens"]]
        )
        found["student_chunk_id"] = [
            np.full(length, NO_CHUNK, np.int32) if one is None else one.student_chunk_id
            for one, length in zip(aligned, lengths, strict=True)
        ]
        found["teacher_chunk_id"] = [none if one is None else one.teacher_chunk_id for one in aligned]
    return cast(TeacherEntry, found)


def with_arrays(
    group: ScoredDataGroup, token_ids: list[Any] | None, logprobs: list[Any] | None
) -> ScoredDataGroup:
    """A shallow copy with these arrays: the caller's group can be sent a second time."""
    copy = group.copy()
    copy["distill_token_ids"], copy["distill_logprobs"] = token_ids, logprobs
    return copy
