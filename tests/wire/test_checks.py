"""Values that a frame may not carry are refused by the path that the same place has in JSON."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from atroposlib.errors import WireError
from atroposlib.types import Group, Targets
from atroposlib.wire.arrays import to_arrays
from atroposlib.wire.checks import check_group
from atroposlib.wire.frame import decode_group, encode_group
from tests.wire.support import rich, small

NAN, INFINITE = float("nan"), float("inf")


def group_with(rows: dict[int, list[tuple[int, float]]]) -> Group:
    """Two sequences of 600 tokens with 300 rows each, from position 100; ``rows`` by flat index."""
    group = to_arrays(small(tokens=[[1] * 600] * 2, masks=[[1] * 600] * 2), strict=True)
    rng = np.random.default_rng(0)
    ids = np.argsort(rng.random((600, 300)), axis=1).astype(np.int32)[:, :200]
    logprobs = np.full((600, 200), np.log(1 / 201), np.float16)
    for row, entries in rows.items():
        for column, (token, logprob) in enumerate(entries):
            ids[row, column], logprobs[row, column] = token, logprob
    return replace(
        group, targets=Targets(np.full(2, 100, np.int32), np.full(2, 300, np.int32), ids, logprobs)
    )


def refusal(group: Group) -> WireError:
    with pytest.raises(WireError) as caught:
        check_group(group)
    assert caught.value.code == "wire.invalid_group"
    return caught.value


def test_a_sound_group_is_taken() -> None:
    check_group(group_with({}))
    check_group(decode_group(encode_group(rich())))
    check_group(group_with({5: [(-1, -np.inf), (-1, -3.0)]}))


@pytest.mark.parametrize(
    ("row", "entries", "where"),
    [
        (0, [(7000, NAN)], "distill_logprobs[0][100][0]"),
        (299, [(7000, -1), (7001, INFINITE)], "distill_logprobs[0][399][1]"),
        (300, [(7000, -INFINITE)], "distill_logprobs[1][100][0]"),
        (599, [(7000, 0.002)], "distill_logprobs[1][399][0]"),
        (10, [(-1, NAN)], "distill_logprobs[0][110][0]"),
        (10, [(-1, INFINITE)], "distill_logprobs[0][110][0]"),
        (10, [(-2, -1)], "distill_token_ids[0][110][0]"),
        (301, [(7000, -3), (7001, -3), (7000, -3)], "distill_token_ids[1][101][2]"),
        (301, [(7000, -0.005)], "distill_logprobs[1][101]"),
    ],
)
def test_a_bad_value_in_targets_is_told_by_its_path(row: int, entries: Any, where: str) -> None:
    assert refusal(group_with({row: entries})).where == where


def test_a_row_may_sum_to_one_and_a_thousandth() -> None:
    group = to_arrays(
        small(distill_token_ids=[[[5, 6]], []], distill_logprobs=[[[-1.0, -1.0]], []]), strict=True
    )
    assert group.targets is not None
    for mass, taken in [(1.00099, True), (1.00101, False)]:
        logprobs = np.log(np.array([[0.25, mass - 0.25]])).astype(np.float32)
        changed = replace(group, targets=replace(group.targets, logprobs=logprobs))
        if taken:
            check_group(changed)
        else:
            assert refusal(changed).where == "distill_logprobs[0][0]"


def changed(name: str, index: int, position: int, value: float) -> Group:
    """The rich group with one value of a per-token array changed."""
    group = to_arrays(rich(), strict=True)
    holder: Any = group
    if name.startswith("teachers"):
        holder, name = group.teachers[1], name.rpartition(".")[2]
    getattr(holder, name)[index][position] = value
    return group


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tokens", -1),
        ("masks", -101),
        ("advantages", NAN),
        ("advantages", -INFINITE),
        ("ref_logprobs", NAN),
        ("inference_logprobs", INFINITE),
        ("teachers[1].tokens", -1),
        ("teachers[1].student_chunk_id", -2),
        ("teachers[1].teacher_chunk_id", -2),
    ],
)
def test_a_bad_value_in_an_array_is_told_by_its_path(name: str, value: float) -> None:
    assert refusal(changed(name, 0, 1, value)).where == f"{name}[0][1]"


def test_negative_infinity_is_a_logprob_of_the_student() -> None:
    check_group(changed("inference_logprobs", 0, 1, -INFINITE))


def test_a_teachers_value_is_told_with_the_teacher() -> None:
    group = to_arrays(rich(), strict=True)
    targets = group.teachers[1].targets
    assert targets is not None
    targets.logprobs[2, 0] = 0.5
    assert refusal(group).where == "teachers[1].logprobs[1][0][0]"


def test_scores_must_be_finite() -> None:
    assert refusal(replace(to_arrays(small(), strict=True), scores=[0.0, NAN])).where == "scores[1]"
