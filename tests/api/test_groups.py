"""POST /scored_data and /scored_data_list: what is stored, what is refused and how."""

from __future__ import annotations

import gzip
import json
from typing import Any

import numpy as np
import pytest

from tests.api.support import ApiClient, group, serving


def posted_and_pulled(api: ApiClient, posted: dict[str, Any]) -> dict[str, Any]:
    api.start(batch_size=len(posted["tokens"]))
    assert api.post("/scored_data", posted) == {"status": "received"}
    (pulled,) = api.get("/batch")["batch"]
    return dict(pulled)


def large_group(columns: int) -> dict[str, Any]:
    """A group of 4 x 300 tokens with teacher targets, above the size that is parsed off the loop."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 50_000, size=(4, 300))
    return {
        "tokens": tokens.tolist(),
        "masks": np.where(np.arange(300) < 100, -100, tokens).tolist(),
        "scores": rng.normal(size=4).tolist(),
        "inference_logprobs": (-rng.exponential(size=(4, 300))).tolist(),
        "distill_token_ids": rng.integers(0, 50_000, size=(4, 300, columns)).tolist(),
        "distill_logprobs": (-rng.exponential(size=(4, 300, columns))).tolist(),
        "env_id": 0,
        "group_id": "one",
        "policy_version": 4,
    }


@pytest.mark.parametrize("columns", [1, 33])
def test_a_group_posted_is_the_group_pulled_number_for_number(api: ApiClient, columns: int) -> None:
    posted = large_group(columns)
    pulled = posted_and_pulled(api, posted)
    assert {name: pulled[name] for name in posted} == posted
    assert all(value is None for name, value in pulled.items() if name not in posted)


def test_ragged_rows_leave_rectangular(api: ApiClient) -> None:
    ragged = {
        "distill_token_ids": [[[], [2, 9], [3]], [[], [2], [3, 7, 6]]],
        "distill_logprobs": [[[], [-0.1, -2.5], [-0.2]], [[], [-0.5], [-0.1, -1.5, -3.5]]],
    }
    pulled = posted_and_pulled(api, group(2, **ragged))
    ids, logprobs = np.array(pulled["distill_token_ids"]), np.array(pulled["distill_logprobs"])
    assert ids.shape == logprobs.shape == (2, 3, 3)
    assert (ids == -1).sum() == 11
    assert np.array_equal(logprobs == -9999.0, ids == -1)


def test_a_score_that_is_no_number_is_refused_and_the_run_goes_on(api: ApiClient) -> None:
    """Defect 8: one NaN was stored and cost a whole batch."""
    api.start(batch_size=4)
    answer = api.raw("POST", "/scored_data", json.dumps(group(scores=[0, 1, float("nan"), 3])).encode())
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["body", "scores", 2]
    assert api.counts()["refused"] == 1
    api.post("/scored_data", group())
    assert len(api.get("/batch")["batch"]) == 1


def test_a_negative_infinite_logprob_is_taken_and_delivered(api: ApiClient) -> None:
    """Defect 8: json.dumps writes -Infinity and Atropos's encoder refused it at delivery."""
    infinite = float("-inf")
    body = group(1, distill_token_ids=[[[5]] * 3], distill_logprobs=[[[infinite]] * 3])
    assert posted_and_pulled(api, body)["distill_logprobs"] == [[[-9999.0]] * 3]


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"tokens": [], "masks": [], "scores": []}, id="empty group"),
        pytest.param({"masks": [[1]]}, id="ragged masks"),
        pytest.param({"scores": []}, id="no scores"),
        pytest.param({"tokens": [[1, 2, -5]] * 4}, id="negative token"),
        pytest.param({"messages": [[None]]}, id="null message"),
    ],
)
def test_broken_shapes_are_refused(api: ApiClient, changes: dict[str, Any]) -> None:
    """Defect 19: all of these were accepted with 200, or answered with 500."""
    answer = api.raw("POST", "/scored_data", json.dumps(group() | changes).encode())
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"][0] == "body"
    assert api.counts()["received"] == 0


def test_one_bad_group_refuses_its_list(api: ApiClient) -> None:
    body = json.dumps([group(), group(scores=[1])]).encode()
    answer = api.raw("POST", "/scored_data_list", body)
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["body", 1, "scores"]
    assert api.counts()["received"] == 0


def test_a_repeated_post_is_stored_once(api: ApiClient) -> None:
    """Defect 9: a retry after a lost answer put the group into the batch twice."""
    api.start()
    body = group(group_id="same")
    assert api.post("/scored_data", body) == {"status": "received"}
    assert api.post("/scored_data", body) == {"status": "received"}
    assert api.post("/scored_data_list", [body]) == {"status": "received", "groups_processed": 1}
    assert api.get("/batch") == {"batch": None}
    counts = api.counts()
    assert (counts["received"], counts["duplicates"]) == (1, 2)


def test_groups_without_an_id_are_all_kept(api: ApiClient) -> None:
    api.start()
    api.post("/scored_data_list", [group(), group()])
    assert len(api.get("/batch")["batch"]) == 2


@pytest.mark.parametrize(
    ("body", "status"),
    [
        pytest.param(b"no gzip", 400, id="bad magic"),
        pytest.param(gzip.compress(json.dumps(group()).encode())[:-6], 400, id="truncated"),
        pytest.param(gzip.compress(json.dumps(group()).encode())[:20] + b"\xff" * 30, 400, id="corrupt"),
        pytest.param(gzip.compress(b"{"), 422, id="no JSON inside"),
        pytest.param(b"", 400, id="empty"),
    ],
)
def test_a_broken_gzip_body_is_the_clients_fault(api: ApiClient, body: bytes, status: int) -> None:
    """Defect 12: truncated and corrupt bodies were answered with 500."""
    answer = api.raw("POST", "/scored_data", body, Content_Encoding="gzip")
    assert answer.status_code == status
    if status == 400:
        assert answer.json()["code"] == "wire.bad_encoding"


def test_bodies_beyond_the_limits_are_refused() -> None:
    """Defect 13: plain bodies had no limit either."""
    body = json.dumps(group(messages=[[{"role": "user", "content": "x" * 5000}]])).encode()
    with serving(max_body_bytes=4000) as api:
        answer = api.raw("POST", "/scored_data", body)
        assert (answer.status_code, answer.json()["code"]) == (413, "wire.too_large")
        assert api.raw("POST", "/register", b" " * (2 << 20)).status_code == 413
        packed = gzip.compress(body)
        assert api.raw("POST", "/scored_data", packed, Content_Encoding="gzip").status_code == 200
        assert api.get("/v1/status")["groups"]["refused"] == 1


def test_a_chunked_body_beyond_the_limit_is_refused() -> None:
    with serving(max_body_bytes=4000) as api:
        chunks = iter([b" " * 1000] * 5)
        answer = api.session.post(api.url + "/scored_data", data=chunks, timeout=20)
        assert answer.status_code == 413


def test_a_full_queue_asks_old_clients_to_repeat() -> None:
    """Defect 14: the queue had no end; old clients repeat a post only on 5xx."""
    with serving(max_queued_groups=2, retry_after_s=7) as api:
        api.start()
        api.post("/scored_data_list", [group(), group()])
        answer = api.raw("POST", "/scored_data", json.dumps(group()).encode())
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "7")
        assert answer.json()["code"] == "api.queue_full"
        assert len(api.get("/batch")["batch"]) == 2
        api.post("/scored_data", group())


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Sec_Fetch_Site": "cross-site"},
    ],
)
def test_a_web_page_cannot_wipe_the_run(api: ApiClient, headers: dict[str, str]) -> None:
    """Defect 11: any page could send GET /reset_data and read every answer."""
    api.start()
    answer = api.raw("GET", "/reset_data", **headers)
    assert answer.status_code == 403
    assert "Access-Control-Allow-Origin" not in answer.headers
    assert api.get("/info")["batch_size"] == 8


def test_the_apis_own_pages_may_call_it(api: ApiClient) -> None:
    answer = api.raw("GET", "/info", Origin=api.url, Sec_Fetch_Site="same-origin")
    assert answer.status_code == 200
