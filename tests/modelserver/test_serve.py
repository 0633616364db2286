"""The server as a process: its messages, its mistakes, and how it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import requests

from atroposlib.config.modelserver import ModelServerSettings
from atroposlib.errors import UsageError
from atroposlib.modelserver.loading import load
from atroposlib.modelserver.serve import reserve_port, run
from atroposlib.modelserver.source import check_source

COMMAND = [sys.executable, "-m", "atroposlib.cli.main", "model-server"]


def command(*options: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*COMMAND, *options], capture_output=True, text=True, timeout=timeout_s, env=environment, check=False
    )


def test_taken_port_is_told_before_the_model_is_asked_for() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match="taken by another process") as caught:
            run(ModelServerSettings(model="some/model", port=port))
    assert (caught.value.code, caught.value.exit_code) == ("usage.port_in_use", 2)


def test_missing_directory_is_one_line_and_exit_2() -> None:
    done = command("--model", "/nowhere/at/all", "--port", "0")
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert "/nowhere/at/all" in line
    assert "no such model directory" in line
    assert "[usage.model]" in line


def test_hub_id_out_of_reach_is_one_line_and_exit_2() -> None:
    done = command("--model", "no-such-owner/no-such-model", "--port", "0")
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert "no-such-owner/no-such-model" in line
    assert "[usage.model]" in line


@pytest.mark.parametrize("source", ["./nowhere", "../nowhere", "runs/now/step-3", "/nowhere"])
def test_path_that_does_not_exist_is_never_asked_of_the_hub(source: str) -> None:
    with pytest.raises(UsageError, match="no such model directory"):
        check_source(source)


def test_directory_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no config\.json") as caught:
        load(ModelServerSettings(model=str(tmp_path)))
    assert caught.value.code == "usage.model"


def test_pickled_weights_are_refused(tiny_model_dir: Path, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((tiny_model_dir / name).read_bytes())
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(UsageError) as caught:
        load(ModelServerSettings(model=str(tmp_path)))
    assert caught.value.code == "usage.model"


def test_longer_context_than_the_model_has_is_refused(tiny_model_dir: Path) -> None:
    with pytest.raises(UsageError, match="longer than the model has positions for"):
        run(ModelServerSettings(model=str(tiny_model_dir), port=0, max_model_len=513))


def test_port_zero_takes_a_free_one() -> None:
    with reserve_port("127.0.0.1", 0) as listener:
        assert listener.getsockname()[1] > 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_the_server_in_the_middle_of_a_request(
    tiny_model_dir: Path, number: signal.Signals
) -> None:
    options = ["--model", str(tiny_model_dir), "--port", "0", "--served-model-name", "tiny"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [*COMMAND, *options], stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stderr is not None
        try:
            ready = process.stderr.readline()
            url = ready.split(" at ")[1].strip()
            assert ready.startswith(
                f"model-server: tiny from {tiny_model_dir} (cpu, float32) at http://127.0.0.1:"
            )
            # A paused server never finishes a request by itself.
            requests.post(f"{url}/pause?mode=keep", timeout=30)
            with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as connection:
                body = b'{"prompt": [5], "max_tokens": 5}'
                head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                requests.get(f"{url}/health", timeout=30)
                process.send_signal(number)
                assert b" 500 " in connection.recv(100)
            assert process.wait(20) == (130 if number == signal.SIGINT else -number)
            assert process.stderr.read() == ("interrupted\n" if number == signal.SIGINT else "")
        finally:
            process.kill()
