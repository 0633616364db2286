"""Starting and stopping the server: busy ports, open addresses, signals."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys

import pytest
import requests

from atroposlib.api import serve
from atroposlib.config.api import ApiSettings
from atroposlib.errors import UsageError


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


@pytest.mark.parametrize(("host", "warned"), [("127.0.0.1", False), ("localhost", False), ("0.0.0.0", True)])
def test_an_open_address_is_warned_of_in_one_line(
    host: str, warned: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "uvicorn.Server.run", lambda server, sockets: [listener.close() for listener in sockets]
    )
    serve.run(ApiSettings(host=host, port=0))
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith(f"trajectory API on http://{host}:")
    assert [line.startswith("warning: ") for line in lines[:-1]] == [True] * warned


def test_run_api_serves_until_it_is_terminated() -> None:
    command = [sys.executable, "-m", "atroposlib.cli.run_api", "--host", "127.0.0.1", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        url = process.stderr.readline().split()[-1]
        with requests.Session() as session:
            assert session.get(f"{url}/readyz", timeout=20).status_code == 200
            # The connection stays open, which must not hold the server up.
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=20) == -signal.SIGTERM
        assert process.stderr.read() == ""


def test_run_api_refuses_a_busy_port_in_one_line() -> None:
    with serve.listen("127.0.0.1", 0) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "atroposlib.cli.run_api", "--port", port]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    assert "usage.port_in_use" in ended.stderr
