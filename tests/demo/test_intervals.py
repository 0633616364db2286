"""Interval arithmetic against a count of small ticks."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from atroposlib.demo.intervals import length, overlap, union

spans = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=8)


def ticks(intervals: list[tuple[int, int]]) -> set[int]:
    return {tick for start, end in intervals for tick in range(start, end)}


@given(spans)
def test_union_is_disjoint_and_covers_the_same_moments(intervals: list[tuple[int, int]]) -> None:
    merged = union(intervals)
    assert ticks([(int(start), int(end)) for start, end in merged]) == ticks(intervals)
    assert length(merged) == len(ticks(intervals))
    assert all(before[1] < after[0] for before, after in pairwise(merged))


@given(spans, spans)
def test_overlap_is_the_length_of_the_intersection(
    first: list[tuple[int, int]], second: list[tuple[int, int]]
) -> None:
    assert overlap(union(first), union(second)) == len(ticks(first) & ticks(second))
