"""A group is the same after a way through a frame, whatever it holds."""

from __future__ import annotations

import copy
import json
from typing import Any, cast

from hypothesis import given, settings

from atroposlib.types import ScoredDataGroup
from atroposlib.wire.arrays import to_arrays, to_lists
from atroposlib.wire.checks import check_group
from atroposlib.wire.frame import decode_group, encode_group
from atroposlib.wire.jobs import frame_to_json, json_to_frame, read_json
from tests.wire.support import groups, rich, through_frame


def as_group(group: dict[str, Any]) -> ScoredDataGroup:
    return cast(ScoredDataGroup, copy.deepcopy(group))


@given(groups())
@settings(max_examples=150, deadline=None)
def test_lists_come_back_from_a_frame_as_they_went_in(posted: dict[str, Any]) -> None:
    frame = encode_group(as_group(posted), logprob_dtype="float32")
    assert to_lists(decode_group(frame)) == through_frame(posted)


@given(groups())
@settings(max_examples=50, deadline=None)
def test_what_is_encoded_keeps_the_contract(posted: dict[str, Any]) -> None:
    check_group(decode_group(encode_group(as_group(posted), logprob_dtype="float16")))


@given(groups())
@settings(max_examples=100, deadline=None)
def test_a_posted_json_group_becomes_a_frame_and_json_again(posted: dict[str, Any]) -> None:
    (group,) = read_json(json.dumps(posted).encode(), False, None)
    frame = json_to_frame(group.payload)
    check_group(decode_group(frame))
    back = {key: value for key, value in json.loads(frame_to_json(frame)).items() if value is not None}
    assert to_lists(to_arrays(cast(ScoredDataGroup, back), strict=True)) == through_frame(posted)


def test_encoding_again_changes_nothing() -> None:
    frame = encode_group(rich())
    assert encode_group(decode_group(frame)) == frame


def test_a_teacher_that_says_the_same_is_stored_once_and_shared() -> None:
    group = decode_group(encode_group(rich()))
    assert group.targets is not None
    assert group.targets is group.teachers[0].targets
    assert group.targets is not group.teachers[1].targets


def test_targets_of_their_own_stay_beside_a_teacher() -> None:
    posted = rich()
    assert posted["distill_logprobs"] is not None
    posted["distill_logprobs"][0][1][0] = -0.625
    lists = to_lists(decode_group(encode_group(posted)))
    assert lists["distill_logprobs"] == [[[-9999.0, -9999.0], [-0.625, -1.25]], [[-0.125, -9999.0]]]
    assert lists["teachers"] is not None
    assert lists["teachers"][0]["logprobs"] == [[[-9999.0, -9999.0], [-0.5, -1.25]], [[-0.125, -9999.0]]]
