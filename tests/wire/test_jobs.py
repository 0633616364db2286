"""Bytes in, posted groups or bytes out: what another process does for the API."""

from __future__ import annotations

import gzip
import json
import pickle
from dataclasses import replace
from typing import Any

import pytest

from atroposlib.errors import WireError
from atroposlib.types import ScoredDataGroup
from atroposlib.wire.batch import encode_batch
from atroposlib.wire.checks import check_group
from atroposlib.wire.frame import decode_group, encode_group
from atroposlib.wire.jobs import frame_to_json, json_to_frame, read_batch, read_frame, read_json, weigh
from atroposlib.wire.schema import ATROPOS_KEYS
from tests.wire.support import rich, small


def test_a_frame_is_kept_as_it_came_with_the_facts_of_the_queue() -> None:
    frame = encode_group(rich())
    (group,) = read_frame(frame)
    assert group.payload == frame
    facts = group.facts
    assert (facts.group_id, facts.env_id, facts.sequences, facts.policy_version) == ("a-group", 3, 2, 7)
    assert (facts.format, facts.size, facts.digest) == ("frame", len(frame), None)


def test_a_frame_without_an_id_gets_one_and_a_digest() -> None:
    frames = [encode_group(small(env_id=env_id)) for env_id in (1, 2)]
    first, again, other = (read_frame(frame)[0].facts for frame in (frames[0], frames[0], frames[1]))
    assert len({first.group_id, again.group_id, other.group_id}) == 3
    assert first.digest == again.digest is not None
    assert first.digest != other.digest


def test_frames_are_weighed_without_being_inflated() -> None:
    frame = encode_group(small(images=[7] * 40_000), codec="zstd")
    weight = weigh(frame, batch=False)
    assert len(frame) < 1000
    assert weight.json_bytes > 80_000
    # lengths, tokens, masks: two, three and three numbers of four bytes.
    assert weight.array_bytes == weight.json_bytes + 32
    both = weigh(encode_batch([frame, frame]), batch=True)
    assert (both.array_bytes, both.json_bytes) == (2 * weight.array_bytes, 2 * weight.json_bytes)


def test_a_batch_is_taken_whole_or_not_at_all() -> None:
    frames = [encode_group(rich()), encode_group(small(group_id="b"))]
    assert [group.facts.group_id for group in read_batch(encode_batch(frames))] == ["a-group", "b"]
    with pytest.raises(WireError) as caught:
        read_batch(encode_batch([*frames, encode_group(small(tokens=[[1, -2], [3]]))]))
    assert caught.value.where == "[2].tokens[0][1]"


@pytest.mark.parametrize("gzipped", [False, True])
@pytest.mark.parametrize(
    ("posted", "many", "count"),
    [(small(), False, 1), ([small()] * 2, True, 2), (small(), None, 1), ([small()] * 2, None, 2)],
)
def test_json_is_read_as_the_route_takes_it(
    posted: Any, many: bool | None, count: int, gzipped: bool
) -> None:
    body = json.dumps(posted).encode()
    assert len(read_json(gzip.compress(body) if gzipped else body, gzipped, many)) == count


@pytest.mark.parametrize(("posted", "many"), [([small()], False), (small(), True), ("group", None)])
def test_json_of_another_kind_is_refused(posted: Any, many: bool | None) -> None:
    with pytest.raises(WireError):
        read_json(json.dumps(posted).encode(), False, many)


def test_groups_travel_between_processes() -> None:
    groups = read_json(json.dumps([small(), rich()]).encode(), False, True)
    assert pickle.loads(pickle.dumps(groups)) == groups


def test_json_of_a_frame_has_atropos_keys_and_short_numbers() -> None:
    group = small(inference_logprobs=[[1.0, -0.1], [-0.3]], distill_token_ids=[[[], [2]], []])
    group["distill_logprobs"] = [[[], [-0.1]], []]
    text = frame_to_json(encode_group(group, logprob_dtype="float32"))
    assert list(json.loads(text)) == list(ATROPOS_KEYS)
    assert b'"inference_logprobs":[[1.0,-0.1],[-0.3]]' in text
    assert b'"distill_logprobs":[[[-9999.0],[-0.1]],[[-9999.0]]]' in text
    assert b'"ref_logprobs":null' in text


def test_json_of_a_frame_carries_ours_and_whole_numbers_of_any_size() -> None:
    posted = rich()
    posted["group_overrides"] = {"seed": 2**80}
    back = json.loads(frame_to_json(encode_group(posted)))
    assert back["group_overrides"] == {"seed": 2**80}
    assert (back["group_id"], back["policy_version"]) == ("a-group", 7)
    assert back["teachers"][0]["name"] == "same"
    assert back["distill_token_ids"] == back["teachers"][0]["token_ids"] == [[[-1, -1], [2, 9]], [[3, -1]]]


def stored(**changes: Any) -> bytes:
    """The payload of a group that the Atropos routes took."""
    return read_json(json.dumps(small(**changes)).encode(), False, False)[0].payload


@pytest.mark.parametrize(
    ("ids", "logprobs"),
    [
        pytest.param([[5, 6], [7, 8]], [[-0.1, -0.1], [-1, -2]], id="a sum above one"),
        pytest.param([[-1, -1], [7, 7]], [[5, 5], [-1, -0.1]], id="an id twice"),
        pytest.param([[5], [7]], [[-1e300], [-1]], id="a logprob beyond float32"),
        pytest.param([[5], [7]], [[float("-inf")], [-1]], id="-inf"),
    ],
)
def test_what_a_frame_may_not_carry_is_left_out(ids: Any, logprobs: Any) -> None:
    payload = stored(distill_token_ids=[ids, []], distill_logprobs=[logprobs, []])
    group = decode_group(json_to_frame(payload))
    check_group(group)
    assert group.targets is not None
    assert (group.targets.starts.tolist(), group.targets.counts.tolist()) == ([1, 0], [1, 0])
    assert group.targets.ids[0, 0] == 7


@pytest.mark.parametrize(
    "changes",
    [
        {"ref_logprobs": [[1e300, -1e300], [0]], "inference_logprobs": [[float("-inf"), 1], [5]]},
        {"advantages": [[1e300, 0], [0]]},
        {"advantages": [[], [1, 2, 3]]},
        {"masks": [[-99, -1], [-100]]},
        {"distill_token_ids": [[], []], "distill_logprobs": [[], []]},
        {"distill_token_ids": [[[], []], [[]]], "distill_logprobs": [[[], []], [[]]]},
        {"teachers": [{}, {"tokens": [[], []], "token_ids": [[], []], "logprobs": [[], []]}]},
        {
            "teachers": [
                {"same_tokenizer": "no", "tokens": [[1, 2], [3]], "weight": "much", "token_ids": None}
            ]
        },
        {"messages": [], "images": 2**70, "generation_params": {"": [None]}},
        {"group_id": "\0", "policy_version": -(2**63), "env_id": 2**63 - 1},
        {"scores": [-1e308, 5e-324]},
    ],
)
def test_whatever_json_may_say_becomes_a_frame(changes: dict[str, Any]) -> None:
    frame = json_to_frame(stored(**changes))
    check_group(decode_group(frame))
    read_json(frame_to_json(frame), False, None)


def test_repetitive_groups_stay_readable() -> None:
    row = [7] * 100_000
    payload = stored(tokens=[row] * 8, masks=[row] * 8, scores=[0.0] * 8)
    assert len(decode_group(json_to_frame(payload)).tokens[7]) == 100_000


def test_a_group_of_arrays_needs_no_lists() -> None:
    group = decode_group(encode_group(rich()))
    renamed = replace(group, rest=group.rest | {"group_id": "another"})
    assert read_frame(encode_group(renamed))[0].facts.group_id == "another"


def test_null_fields_are_missing_in_a_frame() -> None:
    posted: ScoredDataGroup = rich() | {"images": None, "ref_logprobs": None}  # type: ignore[assignment]
    group = decode_group(encode_group(posted))
    assert "images" not in group.rest
    assert group.ref_logprobs is None
