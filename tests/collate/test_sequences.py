"""Which tokens of a batch are trained, on which targets, and what is counted as left out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from atroposlib.collate import CollateCounts, TrainSequence, train_sequences

VOCABULARY = 100
LN_HALF, LN_QUARTER = math.log(0.5), math.log(0.25)


def make_group(
    tokens: list[int], trained: list[int], targets: dict[int, list[tuple[int, float]]], **extra: Any
) -> dict[str, Any]:
    """A group of one sequence; ``targets`` maps a position to its columns, absent elsewhere."""
    width = max((len(columns) for columns in targets.values()), default=1)
    absent = [(-1, -9999.0)] * width
    rows = [(targets.get(position, []) + absent)[:width] for position in range(len(tokens))]
    group = {
        "tokens": [tokens],
        "masks": [[token if at in trained else -100 for at, token in enumerate(tokens)]],
        "scores": [1.0],
        "distill_token_ids": [[[column[0] for column in row] for row in rows]],
        "distill_logprobs": [[[column[1] for column in row] for row in rows]],
    }
    return {**group, **extra}


def sequences_of(*groups: Any, max_token_len: int = 50) -> tuple[list[TrainSequence], CollateCounts]:
    return train_sequences(groups, max_token_len=max_token_len, vocab_size=VOCABULARY)


def test_target_of_token_p_is_put_at_the_logits_of_p_minus_one() -> None:
    group = make_group([7, 8, 9, 10], [2, 3], {2: [(9, LN_HALF)], 3: [(10, LN_QUARTER), (4, LN_HALF)]})
    (sequence,), counts = sequences_of(group)
    assert sequence.token_ids.tolist() == [7, 8, 9, 10]
    assert sequence.positions.tolist() == [1, 2]
    assert sequence.target_ids.tolist() == [[9, -1], [10, 4]]
    np.testing.assert_allclose(sequence.target_logprobs, [[LN_HALF, -9999.0], [LN_QUARTER, LN_HALF]])
    assert (counts.trained_tokens, counts.target_tokens) == (2, 2)


def test_masked_tokens_are_not_trained_although_the_teacher_scored_them() -> None:
    group = make_group([1, 2, 3], [2], {1: [(2, LN_HALF)], 2: [(3, LN_HALF)]})
    (sequence,), _ = sequences_of(group)
    assert sequence.positions.tolist() == [1]


def test_token_zero_has_nothing_before_it_and_is_never_trained() -> None:
    group = make_group([1, 2], [0, 1], {0: [(1, LN_HALF)], 1: [(2, LN_HALF)]})
    (sequence,), counts = sequences_of(group)
    assert sequence.positions.tolist() == [0]
    assert counts.trained_tokens == 1


def test_trained_token_id_zero_counts_as_trained() -> None:
    (sequence,), _ = sequences_of(make_group([5, 0], [1], {1: [(0, LN_HALF)]}))
    assert sequence.target_ids.tolist() == [[0]]


def test_positions_that_the_teacher_did_not_score_are_untrained_and_counted() -> None:
    (sequence,), counts = sequences_of(make_group([1, 2, 3, 4], [1, 2, 3], {2: [(3, LN_HALF)]}))
    assert sequence.positions.tolist() == [1]
    assert (counts.trained_tokens, counts.target_tokens) == (3, 1)
    assert counts.untrained_rows["not_scored"] == 2


@pytest.mark.parametrize(
    "arrays",
    [
        {"distill_token_ids": None, "distill_logprobs": None},
        {"distill_token_ids": [], "distill_logprobs": []},
        {"distill_token_ids": [[[1], [2]]], "distill_logprobs": [[[-1.0], [-1.0]]]},
        {"distill_token_ids": [[[1], [2], [3]]], "distill_logprobs": [[[-1.0], [-1.0], []]]},
    ],
)
def test_missing_or_misshapen_arrays_leave_the_sequence_untrained(arrays: dict[str, Any]) -> None:
    kept, counts = sequences_of(make_group([1, 2, 3], [1, 2], {}, **arrays))
    assert kept == []
    assert counts.untrained_rows == {"no_arrays": 2}
    assert counts.dropped_sequences == {"no_target": 1}
    assert counts.dropped_groups == {"no_target": 1}


def test_ragged_rows_as_atropos_sends_them_are_read() -> None:
    group = make_group([1, 2, 3], [1, 2], {})
    group["distill_token_ids"] = [[[], [2], [3, 4]]]
    group["distill_logprobs"] = [[[], [LN_HALF], [LN_HALF, LN_QUARTER]]]
    (sequence,), _ = sequences_of(group)
    assert sequence.target_ids.tolist() == [[2, -1], [3, 4]]


def test_too_long_sequence_is_dropped_whole_and_the_rest_of_its_group_kept() -> None:
    group = make_group([1, 2, 3], [2], {2: [(3, LN_HALF)]})
    for key in ("tokens", "masks", "distill_token_ids", "distill_logprobs"):
        sequence = group[key][0]
        group[key].append([*sequence, sequence[-1]])
    kept, counts = sequences_of(group, max_token_len=3)
    assert [sequence.token_ids.tolist() for sequence in kept] == [[1, 2, 3]]
    assert counts.dropped_sequences == {"too_long": 1}
    assert not counts.dropped_groups


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tokens": [[1, VOCABULARY, 3]]}, "token_outside_vocabulary"),
        ({"tokens": [[1, -1, 3]]}, "token_outside_vocabulary"),
        ({"masks": [[-100, 2]]}, "mask_length"),
        ({"tokens": [], "masks": []}, "empty"),
    ],
)
def test_unreadable_groups_are_dropped_with_a_reason(change: dict[str, Any], reason: str) -> None:
    kept, counts = sequences_of(make_group([1, 2, 3], [2], {2: [(3, LN_HALF)]}) | change)
    assert kept == []
    assert counts.dropped_groups == {reason: 1}


def test_id_listed_twice_counts_once() -> None:
    group = make_group([1, 2], [1], {1: [(2, LN_HALF), (9, LN_QUARTER), (2, LN_HALF)]})
    (sequence,), counts = sequences_of(group)
    assert sequence.target_ids.tolist() == [[2, 9, -1]]
    assert counts.duplicate_columns == 1


def test_ids_the_student_has_no_row_for_leave_the_columns() -> None:
    group = make_group([1, 2], [1], {1: [(2, LN_HALF), (VOCABULARY, LN_QUARTER)]})
    (sequence,), counts = sequences_of(group)
    assert sequence.target_ids.tolist() == [[2, -1]]
    assert counts.out_of_vocabulary == 1


@pytest.mark.parametrize("logprob", [0.5, 400.0, 5000.0, math.inf, math.nan])
def test_values_that_are_no_probabilities_are_never_trained_on(logprob: float) -> None:
    group = make_group([1, 2, 3], [1, 2], {1: [(2, logprob)], 2: [(3, LN_HALF)]})
    (sequence,), counts = sequences_of(group)
    assert sequence.positions.tolist() == [1]
    assert counts.untrained_rows["not_probabilities"] == 1


def test_minus_infinity_is_an_absent_column() -> None:
    (sequence,), _ = sequences_of(make_group([1, 2], [1], {1: [(2, LN_HALF), (3, -math.inf)]}))
    assert sequence.target_ids.tolist() == [[2, -1]]


def test_reward_overrides_do_not_change_distillation() -> None:
    plain = make_group([1, 2], [1], {1: [(2, LN_HALF)]})
    zeroed = make_group([1, 2], [1], {1: [(2, LN_HALF)]}, overrides=[{"set_advantage_to_zero": True}])
    (expected,), _ = sequences_of(plain)
    (sequence,), _ = sequences_of(zeroed)
    assert sequence.positions.tolist() == expected.positions.tolist()
    assert sequence.target_ids.tolist() == expected.target_ids.tolist()
