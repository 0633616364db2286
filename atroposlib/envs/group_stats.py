"""Figures of one group for the journal: tokens, trained tokens, teacher targets and their mass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atroposlib.types import ABSENT_LOGPROB, IGNORED


def group_stats(group: Mapping[str, Any]) -> dict[str, Any]:
    """Counts and captured mass of a group.

    Returns:
        ``sequences``; ``tokens``; ``trained_tokens`` (mask not -100); ``target_tokens`` (trained, and at
        least one column of the teacher is present); ``captured_mass``, the mean over target tokens of the
        teacher's probability that the present columns hold, None without target tokens.
    """
    target_tokens, mass = 0, 0.0
    ids_of, logprobs_of = group.get("distill_token_ids") or [], group.get("distill_logprobs") or []
    for mask, ids, logprobs in zip(group["masks"], ids_of, logprobs_of, strict=False):
        trained = [position for position, value in enumerate(mask) if value != IGNORED]
        count, held = _targets([ids[p] for p in trained], [logprobs[p] for p in trained])
        target_tokens += count
        mass += held
    return {
        "sequences": len(group["tokens"]),
        "tokens": sum(len(ids) for ids in group["tokens"]),
        "trained_tokens": sum(value != IGNORED for mask in group["masks"] for value in mask),
        "target_tokens": target_tokens,
        "captured_mass": mass / target_tokens if target_tokens else None,
    }


def _targets(ids: list[list[int]], logprobs: list[list[float]]) -> tuple[int, float]:
    """Rows with a present column among [R][K] rows, and the sum of the probability they hold."""
    if not ids:
        return 0, 0.0
    import numpy as np

    values = np.asarray(logprobs, dtype=np.float64)
    present = (np.asarray(ids) >= 0) & (values > ABSENT_LOGPROB)
    mass = np.where(present, np.exp(values), 0.0).sum(axis=1)
    return int(present.any(axis=1).sum()), float(mass.sum())
