"""A real vLLM on a free port, in a process group of its own that ends with the block."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import requests

from atroposlib.demo.processes import free_ports, log_tail
from atroposlib.demo.vllm_backend import (
    Vllm,
    VllmServer,
    find_vllm,
    server_command,
    server_variables,
    vllm_python,
)

NAME = "smollm2"
MAX_MODEL_LEN = 1024
MAX_LOGPROBS = 20
READY_S = 300.0
GRACE_S = 20.0


@contextmanager
def running_vllm(model: Path, log: Path, *options: str) -> Iterator[VllmServer]:
    """A vLLM with our plugin that serves ``model`` in float32 with the limits of the recorded replies."""
    with vllm_process(model, log, *options) as (_, server):
        yield server


@contextmanager
def vllm_process(
    model: Path, log: Path, *options: str
) -> Iterator[tuple[subprocess.Popen[bytes], VllmServer]]:
    """:func:`running_vllm`, and the process that leads its group."""
    vllm = find_vllm(vllm_python())
    assert "atropos" in vllm.plugins, "the plugin is not installed beside vLLM: run `make test-vllm`"
    server = VllmServer(
        model=model,
        served_as=NAME,
        port=free_ports(1)[0],
        max_model_len=MAX_MODEL_LEN,
        max_logprobs=MAX_LOGPROBS,
        dtype="float32",
        threads=max(1, (os.cpu_count() or 1) - 1),
        gpu_memory_share=0.5,
    )
    process = _start(vllm, server, log, options)
    try:
        _wait_until_ready(process, server, log)
        yield process, server
    finally:
        _end_group(process)


def _start(vllm: Vllm, server: VllmServer, log: Path, options: tuple[str, ...]) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            (*server_command(vllm, server), *options),
            env={**os.environ, **server_variables(vllm, server)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def _wait_until_ready(process: subprocess.Popen[bytes], server: VllmServer, log: Path) -> None:
    deadline = time.monotonic() + READY_S
    while not _answers(f"{server.url}/health"):
        ended = process.poll() is not None
        if ended or time.monotonic() > deadline:
            said = "\n".join(log_tail(log, 30))
            raise AssertionError(
                f"vLLM {'ended' if ended else 'was not ready in time'}; its log ends:\n{said}"
            )
        time.sleep(0.2)


def _answers(url: str) -> bool:
    try:
        return requests.get(url, timeout=5).status_code == 200
    except requests.RequestException:
        return False


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Ask the server to end, then end whatever is left of its process group."""
    process.terminate()
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        _kill_group(process.pid)
        process.wait(GRACE_S)


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return
