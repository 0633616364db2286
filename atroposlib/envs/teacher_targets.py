"""Teacher targets of one group: rectangular arrays out of what was scored, absent rows for the rest.

Axes: G sequences of a group, T tokens, K columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from atroposlib.envs.teacher_reading import Rows
from atroposlib.types import ABSENT_ID, ABSENT_LOGPROB


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
