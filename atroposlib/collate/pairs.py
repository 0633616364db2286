"""Pairs of a group for losses that prefer one sequence to another: the best score against the worst."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Place(NamedTuple):
    """The place of a sequence in a pair.

    Attributes:
        pair: Which pair of the batch.
        chosen: Whether it is the better one.
    """

    pair: int
    chosen: bool


def best_and_worst(scores: Sequence[float], readable: Sequence[int]) -> tuple[int, int] | None:
    """Indices of the best and of the worst of the readable sequences; None when no score is above another.

    Of equal ones the first counts, so that a group makes the same pair each time.
    """
    if not readable:
        return None
    best = max(readable, key=lambda index: scores[index])
    worst = min(readable, key=lambda index: scores[index])
    return (best, worst) if scores[best] > scores[worst] else None
