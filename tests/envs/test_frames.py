"""What an environment posts: the group's own numbers, less the target rows that no API would take."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from atroposlib.envs.frames import frame_of
from atroposlib.errors import WireError
from atroposlib.types import ABSENT_ID, Targets
from atroposlib.wire.checks import check_group
from atroposlib.wire.frame import decode_group
from tests.envs.fakes import group_of


def group_with(ids: Any, logprobs: Any, **more: Any) -> Any:
    """A group of one sequence of four tokens."""
    return group_of(1.0, distill_token_ids=[ids], distill_logprobs=[logprobs], **more)


def present(targets: Targets | None) -> dict[int, list[int]]:
    """The ids of the first sequence's present rows, by position."""
    assert targets is not None
    rows = {int(targets.starts[0]) + row: ids for row, ids in enumerate(targets.ids.tolist())}
    return {at: [i for i in ids if i != ABSENT_ID] for at, ids in rows.items() if max(ids) != ABSENT_ID}


@pytest.mark.parametrize(("dtype", "error"), [("float16", 0.008), ("float32", 1e-6)])
def test_numbers_of_the_group_arrive(dtype: Any, error: float) -> None:
    group = group_with(
        [[-1, -1], [2, 9], [3, 8], [4, -1]],
        [[-9999.0, -9999.0], [-0.7, -0.9], [-21.3, -0.01], [-1.5, -9999.0]],
        inference_logprobs=[[1.0, 1.0, -0.5, -0.25]],
        policy_version=3,
    )
    frame, masked = frame_of(group, dtype)
    arrived = decode_group(frame)
    check_group(arrived)
    assert masked == {}
    assert arrived.tokens[0].tolist() == group["tokens"][0]
    assert arrived.rest["policy_version"] == 3
    assert arrived.targets is not None
    assert arrived.targets.logprobs.dtype == dtype
    assert present(arrived.targets) == {1: [2, 9], 2: [3, 8], 3: [4]}
    found = arrived.targets.logprobs.astype(np.float64)
    expected = np.array([[-0.7, -0.9], [-21.3, -0.01], [-1.5, -np.inf]])
    np.testing.assert_allclose(found, expected, rtol=0, atol=error)


@pytest.mark.parametrize("row", [[0.5, -9.0], [-0.1, -0.2], [math.nan, -1.0], [math.inf, -1.0]])
def test_a_row_that_is_no_distribution_is_masked_and_the_others_stay(row: list[float]) -> None:
    ids = [[-1, -1], [2, 9], [3, 8], [4, 7]]
    logprobs = [[-9999.0, -9999.0], [-0.7, -0.9], row, [-1.5, -2.5]]
    frame, masked = frame_of(group_with(ids, logprobs), "float16")
    arrived = decode_group(frame)
    check_group(arrived)
    assert masked == {"not_probabilities": 1}
    assert present(arrived.targets) == {1: [2, 9], 3: [4, 7]}


def test_a_sequence_whose_targets_are_misshapen_is_masked_and_the_others_stay() -> None:
    rows = [[-1], [2], [3], [4]]
    group = group_of(
        1.0,
        0.0,
        distill_token_ids=[rows, rows],
        distill_logprobs=[[[-9999.0], [-0.5], [-0.5]], [[-9999.0], [-0.5], [-0.5], [-0.5]]],
    )
    frame, masked = frame_of(group, "float32")
    arrived = decode_group(frame)
    check_group(arrived)
    assert masked == {"misshapen": 3}
    assert arrived.targets is not None
    assert arrived.targets.counts.tolist() == [0, 3]


def test_rows_shared_with_a_teacher_are_counted_once_and_travel_once() -> None:
    ids, logprobs = [[-1], [2], [3], [4]], [[-9999.0], [0.5], [-0.5], [-0.5]]
    teacher = {"name": "big", "same_tokenizer": True, "token_ids": [ids], "logprobs": [logprobs]}
    frame, masked = frame_of(group_with(ids, logprobs, teachers=[teacher]), "float16")
    arrived = decode_group(frame)
    assert masked == {"not_probabilities": 1}
    assert arrived.targets is arrived.teachers[0].targets
    assert present(arrived.targets) == {2: [3], 3: [4]}


def test_rows_of_a_teacher_with_another_tokenizer_are_masked_too() -> None:
    teacher = {
        "name": "big",
        "same_tokenizer": False,
        "tokens": [[5, 6]],
        "token_ids": [[[-1], [6]]],
        "logprobs": [[[-9999.0], [1.0]]],
        "student_chunk_id": [[-1, 0, 0, 0]],
        "teacher_chunk_id": [[-1, 0]],
    }
    frame, masked = frame_of(group_of(1.0, teachers=[teacher]), "float16")
    check_group(decode_group(frame))
    assert masked == {"not_probabilities": 1}


def test_whole_numbers_that_are_written_as_floats_are_ids() -> None:
    group = group_with([[-1.0], [2.0], [3.0], [4.0]], [[-9999.0], [-0.5], [-0.5], [-0.5]])
    listed: Any = {**group, "tokens": np.asarray(group["tokens"], float)}
    listed["masks"] = [[float(value) for value in row] for row in group["masks"]]
    frame, masked = frame_of(listed, "float32")
    arrived = decode_group(frame)
    check_group(arrived)
    assert masked == {}
    assert [row.tolist() for row in arrived.tokens] == group["tokens"]
    assert [row.tolist() for row in arrived.masks] == group["masks"]
    assert present(arrived.targets) == {1: [2], 2: [3], 3: [4]}


@pytest.mark.parametrize("name", ["tokens", "masks"])
def test_ids_of_the_student_are_not_repaired(name: str) -> None:
    group: Any = group_of(1.0)
    group[name] = [[*group[name][0][:-1], 2.5]]
    with pytest.raises(WireError, match=rf"{name}\[0\]"):
        frame_of(group, "float16")


def test_misshapen_targets_in_numpy_are_masked_and_counted() -> None:
    ids = np.asarray([[[-1], [2], [3], [4]]] * 2)
    group = group_of(1.0, 0.0, distill_token_ids=ids, distill_logprobs=np.full((2, 3, 1), -0.5))
    frame, masked = frame_of(group, "float16")
    arrived = decode_group(frame)
    check_group(arrived)
    assert masked == {"misshapen": 6}
    assert arrived.targets is not None
    assert arrived.targets.counts.tolist() == [0, 0]


def test_rows_that_are_a_teachers_alone_are_counted_when_they_are_misshapen() -> None:
    rows = [[-1], [2], [3], [4]]
    teacher = {
        "name": "big",
        "token_ids": [rows, rows],
        "logprobs": [[[-9999.0], [-0.5]], [[-9999.0], [-0.5], [-0.5], [-0.5]]],
    }
    frame, masked = frame_of(group_of(1.0, 0.0, teachers=[teacher]), "float16")
    check_group(decode_group(frame))
    assert masked == {"misshapen": 3}


@pytest.mark.parametrize(
    "changes", [{"tokens": [[5, None]]}, {"tokens": [[5, 6]] * 2}, {"student_chunk_id": [[0]]}]
)
def test_a_teacher_whose_tokens_do_not_fit_is_left_without_targets(changes: dict[str, Any]) -> None:
    teacher = {
        "name": "big",
        "tokens": [[5, 6]],
        "token_ids": [[[-1], [6]]],
        "logprobs": [[[-9999.0], [-1.0]]],
        "student_chunk_id": [[-1, 0, 0, 0]],
        "teacher_chunk_id": [[-1, 0]],
    }
    frame, masked = frame_of(group_of(1.0, teachers=[{**teacher, **changes}]), "float16")
    arrived = decode_group(frame)
    check_group(arrived)
    assert masked == {"misshapen": 1}
    assert arrived.targets is None
    assert arrived.teachers[0].targets is None
    assert arrived.teachers[0].facts == {"name": "big"}


@pytest.mark.parametrize("name", ["inference_logprobs", "ref_logprobs"])
@pytest.mark.parametrize("row", [[1.0, 1.0, -0.5], [1.0, 1.0, -0.5, math.nan]])
def test_logprobs_of_the_student_that_no_api_takes_are_left_out_and_counted(
    name: str, row: list[float]
) -> None:
    rows, logprobs = [[-1], [2], [3], [4]], [[-9999.0], [-0.5], [-0.5], [-0.5]]
    frame, masked = frame_of(group_with(rows, logprobs, **{name: [row]}), "float16")
    arrived = decode_group(frame)
    check_group(arrived)
    assert masked == {name: 1}
    assert getattr(arrived, name) is None
    assert present(arrived.targets) == {1: [2], 2: [3], 3: [4]}


@pytest.mark.parametrize("value", [math.nan, object(), {(1, 2): 3}])
def test_a_member_of_the_environments_own_that_cannot_travel_is_left_out_and_counted(value: Any) -> None:
    frame, masked = frame_of(group_of(1.0, debug=value, note="kept"), "float16")
    assert masked == {"own_member": 1}
    rest = decode_group(frame).rest
    assert "debug" not in rest
    assert rest["note"] == "kept"


def test_half_a_surrogate_pair_in_a_message_costs_no_group() -> None:
    group = group_of(1.0, messages=[[{"role": "user", "content": "a\ud83db😀"}]])
    assert decode_group(frame_of(group, "float16")[0]).rest["messages"][0][0]["content"] == "a?b😀"
