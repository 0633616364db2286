"""Leases over HTTP: delivery as frames and as JSON, ack, commit, expiry, replay, dead letters."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from atroposlib.wire.batch import decode_batch
from atroposlib.wire.frame import encode_group
from atroposlib.wire.media import BATCH_TYPE, FRAME_TYPE
from tests.api.support import ApiClient, group, registration, serving


@pytest.fixture(params=["memory", "sqlite"])
def leasing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ApiClient]:
    """An API over each store, with the trainer ``t`` registered for batches of 8."""
    store = "memory" if request.param == "memory" else f"sqlite:///{tmp_path / 'queue.sqlite3'}"
    with serving(store=store) as api:
        register(api)
        yield api


def register(api: ApiClient, trainer_id: str = "t", **changes: Any) -> dict[str, Any]:
    body = {"trainer_id": trainer_id, "run": registration()} | changes
    answer: dict[str, Any] = api.post("/v1/trainers", body)
    return answer


def lease(api: ApiClient, trainer_id: str = "t", accept: str = BATCH_TYPE, **asked: Any) -> requests.Response:
    body = json.dumps({"trainer_id": trainer_id, **asked}).encode()
    return api.raw("POST", "/v1/batches/lease", body, Accept=accept)


def leased(answer: requests.Response) -> tuple[str, int, list[int]]:
    """Batch id, attempt and first tokens of a batch of frames."""
    assert answer.status_code == 200, answer.text
    groups = decode_batch(answer.content)
    tokens = [int(member.tokens[0][0]) for member in groups]
    return answer.headers["Atropos-Batch-Id"], int(answer.headers["Atropos-Attempt"]), tokens


def act(api: ApiClient, batch_id: str, action: str, **body: Any) -> requests.Response:
    return api.raw("POST", f"/v1/batches/{batch_id}/{action}", json.dumps(body).encode())


def fill(api: ApiClient, count: int) -> None:
    for token in range(count):
        api.post("/scored_data", group(token=token, group_id=f"g{token}"))


def test_a_batch_is_leased_acked_and_committed(leasing: ApiClient) -> None:
    fill(leasing, 2)
    batch_id, attempt, tokens = leased(answer := lease(leasing, lease_s=60))
    assert (attempt, tokens) == (1, [0, 1])
    assert answer.headers["Content-Type"] == BATCH_TYPE
    assert float(answer.headers["Atropos-Lease-Expires"]) == leasing.clock.now + 60
    assert answer.headers["Atropos-Step"] == "0"
    assert leasing.counts()["leased"] == 2
    renewed = act(leasing, batch_id, "heartbeat", attempt=1, lease_s=100)
    assert renewed.json() == {"expires_at": leasing.clock.now + 100}
    assert act(leasing, batch_id, "ack", attempt=1).json() == {"step": 1}
    assert act(leasing, batch_id, "ack", attempt=None).json() == {"step": 1}
    status = leasing.get("/v1/status")
    assert (status["uncommitted"], status["groups"]["trained"], status["step"]) == (2, 2, 1)
    assert leasing.post("/v1/trainers/t/commit", {"batch_id": batch_id}) == {"committed": 1}
    assert leasing.post("/v1/trainers/t/commit", {"batch_id": batch_id}) == {"committed": 0}
    status = leasing.get("/v1/status")
    assert (status["uncommitted"], status["held_bytes"]) == (0, 0)
    assert status["trainers"][0]["last_committed"] == batch_id


def test_both_formats_are_one_queue(leasing: ApiClient) -> None:
    """A group posted as JSON leaves /v1, a frame leaves /batch, with identical numbers."""
    extras = {
        "inference_logprobs": [[1.0, -0.5, -0.25]] * 4,
        "distill_token_ids": [[[-1], [2], [3]]] * 4,
        "distill_logprobs": [[[-9999.0], [-0.5], [-1.5]]] * 4,
    }
    leasing.post("/scored_data", group(token=1, **extras))
    frame = encode_group(group(token=2, **extras))
    assert leasing.raw("POST", "/v1/groups", frame, Content_Type=FRAME_TYPE).status_code == 201
    groups = decode_batch(lease(leasing).content)
    for member, token in zip(groups, (1, 2), strict=True):
        assert member.tokens[0].tolist() == [token, token + 1, token + 2]
        assert member.inference_logprobs is not None
        assert member.inference_logprobs[3].tolist() == [1.0, -0.5, -0.25]
        assert member.targets is not None
        assert member.targets.starts.tolist() == [1] * 4
        assert member.targets.counts.tolist() == [2] * 4
        assert member.targets.ids[:2].tolist() == [[2], [3]]
        assert member.targets.logprobs[:2].tolist() == [[-0.5], [-1.5]]


def test_a_batch_can_be_asked_for_as_json(leasing: ApiClient) -> None:
    fill(leasing, 2)
    answer = lease(leasing, accept="application/json")
    told = answer.json()
    assert answer.headers["Content-Type"] == "application/json"
    assert told["batch_id"] == answer.headers["Atropos-Batch-Id"]
    assert (told["attempt"], told["step"]) == (1, 0)
    assert [member["group_id"] for member in told["batch"]] == ["g0", "g1"]


def test_a_lease_waits_for_the_group_that_completes_the_batch(leasing: ApiClient) -> None:
    fill(leasing, 1)
    answers: list[requests.Response] = []

    def wait() -> None:
        url = f"{leasing.url}/v1/batches/lease"
        answers.append(requests.post(url, json={"trainer_id": "t", "wait_s": 30}, timeout=60))

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not (waits := leasing.get("/v1/status")["waiting"]):
        pass
    assert (waits[0]["who"], waits[0]["why"]) == ("trainer t", "4 of 8 sequences are queued")
    leasing.post("/scored_data", group(token=1))
    waiting.join(timeout=20)
    assert leased(answers[0])[2] == [0, 1]
    assert leasing.get("/v1/status")["waiting"] == []


def test_without_enough_groups_the_answer_is_empty(leasing: ApiClient) -> None:
    assert lease(leasing).status_code == 204
    fill(leasing, 1)
    assert lease(leasing).status_code == 204
    assert leased(lease(leasing, n_sequences=4))[2] == [0]


def test_an_expired_lease_is_delivered_again_and_the_old_one_is_lost(leasing: ApiClient) -> None:
    fill(leasing, 2)
    batch_id, _, tokens = leased(lease(leasing, lease_s=10))
    leasing.clock.now += 11.0
    while not (answer := lease(leasing, lease_s=10)).ok or answer.status_code == 204:
        pass
    assert leased(answer) == (batch_id, 2, tokens)
    for action, body in [("ack", {}), ("heartbeat", {"lease_s": 5}), ("nack", {})]:
        lost = act(leasing, batch_id, action, attempt=1, **body)
        assert (lost.status_code, lost.json()["code"]) == (409, "api.lease_lost")
    assert act(leasing, batch_id, "ack", attempt=2).json() == {"step": 1}


def test_a_batch_that_nobody_can_use_becomes_a_dead_letter(leasing: ApiClient) -> None:
    fill(leasing, 2)
    for attempt in range(1, 6):
        batch_id, told, _ = leased(lease(leasing))
        assert told == attempt
        assert act(leasing, batch_id, "nack", attempt=attempt, reason="no target").status_code == 204
    assert lease(leasing).status_code == 204
    (letter,) = leasing.get("/v1/dead-letters")["dead_letters"]
    assert (letter["batch_id"], letter["attempts"]) == (batch_id, 5)
    assert "no target" in letter["reason"]
    assert letter["groups"] == ["g0", "g1"]
    assert leasing.counts()["dead"] == 2
    unknown = leasing.raw("POST", "/v1/dead-letters/requeue", b'{"batch_id": "other"}')
    assert (unknown.status_code, unknown.json()["code"]) == (404, "api.unknown_batch")
    assert leasing.post("/v1/dead-letters/requeue", {"batch_id": batch_id}) == {"requeued": 2}
    assert leased(lease(leasing))[2] == [0, 1]


def test_a_trainer_that_comes_back_gets_what_its_checkpoint_lacks(leasing: ApiClient) -> None:
    fill(leasing, 6)
    batches = [leased(lease(leasing)) for _ in range(3)]
    for batch_id, attempt, _ in batches[:2]:
        assert act(leasing, batch_id, "ack", attempt=attempt).status_code == 200
    back = register(leasing, last_committed=batches[0][0])
    assert back == {"trainer_id": "t", "step": 2, "replayed": 2, "batch_size": 8}
    again = [leased(lease(leasing)) for _ in range(2)]
    assert [(batch_id, tokens) for batch_id, _, tokens in again] == [
        (batch_id, tokens) for batch_id, _, tokens in batches[1:]
    ]
    for batch_id, attempt, _ in again:
        act(leasing, batch_id, "ack", attempt=attempt)
    assert leasing.get("/v1/status")["step"] == 3


def test_a_trainer_may_be_named_by_its_directory(leasing: ApiClient) -> None:
    name = "/runs/my run/out"
    register(leasing, trainer_id=name)
    fill(leasing, 2)
    batch_id, _, _ = leased(lease(leasing, trainer_id=name))
    act(leasing, batch_id, "ack")
    path = "/v1/trainers/" + requests.utils.quote(name, safe="")
    assert leasing.post(f"{path}/commit", {"batch_id": batch_id}) == {"committed": 1}
    assert leasing.raw("DELETE", path).status_code == 204
    gone = leasing.raw("DELETE", path)
    assert (gone.status_code, gone.json()["code"]) == (404, "api.unknown_trainer")


def test_who_is_not_known_is_told_so(leasing: ApiClient) -> None:
    stranger = lease(leasing, trainer_id="stranger")
    assert (stranger.status_code, stranger.json()["code"]) == (409, "api.not_registered")
    assert act(leasing, "nothing", "ack").status_code == 404
    assert act(leasing, "nothing", "heartbeat", attempt=1).status_code == 404
    unknown = leasing.raw("POST", "/v1/trainers/t/commit", b'{"batch_id": "nothing"}')
    assert (unknown.status_code, unknown.json()["code"]) == (404, "api.unknown_batch")
    taken = leasing.raw(
        "POST", "/v1/trainers", json.dumps({"trainer_id": "atropos", "run": registration()}).encode()
    )
    assert taken.status_code == 422


@pytest.mark.parametrize("asked", [{"wait_s": 31}, {"lease_s": 0}, {"n_sequences": 0}, {"sequences": 8}])
def test_a_request_out_of_bounds_is_told_by_its_field(leasing: ApiClient, asked: dict[str, int]) -> None:
    answer = lease(leasing, **asked)
    assert (answer.status_code, answer.json()["code"]) == (422, "wire.invalid_request")
    assert answer.json()["where"] == next(iter(asked))


def test_a_lease_whose_client_went_away_is_as_if_it_had_never_been(leasing: ApiClient) -> None:
    for token in (1, 2):
        large = [[{"role": "user", "content": "x" * (8 << 20)}]] * 4
        leasing.post("/scored_data", group(token=token, messages=large[:1]))
    host, port = leasing.url.removeprefix("http://").split(":")
    body = b'{"trainer_id": "t"}'
    head = (
        b"POST /v1/batches/lease HTTP/1.1\r\nHost: api\r\nAccept: application/json\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    )
    with socket.create_connection((host, int(port))) as trainer:
        trainer.sendall(head + body)
        assert trainer.recv(100).startswith(b"HTTP/1.1 200")
        assert leasing.counts()["leased"] == 2
    while leasing.counts()["leased"]:
        pass
    assert leased(lease(leasing))[1:] == (1, [1, 2])


def test_a_reset_forgets_leases(leasing: ApiClient) -> None:
    fill(leasing, 2)
    batch_id, _, _ = leased(lease(leasing))
    leasing.raw("GET", "/reset_data")
    assert act(leasing, batch_id, "ack").status_code == 404
    assert lease(leasing).status_code == 409
