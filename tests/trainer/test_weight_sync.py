"""The refresh of the student's server: the calls in order, and a server that is resumed whatever fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from atroposlib.errors import StudentError
from atroposlib.journal import Journal, read_journal
from atroposlib.trainer.weight_sync import StudentServer, WeightSync
from tests.trainer.support import Reply, Script, scripted_http

CALLS = [
    "POST /pause?mode=keep",
    "POST /collective_rpc",
    "POST /reset_prefix_cache?reset_running_requests=true",
    "POST /update_weight_version",
    "POST /resume",
    "GET /weight_info",
]


@pytest.fixture
def script() -> Iterator[Script]:
    with scripted_http() as script:
        script.always["/weight_info"] = Reply({"weight_version": "step-4"})
        script.always["/reset_prefix_cache"] = Reply({"success": True})
        script.always["/collective_rpc"] = Reply({"results": [None]})
        yield script


@pytest.fixture
def sync(script: Script, tmp_path: Path) -> Iterator[WeightSync]:
    server = StudentServer(script.url + "/v1", timeout_s=20)
    sync = WeightSync(server, Journal(tmp_path / "journal.jsonl"))
    yield sync
    sync.close()


def test_calls_are_made_in_vllms_order(script: Script, sync: WeightSync, tmp_path: Path) -> None:
    sync.push(tmp_path / "step-4", 4)
    assert script.asked == CALLS
    reload = {"method": "reload_weights", "kwargs": {"weights_path": str(tmp_path / "step-4")}}
    assert script.bodies["/collective_rpc"] == [reload]
    assert script.bodies["/update_weight_version"] == [{"new_version": "step-4"}]
    assert sync.loaded == tmp_path / "step-4"


def test_confirmed_refresh_is_journaled(sync: WeightSync, tmp_path: Path) -> None:
    sync.push(tmp_path, 4)
    (event,) = read_journal(tmp_path / "journal.jsonl")
    assert event["start"] <= event["time"]
    assert (event["kind"], event["step"], event["version"], event["confirmed"]) == (
        "refresh",
        4,
        "step-4",
        True,
    )


@pytest.mark.parametrize(
    "path", ["/pause", "/collective_rpc", "/reset_prefix_cache", "/update_weight_version"]
)
def test_server_is_resumed_when_a_call_fails_and_the_refresh_is_repeated(
    script: Script, sync: WeightSync, tmp_path: Path, path: str
) -> None:
    script.then(path, Reply({"error": "out of memory"}, status=500))
    sync.push(tmp_path, 4)
    failed_at = next(index for index, call in enumerate(CALLS) if call.split()[1].split("?")[0] == path)
    assert script.asked == [*CALLS[: failed_at + 1], "POST /resume", *CALLS]
    (event,) = read_journal(tmp_path / "journal.jsonl")
    assert event["confirmed"]


def test_a_prefix_cache_that_was_not_reset_is_a_failure(
    script: Script, sync: WeightSync, tmp_path: Path
) -> None:
    script.always["/reset_prefix_cache"] = Reply({"success": False})
    sync.push(tmp_path, 4)
    (event,) = read_journal(tmp_path / "journal.jsonl")
    assert not event["confirmed"]
    assert sync.loaded is None


def test_third_failure_in_a_row_ends_the_run(script: Script, sync: WeightSync, tmp_path: Path) -> None:
    script.always["/weight_info"] = Reply({"weight_version": "step-3"})
    sync.push(tmp_path, 4)
    sync.push(tmp_path, 5)
    with pytest.raises(StudentError, match="got step-3, expected step-6") as caught:
        sync.push(tmp_path, 6)
    assert caught.value.code == "train.refresh_failed"
    assert [event["confirmed"] for event in read_journal(tmp_path / "journal.jsonl")] == [False] * 3


def test_a_success_forgets_earlier_failures(script: Script, sync: WeightSync, tmp_path: Path) -> None:
    for step in (1, 2, 4, 5, 6):
        sync.push(tmp_path, step)
    assert [event["confirmed"] for event in read_journal(tmp_path / "journal.jsonl")].count(True) == 1


def test_check_refuses_a_server_without_the_routes_and_says_why(script: Script, sync: WeightSync) -> None:
    script.then("/weight_info", Reply({"detail": "Not Found"}, status=404))
    with pytest.raises(StudentError, match="VLLM_SERVER_DEV_MODE=1"):
        sync.check()


def test_check_lets_a_server_pass_that_is_still_loading(tmp_path: Path) -> None:
    with scripted_http() as script:
        url = script.url
    sync = WeightSync(StudentServer(url, timeout_s=5), Journal(None))
    sync.check()
    sync.close()
