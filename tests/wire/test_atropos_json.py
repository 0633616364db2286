"""A posted group is validated, repaired where the contract says so, and otherwise kept number for number."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atroposlib.errors import WireError
from atroposlib.wire.atropos_json import NO_EXAMPLE, batch_parts, decode_group, decode_groups

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

finite = st.floats(allow_nan=False, allow_infinity=False)
ids = st.integers(0, 2**31 - 1)
free_form = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | finite | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def matrix(draw: st.DrawFn, lengths: list[int], values: st.SearchStrategy[Any]) -> list[list[Any]]:
    return [draw(st.lists(values, min_size=length, max_size=length)) for length in lengths]


@st.composite
def groups(draw: st.DrawFn) -> dict[str, Any]:
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    columns = draw(st.integers(0, 3))
    row = st.lists(st.integers(-1, 2**31 - 1), min_size=columns, max_size=columns)
    logprob_row = st.lists(finite, min_size=columns, max_size=columns)
    count = len(lengths)
    required = {
        "tokens": matrix(draw, lengths, ids),
        "masks": matrix(draw, lengths, st.just(-100) | ids),
        "scores": draw(st.lists(finite, min_size=count, max_size=count)),
    }
    messages = st.lists(st.fixed_dictionaries({"role": st.text(), "content": free_form, "reward": free_form}))
    optional = {
        "advantages": matrix(draw, lengths, finite),
        "ref_logprobs": matrix(draw, lengths, finite),
        "inference_logprobs": matrix(draw, lengths, finite),
        "messages": draw(st.lists(messages, max_size=2)),
        "generation_params": draw(st.dictionaries(st.text(), free_form, max_size=3)),
        "overrides": draw(st.lists(st.dictionaries(st.text(), free_form), min_size=count, max_size=count)),
        "group_overrides": draw(st.dictionaries(st.text(), free_form, max_size=3)),
        "images": draw(free_form),
        "env_id": draw(st.integers(-(2**40), 2**40)),
        "distill_token_ids": matrix(draw, lengths, row),
        "distill_logprobs": matrix(draw, lengths, logprob_row),
        "group_id": draw(st.text(min_size=1, max_size=128)),
        "policy_version": draw(st.integers(-1, 2**40)),
    }
    chosen = draw(st.sets(st.sampled_from(sorted(optional))))
    if chosen & {"distill_token_ids", "distill_logprobs"}:
        chosen |= {"distill_token_ids", "distill_logprobs"}
    return required | {key: optional[key] for key in chosen}


def small(**changes: Any) -> dict[str, Any]:
    return {"tokens": [[1, 2], [3]], "masks": [[-100, 2], [3]], "scores": [0.5, 1]} | changes


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
            distill_logprobs=[[[], [-0.1, -2.5], [-0.2, -1.5, -3.5]], [[]]],
        )
    )
    absent, nothing = [-1, -1, -1], [-9999.0, -9999.0, -9999.0]
    assert group["distill_token_ids"] == [[absent, [2, 9, -1], [3, 8, 7]], [absent, absent]]
    assert group["distill_logprobs"] == [
        [nothing, [-0.1, -2.5, -9999.0], [-0.2, -1.5, -3.5]],
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
    assert first.group_id != second.group_id


def test_the_facts_of_the_queue_come_from_the_group() -> None:
    (group,) = decode_group(json.dumps(small(env_id=3, group_id="g", policy_version=7)).encode())
    assert (group.sequences, group.env_id, group.group_id, group.policy_version) == (2, 3, "g", 7)


def test_a_batch_is_the_groups_in_order() -> None:
    posted = [small(env_id=index) for index in range(3)]
    payloads = [group.payload for group in decode_groups(json.dumps(posted).encode())]
    batch = json.loads(b"".join(batch_parts(payloads)))["batch"]
    assert [group["env_id"] for group in batch] == [0, 1, 2]


def test_without_an_example_nine_empty_keys_are_shown() -> None:
    shown = json.loads(NO_EXAMPLE)
    assert set(shown) == {*KEYS[:8], "images"}
    assert all(value == [] for value in shown.values())
