"""POST /v1/groups: frames, batches of frames and JSON; identity of groups; what is refused."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
import requests

from atroposlib.wire.batch import encode_batch
from atroposlib.wire.frame import encode_group
from atroposlib.wire.media import BATCH_TYPE, FRAME_TYPE
from tests.api.support import ApiClient, group, registration, serving


def posted(api: ApiClient, body: bytes, media_type: str, **headers: str) -> requests.Response:
    return api.raw("POST", "/v1/groups", body, Content_Type=media_type, **headers)


def statuses(answer: requests.Response) -> list[str]:
    assert answer.status_code in (200, 201), answer.text
    return [member["status"] for member in answer.json()["groups"]]


def targets(sequences: int) -> dict[str, Any]:
    ids = [[[-1, -1], [2, 9], [3, 7]]] * sequences
    logprobs = [[[-9999.0, -9999.0], [-0.5, -1.5], [-0.25, -2.0]]] * sequences
    return {"distill_token_ids": ids, "distill_logprobs": logprobs}


def test_a_frame_is_new_once_and_leaves_batch_as_json(api: ApiClient) -> None:
    api.start(batch_size=4)
    body = group(group_id="one", policy_version=3, **targets(4))
    frame = encode_group(body)
    assert statuses(posted(api, frame, FRAME_TYPE)) == ["new"]
    again = posted(api, frame, FRAME_TYPE)
    assert (again.status_code, statuses(again)) == (200, ["duplicate"])
    assert again.json()["groups"][0]["group_id"] == "one"
    (pulled,) = api.get("/batch")["batch"]
    assert {name: pulled[name] for name in body} == body
    assert api.counts()["duplicates"] == 1


def test_a_large_frame_leaves_batch_as_json(api: ApiClient) -> None:
    api.start(batch_size=2)
    ids = [[[7, 8, 9] for _ in range(6000)]] * 2
    body = group(2) | {
        "tokens": [list(range(6000))] * 2,
        "masks": [[-100] * 6000] * 2,
        "distill_token_ids": ids,
        "distill_logprobs": [[[-1.0, -2.0, -4.0] for _ in range(6000)]] * 2,
    }
    assert statuses(posted(api, encode_group(body, codec="none"), FRAME_TYPE)) == ["new"]
    (pulled,) = api.get("/batch")["batch"]
    assert {name: pulled[name] for name in body} == body


def test_a_batch_is_taken_whole(api: ApiClient) -> None:
    frames = [encode_group(group(token=token, group_id=f"g{token}")) for token in range(3)]
    assert statuses(posted(api, encode_batch(frames), BATCH_TYPE)) == ["new"] * 3
    mixed = encode_batch([frames[2], encode_group(group(token=9, group_id="g9"))])
    answer = posted(api, mixed, BATCH_TYPE)
    assert (answer.status_code, statuses(answer)) == (201, ["duplicate", "new"])
    cut = posted(api, encode_batch(frames)[:-64], BATCH_TYPE)
    assert (cut.status_code, cut.json()["code"]) == (400, "wire.bad_encoding")
    assert api.counts()["received"] == 4


@pytest.mark.parametrize("many", [False, True])
def test_json_is_taken_as_one_object_or_a_list(api: ApiClient, many: bool) -> None:
    body = json.dumps([group()] if many else group()).encode()
    assert statuses(posted(api, body, "application/json")) == ["new"]
    packed = gzip.compress(json.dumps(group(token=5)).encode())
    answer = posted(api, packed, "application/json; charset=utf-8", Content_Encoding="gzip")
    assert statuses(answer) == ["new"]


def test_an_equal_body_within_a_minute_is_a_duplicate(api: ApiClient) -> None:
    body = encode_group(group())
    first = posted(api, body, FRAME_TYPE)
    assert statuses(first) == ["new"]
    second = posted(api, body, FRAME_TYPE)
    assert statuses(second) == ["duplicate"]
    assert second.json() == {
        "groups": [{"group_id": first.json()["groups"][0]["group_id"], "status": "duplicate"}]
    }
    assert statuses(posted(api, encode_group(group(env_id=1)), FRAME_TYPE)) == ["new"]
    api.clock.now += 61.0
    assert statuses(posted(api, body, FRAME_TYPE)) == ["new"]


def test_equal_groups_of_one_post_are_several(api: ApiClient) -> None:
    body = json.dumps([group(), group()]).encode()
    assert statuses(posted(api, body, "application/json")) == ["new", "new"]
    assert statuses(posted(api, body, "application/json")) == ["duplicate", "duplicate"]


@pytest.mark.parametrize(
    ("media_type", "encoding"),
    [
        ("text/plain", "identity"),
        ("", "identity"),
        (FRAME_TYPE, "gzip"),
        ("application/json", "br"),
        ("application/json", "deflate"),
    ],
)
def test_what_is_not_spoken_is_told(api: ApiClient, media_type: str, encoding: str) -> None:
    answer = posted(api, b"x", media_type, Content_Encoding=encoding)
    assert (answer.status_code, answer.json()["code"]) == (415, "wire.unknown_type")
    if encoding == "identity":
        assert FRAME_TYPE in answer.json()["expected"]
        assert BATCH_TYPE in answer.json()["expected"]


def test_a_refused_group_is_told_by_its_field_and_counted(api: ApiClient) -> None:
    wrong = group(distill_token_ids=[[[5]] * 3] * 4, distill_logprobs=[[[-0.5], [0.5], [-0.5]]] * 4)
    answer = posted(api, json.dumps(wrong).encode(), "application/json")
    assert answer.status_code == 422
    assert answer.headers["Content-Type"] == "application/problem+json"
    problem = answer.json()
    assert (problem["code"], problem["status"]) == ("wire.invalid_group", 422)
    assert problem["where"] == "distill_logprobs[0][1][0]"
    assert isinstance(problem["detail"], str)
    assert posted(api, b"?", FRAME_TYPE).status_code in (400, 422)
    counts = api.counts()
    assert (counts["received"], counts["refused"]) == (0, 2)


def test_a_full_queue_is_a_429_here() -> None:
    with serving(max_queued_groups=1, retry_after_s=7) as api:
        assert statuses(posted(api, encode_group(group(env_id=3)), FRAME_TYPE)) == ["new"]
        answer = posted(api, encode_group(group(token=2, env_id=3)), FRAME_TYPE)
        assert (answer.status_code, answer.headers["Retry-After"]) == (429, "7")
        assert answer.json()["code"] == "api.queue_full"
        (wait,) = api.get("/v1/status")["waiting"]
        assert (wait["who"], wait["for"]) == ("environment 3", "room in the queue")
        api.post("/register", registration(batch_size=4))
        assert len(api.get("/batch")["batch"]) == 1
        assert statuses(posted(api, encode_group(group(token=2, env_id=3)), FRAME_TYPE)) == ["new"]
        assert api.get("/v1/status")["waiting"] == []
