"""Which tokens of a batch are trained, on which targets, and what is counted as left out."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from atroposlib.collate import CollateCounts, Rows, TrainSequence, train_sequences
from atroposlib.types import Group, Targets, TeacherTargets
from atroposlib.wire.arrays import to_arrays

VOCABULARY = 100
LN_HALF, LN_QUARTER = math.log(0.5), math.log(0.25)
ABSENT = (-1, -math.inf)

Columns = list[tuple[int, float]]


def make_targets(rows_of: list[dict[int, Columns]], dtype: Any = np.float32) -> Targets:
    """Targets of one sequence for each mapping from position to columns, absent between its positions."""
    width = max((len(columns) for rows in rows_of for columns in rows.values()), default=1)
    starts = [min(rows, default=0) for rows in rows_of]
    counts = [max(rows, default=-1) + 1 - start for rows, start in zip(rows_of, starts, strict=True)]
    table = [
        (rows.get(start + offset, []) + [ABSENT] * width)[:width]
        for rows, start, count in zip(rows_of, starts, counts, strict=True)
        for offset in range(count)
    ]
    return Targets(
        starts=np.array(starts, np.int32),
        counts=np.array(counts, np.int32),
        ids=np.array([[column[0] for column in row] for row in table], np.int32).reshape(-1, width),
        logprobs=np.array([[column[1] for column in row] for row in table], dtype).reshape(-1, width),
    )


def make_group(
    tokens: list[int], trained: list[int], targets: dict[int, Columns] | None, **rest: Any
) -> Group:
    """A group of one sequence."""
    mask = [token if at in trained else -100 for at, token in enumerate(tokens)]
    return Group(
        tokens=[np.array(tokens, np.int32)],
        masks=[np.array(mask, np.int32)],
        scores=[1.0],
        targets=None if targets is None else make_targets([targets]),
        rest=rest,
    )


def sequences_of(*groups: Group, max_token_len: int = 50) -> tuple[list[TrainSequence], CollateCounts]:
    return train_sequences(groups, max_token_len=max_token_len, vocab_size=VOCABULARY)


def rows_of(sequence: TrainSequence) -> Rows:
    """What the only teacher said."""
    (rows,) = sequence.rows.values()
    return rows


def test_target_of_token_p_is_put_at_the_logits_of_p_minus_one() -> None:
    group = make_group([7, 8, 9, 10], [2, 3], {2: [(9, LN_HALF)], 3: [(10, LN_QUARTER), (4, LN_HALF)]})
    (sequence,), counts = sequences_of(group)
    assert sequence.token_ids.tolist() == [7, 8, 9, 10]
    assert rows_of(sequence).positions.tolist() == [1, 2]
    assert rows_of(sequence).ids.tolist() == [[9, -1], [10, 4]]
    np.testing.assert_allclose(rows_of(sequence).logprobs, [[LN_HALF, -9999.0], [LN_QUARTER, LN_HALF]])
    assert (counts.trained_tokens, counts.target_tokens) == (2, 2)


def test_masked_tokens_are_not_trained_although_the_teacher_scored_them() -> None:
    group = make_group([1, 2, 3], [2], {1: [(2, LN_HALF)], 2: [(3, LN_HALF)]})
    (sequence,), _ = sequences_of(group)
    assert rows_of(sequence).positions.tolist() == [1]


def test_token_zero_has_nothing_before_it_and_is_never_trained() -> None:
    group = make_group([1, 2], [0, 1], {0: [(1, LN_HALF)], 1: [(2, LN_HALF)]})
    (sequence,), counts = sequences_of(group)
    assert rows_of(sequence).positions.tolist() == [0]
    assert counts.trained_tokens == 1


def test_trained_token_id_zero_counts_as_trained() -> None:
    (sequence,), _ = sequences_of(make_group([5, 0], [1], {1: [(0, LN_HALF)]}))
    assert rows_of(sequence).ids.tolist() == [[0]]


def test_positions_that_the_teacher_did_not_score_are_untrained_and_counted() -> None:
    (sequence,), counts = sequences_of(make_group([1, 2, 3, 4], [1, 2, 3], {2: [(3, LN_HALF)]}))
    assert rows_of(sequence).positions.tolist() == [1]
    assert (counts.trained_tokens, counts.target_tokens) == (3, 1)
    assert counts.untrained_rows["not_scored"] == 2


def test_targets_of_the_second_sequence_are_its_own() -> None:
    targets_of: list[dict[int, Columns]] = [{1: [(2, LN_HALF)], 2: [(3, LN_HALF)]}, {2: [(9, LN_QUARTER)]}]
    one = make_group([1, 2, 3], [1, 2], None)
    group = replace(
        one,
        tokens=[*one.tokens, np.array([7, 8, 9], np.int32)],
        masks=[*one.masks, np.array([-100, 8, 9], np.int32)],
        scores=[0.0, 1.0],
        targets=make_targets(targets_of),
    )
    first, second = sequences_of(group)[0]
    assert rows_of(first).ids.tolist() == [[2], [3]]
    assert (rows_of(second).positions.tolist(), rows_of(second).ids.tolist()) == ([1], [[9]])
    assert rows_of(second).logprobs.tolist() == [[np.float32(LN_QUARTER)]]


def test_targets_in_float16_are_read_as_float32() -> None:
    group = make_group([1, 2], [1], None)
    half = make_targets([{1: [(2, LN_HALF), (3, LN_QUARTER)]}], np.float16)
    (sequence,), _ = sequences_of(replace(group, targets=half))
    assert rows_of(sequence).logprobs.dtype == np.float32
    expected = np.array([LN_HALF, LN_QUARTER], np.float16).astype(np.float32)
    np.testing.assert_array_equal(rows_of(sequence).logprobs[0], expected)


@pytest.mark.parametrize("targets", [None, {}])
def test_a_sequence_without_rows_is_left_untrained(targets: dict[int, Columns] | None) -> None:
    kept, counts = sequences_of(make_group([1, 2, 3], [1, 2], targets))
    assert kept == []
    assert +counts.untrained_rows == {"no_arrays": 2}
    assert counts.dropped_sequences == {"no_target": 1}
    assert counts.dropped_groups == {"no_target": 1}


def test_sequence_that_only_another_tokenizer_has_scored_is_counted_as_such() -> None:
    other = TeacherTargets(
        {"same_tokenizer": False},
        tokens=[np.array([5, 6], np.int32)],
        targets=make_targets([{1: [(6, LN_HALF)]}]),
        student_chunk_id=[np.array([-1, 0, 0], np.int32)],
        teacher_chunk_id=[np.array([-1, 0], np.int32)],
    )
    kept, counts = sequences_of(replace(make_group([1, 2, 3], [1, 2], None), teachers=[other]))
    assert kept == []
    assert +counts.untrained_rows == {"no_same_tokenizer_target": 2}
    assert counts.dropped_groups == {"no_same_tokenizer_target": 1}


@pytest.mark.parametrize(
    ("ids", "logprobs"),
    [
        ([], []),
        ([[[1], [2], [3]]], [[[-1.0], [-1.0], []]]),
        ([[[1], [2], [3], [4]]], [[[-1.0]] * 4]),
    ],
)
def test_misshapen_arrays_of_an_atropos_server_leave_the_sequence_untrained(ids: Any, logprobs: Any) -> None:
    group: Any = {
        "tokens": [[1, 2, 3]],
        "masks": [[-100, 2, 3]],
        "scores": [1.0],
        "distill_token_ids": ids,
        "distill_logprobs": logprobs,
    }
    kept, counts = sequences_of(to_arrays(group, strict=False))
    assert kept == []
    assert +counts.untrained_rows == {"no_arrays": 2}


def test_ragged_rows_as_atropos_sends_them_are_read() -> None:
    group: Any = {
        "tokens": [[1, 2, 3]],
        "masks": [[-100, 2, 3]],
        "scores": [1.0],
        "distill_token_ids": [[[], [2], [3, 4]]],
        "distill_logprobs": [[[], [LN_HALF], [LN_HALF, LN_QUARTER]]],
    }
    (sequence,), _ = sequences_of(to_arrays(group, strict=False))
    assert rows_of(sequence).ids.tolist() == [[2, -1], [3, 4]]


def test_too_long_sequence_is_dropped_whole_and_the_rest_of_its_group_kept() -> None:
    short = make_group([1, 2, 3], [2], None)
    group = replace(
        short,
        tokens=[*short.tokens, np.array([1, 2, 3, 3], np.int32)],
        masks=[*short.masks, np.array([-100, -100, 3, 3], np.int32)],
        targets=make_targets([{2: [(3, LN_HALF)]}, {3: [(3, LN_HALF)]}]),
    )
    kept, counts = sequences_of(group, max_token_len=3)
    assert [sequence.token_ids.tolist() for sequence in kept] == [[1, 2, 3]]
    assert counts.dropped_sequences == {"too_long": 1}
    assert not counts.dropped_groups


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tokens": [np.array([1, VOCABULARY, 3], np.int32)]}, "token_outside_vocabulary"),
        ({"tokens": [np.array([1, -1, 3], np.int32)]}, "token_outside_vocabulary"),
        ({"masks": [np.array([-100, 2], np.int32)]}, "mask_length"),
        ({"tokens": [], "masks": []}, "empty"),
    ],
)
def test_unreadable_groups_are_dropped_with_a_reason(change: dict[str, Any], reason: str) -> None:
    group = replace(make_group([1, 2, 3], [2], {2: [(3, LN_HALF)]}), **change)
    kept, counts = sequences_of(group)
    assert kept == []
    assert counts.dropped_groups == {reason: 1}


def test_id_listed_twice_counts_once() -> None:
    group = make_group([1, 2], [1], {1: [(2, LN_HALF), (9, LN_QUARTER), (2, LN_HALF)]})
    (sequence,), counts = sequences_of(group)
    assert rows_of(sequence).ids.tolist() == [[2, 9, -1]]
    assert counts.columns.duplicate == 1


def test_ids_the_student_has_no_row_for_leave_the_columns() -> None:
    group = make_group([1, 2], [1], {1: [(2, LN_HALF), (VOCABULARY, LN_QUARTER)]})
    (sequence,), counts = sequences_of(group)
    assert rows_of(sequence).ids.tolist() == [[2, -1]]
    assert counts.columns.out_of_vocabulary == 1


@pytest.mark.parametrize("logprob", [0.5, 400.0, 5000.0, math.inf, math.nan])
def test_values_that_are_no_probabilities_are_never_trained_on(logprob: float) -> None:
    group = make_group([1, 2, 3], [1, 2], {1: [(2, logprob)], 2: [(3, LN_HALF)]})
    (sequence,), counts = sequences_of(group)
    assert rows_of(sequence).positions.tolist() == [1]
    assert counts.untrained_rows["not_probabilities"] == 1


def test_minus_infinity_is_an_absent_column() -> None:
    (sequence,), _ = sequences_of(make_group([1, 2], [1], {1: [(2, LN_HALF), (3, -math.inf)]}))
    assert rows_of(sequence).ids.tolist() == [[2, -1]]


def test_reward_overrides_do_not_change_distillation() -> None:
    plain = make_group([1, 2], [1], {1: [(2, LN_HALF)]})
    zeroed = make_group([1, 2], [1], {1: [(2, LN_HALF)]}, overrides=[{"set_advantage_to_zero": True}])
    (expected,), _ = sequences_of(plain)
    (sequence,), _ = sequences_of(zeroed)
    assert rows_of(sequence).positions.tolist() == rows_of(expected).positions.tolist()
    assert rows_of(sequence).ids.tolist() == rows_of(expected).ids.tolist()
