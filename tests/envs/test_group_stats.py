"""Figures of a group for the journal."""

from __future__ import annotations

import math

import pytest

from atroposlib.envs.group_stats import group_stats

HALF, QUARTER = math.log(0.5), math.log(0.25)


def test_captured_mass_is_the_mean_over_trained_positions_with_a_target() -> None:
    group = {
        "tokens": [[1, 2, 3, 4], [5, 6]],
        "masks": [[-100, -100, 3, 4], [-100, 6]],
        "distill_token_ids": [[[-1, -1], [2, 9], [3, 8], [4, -1]], [[-1, -1], [-1, -1]]],
        "distill_logprobs": [
            [[-9999.0] * 2, [HALF, HALF], [HALF, QUARTER], [QUARTER, -9999.0]],
            [[-9999.0] * 2, [-9999.0] * 2],
        ],
    }
    stats = group_stats(group)
    assert stats["sequences"] == 2
    assert stats["tokens"] == 6
    assert stats["trained_tokens"] == 3
    assert stats["target_tokens"] == 2
    assert stats["captured_mass"] == pytest.approx((0.75 + 0.25) / 2)


def test_ragged_and_missing_rows_count_as_no_target() -> None:
    group = {
        "tokens": [[1, 2, 3, 4], [5, 6], [7, 8]],
        "masks": [[-100, 2, 3, 4], [-100, 6], [-100, 8]],
        "distill_token_ids": [[[], [2, 9], [3]], [], [[], [8]]],
        "distill_logprobs": [[[], [HALF, QUARTER], [QUARTER]], [], [[], [HALF]]],
    }
    stats = group_stats(group)
    assert (stats["trained_tokens"], stats["target_tokens"]) == (5, 3)
    assert stats["captured_mass"] == pytest.approx((0.75 + 0.25 + 0.5) / 3)


def test_group_without_targets_has_no_mass() -> None:
    group = {"tokens": [[1, 2]], "masks": [[-100, 2]], "distill_token_ids": None, "distill_logprobs": None}
    stats = group_stats(group)
    assert (stats["trained_tokens"], stats["target_tokens"], stats["captured_mass"]) == (1, 0, None)
