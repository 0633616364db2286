"""A posted group is validated, repaired where the contract says so, and otherwise kept number for number."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings

from atroposlib.errors import WireError
from atroposlib.wire.atropos_json import NO_EXAMPLE, decode_any, decode_group, decode_groups
from atroposlib.wire.limits import Limits
from tests.wire.support import groups, rectangular, small

KEYS = [
    "tokens",
    "masks",
    "scores",
    "advantages",
    "ref_logprobs",
    "messages",
    "generation_params",
    "inference_logprobs",
    "overrides",
    "group_overrides",
    "images",
    "env_id",
    "distill_token_ids",
    "distill_logprobs",
]


def decoded(posted: dict[str, Any]) -> dict[str, Any]:
    (group,) = decode_group(json.dumps(posted).encode())
    answer: dict[str, Any] = json.loads(group.payload)
    return answer


def refusal(posted: dict[str, Any]) -> WireError:
    with pytest.raises(WireError) as caught:
        decode_group(json.dumps(posted).encode())
    assert caught.value.code == "wire.invalid_group"
    return caught.value


@given(groups())
@settings(max_examples=60, deadline=None)
def test_a_group_comes_out_number_for_number(posted: dict[str, Any]) -> None:
    expected = dict.fromkeys(KEYS) | posted
    if "distill_token_ids" in posted:
        ids, logprobs = posted["distill_token_ids"], posted["distill_logprobs"]
        columns = max((len(row) for sequence in ids for row in sequence), default=0)
        lengths = [len(tokens) for tokens in posted["tokens"]]
        targets = rectangular(ids, logprobs, lengths, columns)
        expected["distill_token_ids"], expected["distill_logprobs"] = targets
    assert decoded(posted) == expected


def test_old_keys_are_always_there_and_ours_only_when_posted() -> None:
    teacher = {"name": "t", "weight": 0.5, "my_note": [1]}
    assert list(decoded(small())) == KEYS
    riding = decoded(small(group_id="g", policy_version=3, teachers=[teacher], unknown=1))
    assert list(riding) == [*KEYS, "group_id", "policy_version", "teachers"]
    assert (riding["group_id"], riding["policy_version"], riding["teachers"]) == ("g", 3, [teacher])


def test_numbers_are_coerced_as_atropos_does() -> None:
    group = decoded(small(tokens=[["1", 2.0], [3]], scores=["0.5", 1], env_id="4"))
    assert (group["tokens"], group["scores"], group["env_id"]) == ([[1, 2], [3]], [0.5, 1.0], 4)


def test_ragged_rows_become_rectangular_with_absent_columns() -> None:
    group = decoded(
        small(
            tokens=[[1, 2, 3], [4, 5]],
            masks=[[1, 2, 3], [4, 5]],
            distill_token_ids=[[[], [2, 9], [3, 8, 7]], [[]]],
            distill_logprobs=[[[], [-0.1, -2.5], [-0.5, -1.5, -3.5]], [[]]],
        )
    )
    absent, nothing = [-1, -1, -1], [-9999.0, -9999.0, -9999.0]
    assert group["distill_token_ids"] == [[absent, [2, 9, -1], [3, 8, 7]], [absent, absent]]
    assert group["distill_logprobs"] == [
        [nothing, [-0.1, -2.5, -9999.0], [-0.5, -1.5, -3.5]],
        [nothing, nothing],
    ]


def test_empty_distill_rows_are_absent_positions() -> None:
    group = decoded(small(distill_token_ids=[[], []], distill_logprobs=[[], []]))
    assert group["distill_token_ids"] == [[[], []], [[]]]


def test_negative_infinity_in_a_logprob_keeps_its_id() -> None:
    infinite = float("-inf")
    group = decoded(
        small(
            inference_logprobs=[[1.0, infinite], [-0.5]],
            ref_logprobs=[[infinite, -1.0], [-0.5]],
            distill_token_ids=[[[1, 7], [2, 8]], [[3, 9]]],
            distill_logprobs=[[[-0.1, infinite], [-0.2, -3.0]], [[infinite, -0.3]]],
            teachers=[{"token_ids": [[[5]], [[6]]], "logprobs": [[[infinite]], [[-0.4]]]}],
        )
    )
    assert group["distill_token_ids"] == [[[1, 7], [2, 8]], [[3, 9]]]
    assert group["distill_logprobs"] == [[[-0.1, -9999.0], [-0.2, -3.0]], [[-9999.0, -0.3]]]
    assert group["inference_logprobs"] == [[1.0, -9999.0], [-0.5]]
    assert group["ref_logprobs"] == [[-9999.0, -1.0], [-0.5]]
    assert group["teachers"] == [{"token_ids": [[[5]], [[6]]], "logprobs": [[[-9999.0]], [[-0.4]]]}]


NAN, INFINITE = float("nan"), float("inf")
TARGETS = {"distill_token_ids": [[[1], [2]], [[3]]], "distill_logprobs": [[[-0.1], [-0.2]], [[-0.3]]]}


@pytest.mark.parametrize("bad", [NAN, INFINITE])
@pytest.mark.parametrize(
    ("where", "changes"),
    [
        ("scores[1]", lambda bad: {"scores": [0.5, bad]}),
        ("advantages[1][0]", lambda bad: {"advantages": [[0.0, 0.0], [bad]]}),
        ("ref_logprobs[0][1]", lambda bad: {"ref_logprobs": [[0.0, bad], [0.0]]}),
        ("inference_logprobs[1][0]", lambda bad: {"inference_logprobs": [[1.0, 1.0], [bad]]}),
        ("distill_logprobs[0][1][0]", lambda bad: TARGETS | {"distill_logprobs": [[[-1], [bad]], [[-1]]]}),
        ("messages[0][0].reward", lambda bad: {"messages": [[{"role": "", "content": "", "reward": bad}]]}),
        ("generation_params.top_p[1]", lambda bad: {"generation_params": {"top_p": [1, bad]}}),
        ("overrides[1].temperature", lambda bad: {"overrides": [{}, {"temperature": bad}]}),
        ("group_overrides.a.b", lambda bad: {"group_overrides": {"a": {"b": bad}}}),
        ("images[0]", lambda bad: {"images": [bad]}),
        ("teachers[0].logprobs[1][0][0]", lambda bad: {"teachers": [{"logprobs": [[], [[bad]]]}]}),
        ("teachers[0].weight", lambda bad: {"teachers": [{"weight": bad}]}),
    ],
)
def test_a_number_that_is_not_finite_is_refused_by_its_path(where: str, changes: Any, bad: float) -> None:
    assert refusal(small(**changes(bad))).where == where


def test_negative_infinity_is_refused_where_no_logprob_stands() -> None:
    assert refusal(small(scores=[0.5, -INFINITE])).where == "scores[1]"
    assert refusal(small(group_overrides={"a": -INFINITE})).where == "group_overrides.a"


@pytest.mark.parametrize(
    ("where", "changes"),
    [
        ("tokens", {"tokens": [], "masks": [], "scores": []}),
        ("tokens[1]", {"tokens": [[1, 2], []], "masks": [[1, 2], []]}),
        ("masks", {"masks": [[1, 2]]}),
        ("masks[0]", {"masks": [[1], [3]]}),
        ("scores", {"scores": [1.0]}),
        ("ref_logprobs[1]", {"ref_logprobs": [[0, 0], [0, 0]]}),
        ("inference_logprobs", {"inference_logprobs": [[0, 0]]}),
        ("advantages", {"advantages": [[0, 0]]}),
        ("overrides", {"overrides": [{}]}),
        ("distill_logprobs", TARGETS | {"distill_logprobs": None}),
        ("distill_token_ids", {"distill_logprobs": TARGETS["distill_logprobs"]}),
        ("distill_token_ids", TARGETS | {"distill_token_ids": [[[1], [2]]]}),
        (
            "distill_token_ids[1]",
            {"distill_token_ids": [[], [[3], [4]]], "distill_logprobs": [[], [[-1], [-1]]]},
        ),
        ("distill_logprobs[0]", TARGETS | {"distill_logprobs": [[[-1]], [[-1]]]}),
        ("distill_logprobs[0][1]", TARGETS | {"distill_logprobs": [[[-1], [-1, -2]], [[-1]]]}),
        ("teachers[0].tokens", {"teachers": [{"tokens": [[1]]}]}),
        ("teachers[0].logprobs[1]", {"teachers": [{"token_ids": [[], [[1]]], "logprobs": [[], []]}]}),
        ("teachers[0].token_ids", {"teachers": [{"logprobs": [[], []]}]}),
        (
            "teachers[0].token_ids[1]",
            {"teachers": [{"token_ids": [[], [[], []]], "logprobs": [[], [[], []]]}]},
        ),
        ("teachers[0].student_chunk_id[0]", {"teachers": [{"student_chunk_id": [[0], [0]]}]}),
        (
            "teachers[0].teacher_chunk_id[1]",
            {"teachers": [{"tokens": [[], [5, 6]], "teacher_chunk_id": [[], [0]]}]},
        ),
    ],
)
def test_lengths_that_do_not_agree_are_refused_by_their_path(where: str, changes: dict[str, Any]) -> None:
    assert refusal(small(**changes)).where == where


@pytest.mark.parametrize(
    ("where", "changes"),
    [
        ("tokens[0][1]", {"tokens": [[1, -5], [3]]}),
        ("tokens[0][1]", {"tokens": [[1, 1e30], [3]]}),
        ("tokens[0][1]", {"tokens": [[1, 10**30], [3]]}),
        ("tokens[0][1]", {"tokens": [[1, 7.5], [3]]}),
        ("tokens[0][1]", {"tokens": [[1, None], [3]]}),
        ("masks[1][0]", {"masks": [[1, 2], [-101]]}),
        ("distill_token_ids[1][0][0]", TARGETS | {"distill_token_ids": [[[1], [2]], [[-2]]]}),
        ("advantages[0]", {"advantages": [1, 1]}),
        ("messages[0][0]", {"messages": [[None]]}),
        ("messages[0][0].content", {"messages": [[{"role": "user"}]]}),
        ("group_id", {"group_id": ""}),
    ],
)
def test_values_of_a_wrong_kind_are_refused_by_their_path(where: str, changes: dict[str, Any]) -> None:
    assert refusal(small(**changes)).where == where


def test_a_missing_field_is_named() -> None:
    posted = small()
    del posted["masks"]
    assert refusal(posted).where == "masks"


def test_a_million_errors_are_told_in_one_line() -> None:
    error = refusal(small(tokens=[[-1] * 1000] * 1000))
    assert error.where == "tokens[0][0]"
    assert len(str(error)) < 300


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff\xfe", b'{"tokens": [[1]]' + b"[" * 5000])
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(WireError):
        decode_group(body)


def test_a_list_tells_which_of_its_groups_is_bad() -> None:
    body = json.dumps([small(), small(scores=[1])]).encode()
    with pytest.raises(WireError) as caught:
        decode_groups(body)
    assert caught.value.where == "[1].scores"


def test_groups_without_an_id_get_different_ones() -> None:
    first, second = decode_groups(json.dumps([small(), small()]).encode())
    assert first.facts.group_id != second.facts.group_id


def test_the_facts_of_the_queue_come_from_the_group() -> None:
    (group,) = decode_group(json.dumps(small(env_id=3, group_id="g", policy_version=7)).encode())
    facts = group.facts
    assert (facts.sequences, facts.env_id, facts.group_id, facts.policy_version) == (2, 3, "g", 7)
    assert (facts.format, facts.size, facts.digest) == ("json", len(group.payload), None)


def test_a_digest_tells_an_equal_post_of_the_same_environment() -> None:
    bodies = [
        json.dumps(small(env_id=env_id, scores=[score, 1])).encode()
        for env_id, score in [(1, 0), (1, 0), (2, 0), (1, 1)]
    ]
    digests = [decode_group(body)[0].facts.digest for body in bodies]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3
    assert None not in digests


def row(ids: list[int], logprobs: list[float]) -> dict[str, Any]:
    """A group with this row at the second position of its first sequence, and as a teacher's."""
    return small(distill_token_ids=[[[], ids], []], distill_logprobs=[[[], logprobs], []])


def test_a_logprob_above_zero_is_refused_where_its_id_is_present() -> None:
    assert refusal(row([5, 6], [-1.0, 0.002])).where == "distill_logprobs[0][1][1]"
    assert decoded(row([5, -1], [0.001, 5.0]))["distill_logprobs"][0][1] == [0.001, 5.0]
    teacher = {"token_ids": [[[4]], []], "logprobs": [[[0.5]], []]}
    assert refusal(small(teachers=[{}, teacher])).where == "teachers[1].logprobs[0][0][0]"


HEAVY = row([5, 6], [-0.1, -0.1])


def test_a_row_that_sums_above_one_is_kept_for_old_environments_and_refused_on_v1() -> None:
    body = json.dumps(HEAVY).encode()
    assert decoded(HEAVY)["distill_logprobs"][0][1] == [-0.1, -0.1]
    assert len(decode_groups(b"[" + body + b"]")) == 1
    with pytest.raises(WireError) as caught:
        decode_any(body)
    assert caught.value.where == "distill_logprobs[0][1]"
    with pytest.raises(WireError) as caught:
        decode_any(b" [" + body + b"]")
    assert caught.value.where == "[0].distill_logprobs[0][1]"


@pytest.mark.parametrize(
    ("ids", "logprobs"),
    [
        pytest.param([5, 6], [-0.6931, -0.6931], id="one, but for rounding"),
        pytest.param([5, 5], [-0.1, -0.1], id="an id that is listed twice counts once"),
        pytest.param([5, -1], [-0.1, -0.1], id="an absent entry does not count"),
    ],
)
def test_v1_takes_a_row_that_sums_to_one(ids: list[int], logprobs: list[float]) -> None:
    (group,) = decode_any(json.dumps(row(ids, logprobs)).encode())
    assert json.loads(group.payload)["distill_token_ids"][0][1] == ids


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("where", "changes"),
    [
        ("tokens", {"tokens": [[1]] * 4, "masks": [[1]] * 4, "scores": [0] * 4}),
        ("tokens[1]", {"tokens": [[1, 2], [1] * 6], "masks": [[1, 2], [1] * 6]}),
        ("distill_token_ids", row([1, 2, 3], [-2, -2, -2])),
        ("teachers", {"teachers": [{}, {}, {}]}),
        ("teachers[0].tokens[0]", {"teachers": [{"tokens": [[1] * 6, []]}]}),
        ("images[0][0][0]", {"images": nested(4)}),
        ("teachers[0].note[0]", {"teachers": [{"note": nested(2)}]}),
        ("messages", {"images": [1] * 40}),
        (None, {"distill_token_ids": [[], [[7] * 2]], "distill_logprobs": [[], [[-2] * 2]]}),
    ],
)
def test_what_is_beyond_a_limit_is_too_large(where: str | None, changes: dict[str, Any]) -> None:
    limits = Limits(sequences=3, tokens=5, columns=2, teachers=2, json_depth=4, rest_values=30, cells=5)
    with pytest.raises(WireError) as caught:
        decode_group(json.dumps(small(**changes)).encode(), limits)
    assert (caught.value.code, caught.value.where) == ("wire.too_large", where)


def test_a_batch_is_the_groups_in_order() -> None:
    posted = [small(env_id=index) for index in range(3)]
    payloads = [group.payload for group in decode_groups(json.dumps(posted).encode())]
    batch = [json.loads(payload) for payload in payloads]
    assert [group["env_id"] for group in batch] == [0, 1, 2]


def test_without_an_example_nine_empty_keys_are_shown() -> None:
    shown = json.loads(NO_EXAMPLE)
    assert set(shown) == {*KEYS[:8], "images"}
    assert all(value == [] for value in shown.values())
