"""Starting and stopping the server: busy ports, open addresses, what is continued, signals."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import requests

from atroposlib.api import serve
from atroposlib.config.api import ApiSettings
from atroposlib.errors import UsageError
from tests.api.support import group, registration, run_api


def test_a_busy_port_is_the_users_matter() -> None:
    with serve.listen("127.0.0.1", 0) as taken, pytest.raises(UsageError) as caught:
        serve.listen("127.0.0.1", taken.getsockname()[1])
    assert (caught.value.code, caught.value.exit_code) == ("usage.port_in_use", 2)


def test_an_address_that_is_not_ours_is_the_users_matter() -> None:
    with pytest.raises(UsageError) as caught:
        serve.listen("192.0.2.1", 0)
    assert caught.value.code == "usage.bad_value"


def test_answers_are_not_held_back_by_nagles_delay() -> None:
    with serve.listen("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP


async def stop_at_once(server: object, sockets: list[socket.socket]) -> None:
    """Stands for a server that is told to stop before it began."""


@pytest.mark.parametrize(("host", "warned"), [("127.0.0.1", False), ("localhost", False), ("0.0.0.0", True)])
def test_an_open_address_is_warned_of_in_one_line(
    host: str, warned: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("uvicorn.Server.serve", stop_at_once)
    serve.run(ApiSettings(host=host, port=0, store="memory", insecure=True))
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith(f"trajectory API on http://{host}:")
    assert [line.startswith("warning: ") for line in lines[:-1]] == [True] * warned


def test_an_open_address_without_tokens_is_refused() -> None:
    """Defect 11: 0.4.0 listened on every address and asked nobody."""
    with pytest.raises(UsageError) as caught:
        serve.run(ApiSettings(host="0.0.0.0", port=0, store="memory"))
    assert caught.value.code == "usage.open_address"
    assert "--insecure" in str(caught.value)


def test_a_store_that_is_none_is_the_users_matter() -> None:
    with pytest.raises(UsageError) as caught:
        serve.run(ApiSettings(port=0, store="redis://somewhere"))
    assert caught.value.code == "usage.bad_value"


def test_run_api_serves_until_it_is_terminated(tmp_path: Path) -> None:
    with (
        run_api("--host", "127.0.0.1", cwd=tmp_path) as (process, url, said),
        requests.Session() as session,
    ):
        assert said == []
        assert session.get(f"{url}/readyz", timeout=20).status_code == 200
        # The connection stays open, which must not hold the server up.
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == -signal.SIGTERM
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_run_api_refuses_a_busy_port_in_one_line(tmp_path: Path) -> None:
    with serve.listen("127.0.0.1", 0) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "atroposlib.cli.run_api", "--port", port]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    assert "usage.port_in_use" in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_killed_api_goes_on_where_it_was(tmp_path: Path) -> None:
    """Defect 1: a crash lost queue, registrations and step."""
    with run_api(cwd=tmp_path) as (process, url, _):
        requests.post(f"{url}/register", json=registration(), timeout=20)
        assert requests.get(f"{url}/batch", timeout=20).json() == {"batch": None}
        env = {"max_token_length": 9, "desired_name": "env", "weight": 1.0, "group_size": 4}
        assert requests.post(f"{url}/register-env", json=env, timeout=20).json()["env_id"] == 0
        for token in range(3):
            body = group(token=token, env_id=0)
            assert requests.post(f"{url}/scored_data", json=body, timeout=20).status_code == 200
        assert len(requests.get(f"{url}/batch", timeout=20).json()["batch"]) == 2
        process.kill()
        process.wait(timeout=20)
    with run_api(cwd=tmp_path) as (_, url, said):
        assert said == [
            "going on at step 1: 1 groups queued, 0 leased, 0 uncommitted; trainers: atropos; environments: 1"
        ]
        assert requests.get(f"{url}/status", timeout=20).json() == {"current_step": 1, "queue_size": 1}
        status = requests.get(f"{url}/status-env", json={"env_id": 0}, timeout=20)
        assert (status.status_code, status.json()["self_queue_size"]) == (200, 1)
        requests.post(f"{url}/scored_data", json=group(token=3, env_id=0), timeout=20)
        batch = requests.get(f"{url}/batch", timeout=20).json()["batch"]
        assert [member["tokens"][0][0] for member in batch] == [2, 3]
    with run_api("--fresh", cwd=tmp_path) as (_, url, said):
        assert said == []
        assert requests.get(f"{url}/status", timeout=20).json() == {"current_step": 0, "queue_size": 0}


def test_sigterm_ends_a_waiting_lease_at_once(tmp_path: Path) -> None:
    with run_api("--store", "memory", cwd=tmp_path) as (process, url, _):
        body = {"trainer_id": "t", "run": registration()}
        assert requests.post(f"{url}/v1/trainers", json=body, timeout=20).status_code == 200
        asked = {"trainer_id": "t", "wait_s": 30}
        answers: list[requests.Response] = []
        waiting = threading.Thread(
            target=lambda: answers.append(requests.post(f"{url}/v1/batches/lease", json=asked, timeout=25))
        )
        waiting.start()
        while not requests.get(f"{url}/v1/status", timeout=20).json()["waiting"]:
            pass
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == -signal.SIGTERM
        waiting.join(timeout=20)
    assert (answers[0].status_code, answers[0].json()["code"]) == (503, "api.draining")
    assert json.loads(answers[0].text)["status"] == 503


def test_a_lease_that_is_cut_off_by_sigterm_is_given_back(tmp_path: Path) -> None:
    large = group(8, messages=[[{"role": "user", "content": "x" * (16 << 20)}]])
    with run_api(cwd=tmp_path) as (process, url, _):
        requests.post(f"{url}/register", json=registration(), timeout=20)
        assert requests.post(f"{url}/scored_data", json=large, timeout=20).status_code == 200
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as trainer:
            trainer.sendall(b"GET /batch HTTP/1.1\r\nHost: api\r\n\r\n")
            assert trainer.recv(100).startswith(b"HTTP/1.1 200")
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=10) == -signal.SIGTERM
    with run_api(cwd=tmp_path) as (_, url, said):
        assert "step 0: 1 groups queued, 0 leased" in said[0]
        assert len(requests.get(f"{url}/batch", timeout=20).json()["batch"]) == 1
