"""Lists become arrays: strictly, or with what cannot be trained left out, never with an invented value."""

from __future__ import annotations

import json
from typing import Any, cast

import numpy as np
import pytest

from atroposlib.errors import WireError
from atroposlib.types import Group, ScoredDataGroup, TeacherTargets
from atroposlib.wire.arrays import to_arrays, to_lists
from atroposlib.wire.frame import decode_group, encode_group
from tests.wire.support import rich, small


def arrays(strict: bool = False, **changes: Any) -> Group:
    return to_arrays(cast(ScoredDataGroup, small(**changes)), strict=strict)


def rows(ids: list[Any], logprobs: list[Any]) -> dict[str, Any]:
    """Targets of the first sequence."""
    return {"distill_token_ids": [ids, []], "distill_logprobs": [logprobs, []]}


def test_a_group_as_arrays_has_the_types_that_are_promised() -> None:
    group = to_arrays(rich(), strict=True)
    assert [row.dtype for row in group.tokens + group.masks] == [np.int32] * 4
    assert group.advantages is not None
    assert group.advantages[0].dtype == np.float32
    assert group.targets is not None
    assert (group.targets.ids.dtype, group.targets.logprobs.dtype) == (np.int32, np.float32)
    assert (group.targets.starts.tolist(), group.targets.counts.tolist()) == ([1, 0], [1, 1])
    assert group.targets is group.teachers[0].targets
    assert group.teachers[0].facts == {"name": "same", "weight": 1.0, "same_tokenizer": True}
    other = group.teachers[1]
    assert other.tokens is not None
    assert [row.tolist() for row in other.tokens] == [[11, 12, 13], [14]]
    assert group.rest["env_id"] == 3
    assert not {"tokens", "scores", "teachers", "advantages"} & group.rest.keys()


def test_lists_are_json_without_infinity() -> None:
    group = arrays(inference_logprobs=[[1.0, float("-inf")], [-0.5]], **rows([[], [5, 6]], [[], [-1, -3]]))
    lists = to_lists(group)
    assert lists["inference_logprobs"] == [[1.0, -9999.0], [-0.5]]
    assert lists["distill_logprobs"] == [[[-9999.0, -9999.0], [-1.0, -3.0]], [[-9999.0, -9999.0]]]
    json.dumps(lists, allow_nan=False)


def test_advantages_that_are_not_one_a_token_stay_lists() -> None:
    group = arrays(advantages=[[0.1], [0.2]])
    assert group.advantages is None
    assert to_lists(decode_group(encode_group(group)))["advantages"] == [[0.1], [0.2]]


def test_numbers_beyond_float32_are_clipped() -> None:
    largest = float(np.finfo(np.float32).max)
    group = arrays(ref_logprobs=[[-1e300, 1e300], [0.0]])
    assert group.ref_logprobs is not None
    assert group.ref_logprobs[0].tolist() == [-largest, largest]


def test_the_second_time_an_id_stands_in_a_row_it_is_absent() -> None:
    group = arrays(strict=True, **rows([[5, 6, 5, 6, 7]], [[-1, -3, -2, -4, -5]]))
    assert group.targets is not None
    assert group.targets.ids.tolist() == [[5, 6, -1, -1, 7]]


MISSHAPEN = [
    pytest.param([[5]] * 3, [[-1]] * 3, id="more rows than tokens"),
    pytest.param([[5], [6]], [[-1]], id="fewer rows of logprobs"),
    pytest.param([[5, 6]], [[-1]], id="a shorter row of logprobs"),
    pytest.param([[5.5]], [[-1]], id="ids that are no integers"),
    pytest.param([["a"]], [[-1]], id="ids that are text"),
    pytest.param([[10**30]], [[-1]], id="an id beyond 64 bits"),
    pytest.param([[5]], [["a"]], id="logprobs that are text"),
    pytest.param([[[5]]], [[[-1]]], id="a level too deep"),
    pytest.param([None], [None], id="null in a row's place"),
    pytest.param(None, None, id="null in a sequence's place"),
]


@pytest.mark.parametrize(("ids", "logprobs"), MISSHAPEN)
def test_targets_that_do_not_fit_are_refused_or_leave_their_sequence_untrained(
    ids: Any, logprobs: Any
) -> None:
    changes = {"distill_token_ids": [ids, [[7]]], "distill_logprobs": [logprobs, [[-0.5]]]}
    with pytest.raises(WireError):
        arrays(strict=True, **changes)
    targets = arrays(**changes).targets
    assert targets is not None
    assert targets.counts.tolist() == [0, 1]
    assert targets.ids.tolist() == [[7]]


@pytest.mark.parametrize(
    ("ids", "logprobs"),
    [
        pytest.param([-5, 6], [-1, -2], id="a negative id"),
        pytest.param([2**31, 6], [-1, -2], id="an id beyond 31 bits"),
        pytest.param([5, 6], [-1, float("nan")], id="not a number"),
        pytest.param([5, 6], [float("inf"), -1], id="infinity"),
        pytest.param([5, 6], [0.5, -1], id="above zero"),
        pytest.param([5, 6], [-0.1, -0.1], id="a sum above one"),
    ],
)
def test_a_row_with_a_value_that_is_none_is_absent_as_a_whole(ids: Any, logprobs: Any) -> None:
    targets = arrays(**rows([ids, [7, 8]], [logprobs, [-1.0, -2.0]])).targets
    assert targets is not None
    assert (targets.starts.tolist(), targets.counts.tolist()) == ([1, 0], [1, 0])
    assert targets.ids.tolist() == [[7, 8]]


def test_without_strictness_what_is_no_id_is_not_trained() -> None:
    group = arrays(tokens=[[1, 10**30], [3]], masks=[[1, 10**30], [3]])
    assert group.tokens[0].tolist() == [1, -1]
    assert group.masks[0].tolist() == [1, -100]


def test_without_strictness_arrays_that_do_not_fit_are_none() -> None:
    other = {"tokens": [[1], [2]], "student_chunk_id": [[0], [0]], "teacher_chunk_id": [[0], [0]]}
    group = arrays(ref_logprobs=[[0.0], [0.0]], inference_logprobs=[["a", 0], [0]], teachers=[other])
    assert (group.ref_logprobs, group.inference_logprobs) == (None, None)
    assert group.teachers == [TeacherTargets({})]


def test_tokens_of_another_tokenizer_stay_where_they_equal_the_students() -> None:
    """Chunk ids speak of them; without chunk ids they say nothing that the student's do not."""
    chunks = {"student_chunk_id": [[-1, 0], [-1]], "teacher_chunk_id": [[-1, 0], [-1]]}
    tokens = [[1, 2], [3]]
    group = arrays(teachers=[{"tokens": tokens, **chunks}, {"tokens": tokens}])
    other, same = decode_group(encode_group(group)).teachers
    assert other.tokens is not None
    assert [row.tolist() for row in other.tokens] == tokens
    assert same.tokens is None


@pytest.mark.parametrize(
    ("where", "changes"),
    [
        ("tokens[0]", {"tokens": [[1, 2.5], [3]]}),
        ("tokens[1]", {"tokens": [[1, 2], [2**31]]}),
        ("masks[1]", {"masks": [[1, 2], [3, 4]]}),
        ("scores", {"scores": [1.0]}),
        ("scores", {"scores": [1.0, None]}),
        ("scores", {"scores": None}),
        ("ref_logprobs", {"ref_logprobs": [[0.0], [0.0]]}),
        ("distill_token_ids", {"distill_logprobs": [[], []]}),
        ("distill_logprobs", {"distill_token_ids": [[], []]}),
        ("distill_logprobs", {"distill_token_ids": [[]], "distill_logprobs": [[]]}),
        ("distill_token_ids", rows([[-5]], [[-1]])),
        ("teachers[0].tokens", {"teachers": [{"tokens": [[1]]}]}),
        ("teachers[0].student_chunk_id[0]", {"teachers": [{"student_chunk_id": [[0], [0]]}]}),
    ],
)
def test_strictness_tells_what_does_not_fit(where: str, changes: dict[str, Any]) -> None:
    with pytest.raises(WireError) as caught:
        arrays(strict=True, **changes)
    assert caught.value.where == where


def test_numpy_values_of_an_environment_are_numbers() -> None:
    group = arrays(
        strict=True,
        scores=[np.float32(0.5), np.float64(1)],
        tokens=[np.array([1, 2]), np.array([3])],
        overrides=[{"temperature": np.float32(0.5)}, {"ids": np.arange(2)}],
    )
    lists = to_lists(decode_group(encode_group(group)))
    assert lists["scores"] == [0.5, 1.0]
    assert lists["overrides"] == [{"temperature": 0.5}, {"ids": [0, 1]}]


@pytest.mark.parametrize("bad", [object(), float("nan"), np.float32("nan"), {1: {2: object()}}])
def test_what_json_cannot_carry_is_refused_when_it_is_encoded(bad: Any) -> None:
    with pytest.raises(WireError):
        encode_group(arrays(images=bad))


def test_arrays_of_different_lengths_are_refused_when_they_are_encoded() -> None:
    group = arrays()
    group.masks[0] = np.zeros(3, np.int32)
    with pytest.raises(WireError) as caught:
        encode_group(group)
    assert caught.value.where == "masks[0]"


def test_ids_of_64_bits_are_encoded_when_they_fit_32() -> None:
    group = arrays()
    group.tokens[0] = np.array([1, 2], np.int64)
    assert decode_group(encode_group(group)).tokens[0].tolist() == [1, 2]
    group.tokens[0] = np.array([1, 2**31], np.int64)
    with pytest.raises(WireError):
        encode_group(group)


@pytest.mark.parametrize(
    "facts",
    [
        {"same_tokenizer": 0},
        {"same_tokenizer": np.False_},
        {"student_chunk_id": [[0, 0]]},
        {"teacher_chunk_id": [[0, 1]]},
    ],
)
def test_a_teacher_with_another_tokenizer_never_gives_the_students_targets(facts: dict[str, Any]) -> None:
    entry = {"token_ids": [[[-1], [2]]], "logprobs": [[[-9999.0], [-1.0]]], **facts}
    group: Any = {"tokens": [[1, 2]], "masks": [[-100, 2]], "scores": [1.0], "teachers": [entry]}
    arrays = to_arrays(group, strict=True)
    assert arrays.targets is None
    assert arrays.teachers[0].targets is not None
