"""Arithmetic on targets against loops over single entries."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from atroposlib.types import Targets
from atroposlib.wire.targets import (
    MOST_MASS,
    compact,
    heavy_rows,
    repeated,
    round_logprobs,
    suspect_rows,
    without_rows,
)


def targets(starts: list[int], counts: list[int], ids: Any, logprobs: Any) -> Targets:
    return Targets(
        np.array(starts, np.int32),
        np.array(counts, np.int32),
        np.array(ids, np.int32),
        np.array(logprobs, np.float32),
    )


def masses(logprobs: NDArray[Any]) -> list[float]:
    return [math.fsum(math.exp(float(value)) for value in row) for row in logprobs]


def test_absent_edges_are_cut_off_and_gaps_stay() -> None:
    nothing, inf = [-1, -1, -1], -math.inf
    found = compact(
        targets(
            [0, 1, 2],
            [4, 2, 1],
            [nothing, [5, -1, -1], nothing, [6, 7, -1], nothing, nothing, [8, -1, -1]],
            [[0, 0, 0], [-1, 0, 0], [-5, -5, -5], [-1, -2, 3], [0, 0, 0], [0, 0, 0], [-1, 0, 0]],
        ),
        np.float32,
    )
    assert (found.starts.tolist(), found.counts.tolist()) == ([1, 0, 2], [3, 0, 1])
    assert found.ids.tolist() == [[5, -1], [-1, -1], [6, 7], [8, -1]]
    assert found.logprobs.tolist() == [[-1, inf], [inf, inf], [-1, -2], [-1, inf]]


def test_an_entry_as_good_as_absent_becomes_absent() -> None:
    found = compact(targets([0], [1], [[4, 5, 6]], [[-0.5, -9999.0, -np.inf]]), np.float16)
    assert found.ids.tolist() == [[4]]
    assert found.logprobs.tolist() == [[-0.5]]


def test_targets_without_a_word_have_no_rows_and_no_columns() -> None:
    for empty in (targets([3], [2], [[-1], [-1]], [[0], [0]]), targets([3], [2], [[], []], [[], []])):
        found = compact(empty, np.float32)
        assert found.ids.shape == found.logprobs.shape == (0, 0)
        assert (found.starts.tolist(), found.counts.tolist()) == ([0], [0])


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_rounding_never_makes_a_row_sum_too_high(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 3, (3000, 64))
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    # Just at the limit, where rounding up is enough to cross it.
    exact = np.log(shares * (MOST_MASS - rng.uniform(0, np.finfo(dtype).eps / 4, (3000, 1))))
    assert max(masses(exact)) <= MOST_MASS
    plain = np.array(masses(exact.astype(dtype)))
    rounded = round_logprobs(exact, dtype)
    assert (plain > MOST_MASS).sum() > 100
    assert max(masses(rounded)) <= MOST_MASS
    kept = plain <= MOST_MASS
    np.testing.assert_array_equal(rounded[kept], exact[kept].astype(dtype))
    below = np.nextafter(exact.astype(dtype), dtype(-np.inf))
    assert (rounded >= below).all()


def test_rounding_leaves_alone_what_was_too_high_before() -> None:
    heavy = np.log(np.full((1, 2), 0.6))
    np.testing.assert_array_equal(round_logprobs(heavy, np.float16), heavy.astype(np.float16))


def test_heavy_rows_are_those_of_a_sum_over_distinct_ids() -> None:
    rng = np.random.default_rng(1)
    ids = rng.integers(-1, 6, (2000, 4)).astype(np.int32)
    logprobs = np.log(rng.uniform(0.01, 0.6, (2000, 4)))
    expected = []
    for row_ids, row in zip(ids.tolist(), logprobs.tolist(), strict=True):
        first = {
            token: value for token, value in reversed(list(zip(row_ids, row, strict=True))) if token != -1
        }
        expected.append(math.fsum(math.exp(value) for value in first.values()) > MOST_MASS)
    assert 100 < sum(expected) < 1900
    assert heavy_rows(ids, logprobs).tolist() == expected


def test_values_that_are_no_logprobs_make_a_row_heavy() -> None:
    ids = np.array([[1, 2]] * 5 + [[1, -1]] * 2, np.int32)
    logprobs = np.array(
        [[-1, -2], [np.nan, -1], [-1, np.inf], [0.01, -9], [-1, -np.inf], [-1, np.nan], [-1, 5]], np.float32
    )
    assert heavy_rows(ids, logprobs).tolist() == [False, True, True, True, False, False, False]


def test_no_heavy_row_escapes_the_fast_look() -> None:
    rng = np.random.default_rng(2)
    shares = rng.dirichlet(np.ones(256), 2000) * rng.uniform(0.9999, 1.002, (2000, 1))
    logprobs = np.log(shares).astype(np.float32)
    heavy = [index for index, mass in enumerate(masses(logprobs)) if mass > MOST_MASS]
    assert 100 < len(heavy) < 1900
    assert set(heavy) <= set(suspect_rows(logprobs).tolist())


def test_repeated_ids_are_found_as_by_a_loop() -> None:
    rng = np.random.default_rng(3)
    ids = rng.integers(-1, 40, (500, 6)).astype(np.int32)
    expected = [
        [token != -1 and token in row[:column] for column, token in enumerate(row)] for row in ids.tolist()
    ]
    assert repeated(ids).tolist() == expected


def test_rows_are_made_absent_in_a_copy() -> None:
    original = targets([0], [2], [[1], [2]], [[-1], [-2]])
    changed = without_rows(original, np.array([False, True]))
    assert changed.ids.tolist() == [[1], [-1]]
    assert original.ids.tolist() == [[1], [2]]
    assert without_rows(original, np.array([False, False])) is original
