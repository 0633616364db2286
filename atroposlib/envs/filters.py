"""The cheap filters: why a group is not worth a teacher call, decided from the group alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SIZE_MISMATCH = "size_mismatch"
EQUAL_SCORES = "equal_scores"
TOO_LONG = "too_long"


def drop_reason(
    group: Mapping[str, Any], *, group_size: int, drop_equal_scores: bool, max_token_len: int
) -> str | None:
    """Why a group is dropped, or None to keep it.

    Args:
        group: A group with ``tokens`` [G][T], ``masks`` [G][T] and ``scores`` [G].
        group_size: Sequences that the group must have, unless its ``group_overrides`` say another size.
        drop_equal_scores: Drop groups whose scores are all equal.
        max_token_len: Sequences of this many tokens or more are too long; 0 or less means no limit.

    Returns:
        ``size_mismatch``, ``equal_scores`` or ``too_long``, checked in this order.
    """
    tokens = group.get("tokens") or []
    expected = (group.get("group_overrides") or {}).get("group_size", group_size)
    if not tokens or any(len(group.get(name) or []) != expected for name in ("tokens", "masks", "scores")):
        return SIZE_MISMATCH
    if drop_equal_scores and len(set(group["scores"])) == 1:
        return EQUAL_SCORES
    if max_token_len > 0 and any(len(ids) >= max_token_len for ids in tokens):
        return TOO_LONG
    return None
