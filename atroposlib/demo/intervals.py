"""Arithmetic on sets of time intervals, in seconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Interval = tuple[float, float]
"""Start and end."""


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same set of moments as disjoint intervals in rising order; empty ones are left out."""
    merged: list[Interval] = []
    for start, end in sorted(interval for interval in intervals if interval[1] > interval[0]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def length(disjoint: Sequence[Interval]) -> float:
    """Total length of disjoint intervals."""
    return sum(end - start for start, end in disjoint)


def overlap(first: Sequence[Interval], second: Sequence[Interval]) -> float:
    """Length of the moments that lie in both of two sets of disjoint intervals."""
    return sum(
        max(0.0, min(a_end, b_end) - max(a_start, b_start))
        for a_start, a_end in first
        for b_start, b_end in second
    )
