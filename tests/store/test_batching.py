"""Batches are exactly full, oldest first, with minimum shares; brute force is the judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atroposlib.store import batching
from atroposlib.store.batching import exact_fill, form_batch


@dataclass(frozen=True, eq=False)
class Queued:
    """A queued group, told apart by identity."""

    sequences: int
    env_id: int | None = None


def queue_of(*sizes: int) -> list[Queued]:
    return [Queued(size) for size in sizes]


def places(queue: Sequence[Queued], chosen: Sequence[Queued] | None) -> list[int] | None:
    return None if chosen is None else [queue.index(group) for group in chosen]


def oldest_first_fill(sizes: Sequence[int], room: int) -> list[int] | None:
    """All choices, the one that takes the older group first; by trying them."""
    for takes in product([True, False], repeat=len(sizes)):
        taken = [index for index, take in enumerate(takes) if take]
        if sum(sizes[index] for index in taken) == room:
            return taken
    return None


@given(st.lists(st.integers(1, 9), max_size=9), st.integers(1, 24))
@settings(max_examples=200, deadline=None)
def test_the_fill_is_the_oldest_first_of_all_exact_ones(sizes: list[int], room: int) -> None:
    queue = queue_of(*sizes)
    assert places(queue, exact_fill(queue, room)) == oldest_first_fill(sizes, room)


def test_a_group_that_does_not_fit_stays_and_heads_the_next_batch() -> None:
    queue = queue_of(4, 6, 4, 2)
    first = form_batch(queue, 8, {})
    assert places(queue, first) == [0, 2]
    rest = [queue[1], queue[3]]
    assert places(queue, form_batch(rest, 8, {})) == [1, 3]


@pytest.mark.parametrize(
    ("sizes", "room", "expected"),
    [
        pytest.param([3, 3, 3, 1], 4, [0, 3], id="sizes that never sum alone (defect 15)"),
        pytest.param([16, *[1] * 16], 8, list(range(1, 9)), id="an oversize group in front (defect 16)"),
        pytest.param([4, 4, 8], 12, [0, 2], id="mixed sizes that sum (defect 16)"),
        pytest.param([3, 3, 3], 4, None, id="no exact fill"),
    ],
)
def test_mixed_sizes_that_stopped_atropos(sizes: list[int], room: int, expected: list[int] | None) -> None:
    queue = queue_of(*sizes)
    assert places(queue, form_batch(queue, room, {})) == expected


def test_the_search_is_bounded_and_looks_at_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = queue_of(3, 6, 5, 4)
    assert places(queue, exact_fill(queue, 10)) == [1, 3]
    monkeypatch.setattr(batching, "MAX_CANDIDATES", 3)
    assert exact_fill(queue, 10) is None
    assert places(queue, exact_fill(queue, 11)) == [1, 2]


def test_a_minimum_is_taken_from_behind_older_groups() -> None:
    queue = [Queued(4, 0), Queued(4, 0), Queued(4, 1), Queued(4, None)]
    assert places(queue, form_batch(queue, 8, {1: 2})) == [0, 2]


def test_a_batch_waits_for_an_environment_with_a_minimum() -> None:
    queue = [Queued(4, 0), Queued(4, 0), Queued(2, 1)]
    assert form_batch(queue, 8, {1: 4}) is None
    assert places(queue, form_batch(queue, 8, {})) == [0, 1]


def test_groups_without_an_environment_fill_beside_a_minimum() -> None:
    queue = [Queued(4, None), Queued(4, 1)]
    assert places(queue, form_batch(queue, 8, {1: 4})) == [0, 1]


def test_both_environments_with_half_a_batch_are_in_it() -> None:
    queue = [Queued(4, 0), Queued(4, 0), Queued(4, 1)]
    assert places(queue, form_batch(queue, 8, {0: 4, 1: 4})) == [0, 2]


def test_a_minimum_yields_when_no_exact_batch_holds_it() -> None:
    queue = [Queued(4, 0), Queued(4, 0), Queued(5, 1)]
    assert places(queue, form_batch(queue, 8, {1: 4})) == [0, 1]
