"""The trainer's client of our API: what it asks, what it survives, and what it reports."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from atroposlib.errors import ApiError, WireError
from atroposlib.trainer import leases, transport
from atroposlib.trainer.client import LeasedBatch, Registered, TrainerClient
from tests.trainer.support import NO_BATCH, Reply, Script, ids_of, lease_reply, make_groups, scripted_http

LEASE = "/v1/batches/lease"
NOT_REGISTERED = Reply({"code": "api.not_registered", "detail": "who are you"}, status=409)
RUN = {"batch_size": 8, "starting_step": 0}


@pytest.fixture
def script() -> Iterator[Script]:
    with scripted_http() as script:
        script.always["/v1/trainers"] = Reply({"trainer_id": "me", "step": 0, "replayed": 0, "batch_size": 8})
        yield script


@pytest.fixture
def client(script: Script) -> Iterator[TrainerClient]:
    client = TrainerClient(script.url + "/", give_up_after_s=20)
    yield client
    client.close()


def leased(script: Script, client: TrainerClient, **changes: Any) -> LeasedBatch:
    script.then(LEASE, lease_reply(*make_groups(2), **changes))
    batch = client.lease()
    assert batch is not None
    return batch


def test_leased_batch_is_the_one_the_api_sent(script: Script, client: TrainerClient) -> None:
    groups = make_groups(2)
    script.then(LEASE, lease_reply(*groups, batch_id="b", attempt=3, step=7))
    batch = client.lease(8, wait_s=1.5, lease_s=60)
    assert batch is not None
    assert (batch.batch_id, batch.attempt, batch.expires_at, batch.step) == ("b", 3, 2000000000.5, 7)
    assert [row.tolist() for row in batch.groups[1].tokens] == groups[1]["tokens"]
    assert [row.tolist() for row in batch.groups[1].masks] == groups[1]["masks"]
    targets = batch.groups[0].targets
    assert targets is not None
    assert targets.ids[0].tolist() == groups[0]["distill_token_ids"][0][3]
    expected = np.asarray(groups[0]["distill_logprobs"][0][3], np.float32)
    np.testing.assert_array_equal(targets.logprobs[0], expected)
    assert script.bodies[LEASE] == [{"trainer_id": "", "n_sequences": 8, "wait_s": 1.5, "lease_s": 60}]


def test_no_batch_in_time_is_none(script: Script, client: TrainerClient) -> None:
    script.then(LEASE, NO_BATCH)
    assert client.lease() is None


def test_registration_names_trainer_and_last_committed_batch(script: Script, client: TrainerClient) -> None:
    script.then("/v1/trainers", Reply({"trainer_id": "me", "step": 9, "replayed": 2, "batch_size": 8}))
    assert client.register(RUN, "me", "b7") == Registered(step=9, replayed=2)
    assert script.bodies["/v1/trainers"] == [{"trainer_id": "me", "last_committed": "b7", "run": RUN}]


def test_the_server_is_probed_once(script: Script, client: TrainerClient) -> None:
    client.register(RUN, "me")
    script.always[LEASE] = NO_BATCH
    client.lease()
    client.lease()
    assert script.asked.count("GET /v1/status") == 1


def test_ack_names_the_attempt_and_tells_the_step(script: Script, client: TrainerClient) -> None:
    batch = leased(script, client, batch_id="b", attempt=2)
    script.then("/v1/batches/b/ack", Reply({"step": 5}))
    assert client.ack(batch) == client.step == 5
    assert script.bodies["/v1/batches/b/ack"] == [{"attempt": 2}]


@pytest.mark.parametrize("code", ["api.lease_lost", "api.unknown_batch"])
def test_ack_of_a_batch_that_is_not_ours_any_more_is_told(
    script: Script, client: TrainerClient, code: str
) -> None:
    batch = leased(script, client, batch_id="b")
    script.then("/v1/batches/b/ack", Reply({"code": code, "detail": "no"}, status=409))
    with pytest.raises(ApiError) as caught:
        client.ack(batch)
    assert caught.value.code == code


def test_nack_says_why(script: Script, client: TrainerClient) -> None:
    client.nack(leased(script, client, batch_id="b"), "no memory for it")
    assert script.bodies["/v1/batches/b/nack"] == [{"attempt": 1, "reason": "no memory for it"}]


def test_commit_goes_to_the_trainer_whose_name_is_a_path(script: Script, client: TrainerClient) -> None:
    client.register(RUN, "/runs/a b")
    path = "/v1/trainers/%2Fruns%2Fa%20b/commit"
    script.then(path, Reply({"committed": 3}))
    assert client.commit("b9") == 3
    assert script.bodies[path] == [{"batch_id": "b9"}]


def test_heartbeat_tells_when_the_lease_expires(script: Script, client: TrainerClient) -> None:
    batch = leased(script, client, batch_id="b")
    script.then("/v1/batches/b/heartbeat", Reply({"expires_at": 12.5}))
    assert client.heartbeat(batch, lease_s=60) == 12.5
    assert script.bodies["/v1/batches/b/heartbeat"] == [{"attempt": 1, "lease_s": 60}]


def until_asked(script: Script, line: str, times: int = 1) -> None:
    """Wait for requests that another thread makes."""
    with script.changed:
        assert script.changed.wait_for(lambda: script.asked.count(line) >= times, timeout=20)


def test_held_leases_are_renewed_until_they_are_acked(
    script: Script, client: TrainerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "RENEWALS_PER_LEASE", 1000)
    script.always["/v1/batches/b/heartbeat"] = Reply({"expires_at": 1.0})
    script.then(LEASE, lease_reply(*make_groups(1), batch_id="b"))
    batch = client.lease(lease_s=10)
    assert batch is not None
    until_asked(script, "POST /v1/batches/b/heartbeat", times=3)
    script.then("/v1/batches/b/ack", Reply({"step": 1}))
    client.ack(batch)
    assert client._keeper.held() == []


def test_a_lost_lease_is_renewed_no_more(
    script: Script, client: TrainerClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(leases, "RENEWALS_PER_LEASE", 1000)
    script.always["/v1/batches/lost/heartbeat"] = Reply({"code": "api.lease_lost"}, status=409)
    script.always["/v1/batches/kept/heartbeat"] = Reply({"expires_at": 1.0})
    for batch_id in ("lost", "kept"):
        script.then(LEASE, lease_reply(*make_groups(1), batch_id=batch_id))
        client.lease(lease_s=10)
    until_asked(script, "POST /v1/batches/kept/heartbeat", times=3)
    assert script.asked.count("POST /v1/batches/lost/heartbeat") == 1
    assert "the lease of batch lost was not renewed" in caplog.text


def test_close_gives_back_what_was_not_acked(script: Script, client: TrainerClient) -> None:
    acked = leased(script, client, batch_id="acked")
    script.then("/v1/batches/acked/ack", Reply({"step": 1}))
    client.ack(acked)
    leased(script, client, batch_id="prefetched")
    client.close()
    assert [path for path in script.bodies if path.endswith("nack")] == ["/v1/batches/prefetched/nack"]


def test_batch_that_comes_after_the_stop_is_given_back(script: Script, client: TrainerClient) -> None:
    client.status()
    client.stop.set()
    script.then(LEASE, lease_reply(*make_groups(1), batch_id="late"))
    assert client.lease() is None
    assert "POST /v1/batches/late/nack" in script.asked


def test_an_api_that_forgot_the_trainer_is_registered_with_again_at_the_step_reached(
    script: Script, client: TrainerClient
) -> None:
    client.register(RUN, "me", "b0")
    batch = leased(script, client, batch_id="b1")
    script.then("/v1/batches/b1/ack", Reply({"step": 5}))
    client.ack(batch)
    script.then("/v1/trainers/me/commit", Reply({"committed": 1}))
    client.commit("b1")
    script.then(LEASE, NOT_REGISTERED)
    assert client.lease() is None
    first, second = script.bodies["/v1/trainers"]
    assert (first["run"]["starting_step"], first["last_committed"]) == (0, "b0")
    assert (second["run"]["starting_step"], second["last_committed"]) == (5, "b1")


def test_a_trainer_that_never_registered_is_told(script: Script, client: TrainerClient) -> None:
    script.then(LEASE, NOT_REGISTERED)
    with pytest.raises(ApiError, match="who are you") as caught:
        client.lease()
    assert caught.value.code == "api.not_registered"


@pytest.mark.parametrize(
    "fault",
    [Reply(status=503), Reply(status=429), Reply(b"x" * 500, action="cut"), lease_reply(*make_groups(1))],
    ids=["503", "429", "cut connection", "cut batch"],
)
def test_passing_faults_are_asked_again(script: Script, client: TrainerClient, fault: Reply) -> None:
    if fault.headers:
        fault = Reply(fault.body[:-64], headers=fault.headers)
    groups = make_groups(1)
    script.then(LEASE, fault, lease_reply(*groups))
    batch = client.lease()
    assert batch is not None
    assert ids_of(batch.groups) == ["group-0-0"]
    assert script.asked.count(f"POST {LEASE}") == 2


def test_retry_after_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(transport, "_BACK_OFF", lambda state: 0.001)
    monkeypatch.setattr(transport, "sleep_using_event", lambda stop: lambda seconds: waited.append(seconds))
    with scripted_http() as script:
        script.then("/info", Reply(status=503, headers={"Retry-After": "7"}), Reply({"batch_size": 1}))
        client = TrainerClient(script.url, give_up_after_s=20)
        assert client.info() == {"batch_size": 1}
        client.close()
    assert waited == [7.0]


def test_a_refusal_is_reported_at_once(script: Script, client: TrainerClient) -> None:
    refusal = Reply({"detail": "batch_size must be positive", "code": "wire.invalid_request"}, status=422)
    script.then("/v1/trainers", refusal)
    with pytest.raises(ApiError, match="batch_size must be positive") as caught:
        client.register({}, "me")
    assert caught.value.code == "wire.invalid_request"
    assert len(script.bodies["/v1/trainers"]) == 1


def test_a_batch_that_cannot_be_decoded_is_nacked_and_told(script: Script, client: TrainerClient) -> None:
    broken = lease_reply(*make_groups(1), batch_id="b")
    body = bytearray(broken.body)
    body[80:84] = b"\xff\xff\xff\xff"
    script.then(LEASE, Reply(bytes(body), headers=broken.headers))
    with pytest.raises(WireError):
        client.lease()
    assert "POST /v1/batches/b/nack" in script.asked


def test_an_answer_without_the_number_it_should_hold_is_told(script: Script, client: TrainerClient) -> None:
    batch = leased(script, client, batch_id="b")
    with pytest.raises(ApiError, match=r"^step: .* lacks a number"):
        client.ack(batch)


@pytest.mark.parametrize("body", [b"<html>", b"[]"])
def test_an_answer_that_is_no_json_object_is_refused(
    script: Script, client: TrainerClient, body: bytes
) -> None:
    script.then("/info", Reply(body))
    with pytest.raises(ApiError, match=r"not JSON|not an object"):
        client.info()


def test_an_unreachable_api_is_reported_after_the_deadline() -> None:
    with scripted_http() as script:
        url = script.url
    client = TrainerClient(url, give_up_after_s=0.2)
    with pytest.raises(ApiError, match="no connection") as caught:
        client.info()
    client.close()
    assert caught.value.code == "api.unreachable"
    assert url in str(caught.value)


def test_stopping_ends_the_retries_long_before_the_deadline() -> None:
    with scripted_http() as script:
        url = script.url
    stop = threading.Event()
    client = TrainerClient(url, give_up_after_s=3600, stop=stop)
    timer = threading.Timer(0.2, stop.set)
    timer.start()
    with pytest.raises(ApiError):
        client.info()
    timer.join()
    client.close()


def test_the_token_is_sent_and_never_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATROPOS_TOKEN", "from-environment")
    with scripted_http() as script:
        for url, token in (
            (script.url, None),
            (script.url, "given"),
            (script.url.replace("://", "://any:s%40cret@"), None),
        ):
            script.then("/info", Reply({"detail": "no"}, status=403))
            client = TrainerClient(url, token=token)
            with pytest.raises(ApiError) as caught:
                client.info()
            client.close()
            assert not any(secret in str(caught.value) for secret in ("from-environment", "given", "cret"))
        sent = [headers["Authorization"] for headers in script.headers]
    # base64 of any:s@cret
    assert sent == ["Bearer from-environment", "Bearer given", "Basic YW55OnNAY3JldA=="]


def test_client_and_run_are_importable_where_torch_is_not() -> None:
    program = (
        "import sys; sys.modules['torch'] = None; sys.modules['transformers'] = None\n"
        "import atroposlib.trainer.client, atroposlib.trainer.run, atroposlib.config.trainer"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_batch_is_asked_for_only_after_registering(script: Script) -> None:
    client = TrainerClient(script.url)
    script.then(LEASE, Reply({"code": "wire.invalid_request", "detail": "trainer_id"}, status=422))
    with pytest.raises(ApiError, match=r"register\(\) comes before") as caught:
        client.lease()
    client.close()
    assert caught.value.code == "api.not_registered"


def test_a_late_ack_leaves_the_batchs_newer_lease_alone(script: Script, client: TrainerClient) -> None:
    expired = leased(script, client, batch_id="b", attempt=1)
    again = leased(script, client, batch_id="b", attempt=2)
    script.then("/v1/batches/b/ack", Reply({"code": "api.lease_lost"}, status=409))
    with pytest.raises(ApiError):
        client.ack(expired)
    assert client._keeper.held() == [again]


def test_a_batch_that_comes_while_the_client_closes_is_given_back(
    script: Script, client: TrainerClient
) -> None:
    client.status()
    client._keeper.close()
    script.then(LEASE, lease_reply(*make_groups(1), batch_id="late"))
    assert client.lease() is None
    assert "POST /v1/batches/late/nack" in script.asked


def test_an_answer_that_sends_elsewhere_is_no_answer(script: Script, client: TrainerClient) -> None:
    batch = leased(script, client, batch_id="b")
    moved = Reply({}, status=301, headers={"Location": f"{script.url}/elsewhere"})
    script.then("/v1/batches/b/ack", moved)
    script.always["/elsewhere"] = Reply({"step": 1})
    with pytest.raises(ApiError, match="status 301"):
        client.ack(batch)
