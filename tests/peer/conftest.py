"""The real Atropos 0.4.0, and APIs of both kinds as processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

from atroposlib.demo.processes import free_ports

ROOT = Path(__file__).parents[2]
VARIABLE = "ATROPOS_PEER_PYTHON"
READY_S = 60.0


@pytest.fixture(scope="session")
def peer_python() -> Path:
    """The Python of an environment with atroposlib 0.4.0."""
    python = Path(os.environ.get(VARIABLE, ROOT / ".venv-peer" / "bin" / "python"))
    assert python.exists(), f"no Atropos 0.4.0 at {python}: `make test` installs it, {VARIABLE} names another"
    return python


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """The process, terminated after the block."""
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=30)


@contextmanager
def our_api(folder: Path) -> Iterator[str]:
    """The URL of our API with a queue in ``folder``."""
    command = [sys.executable, "-m", "atroposlib.cli.main", "api", "--port", "0"]
    store = f"sqlite:///{folder / 'queue.sqlite3'}"
    with ended(
        subprocess.Popen([*command, "--store", store], stderr=subprocess.PIPE, text=True, cwd=folder)
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            found = re.search(r"http://[\d.]+:\d+", line)
            if found:
                yield found[0]
                return
        raise AssertionError(f"the API ended with {process.wait()} before it listened")


@contextmanager
def old_api(python: Path, folder: Path) -> Iterator[str]:
    """The URL of a real 0.4.0 API."""
    host, port = "127.0.0.1", str(free_ports(1)[0])
    url = f"http://{host}:{port}"
    command = [str(python), "-m", "atroposlib.cli.run_api", "--host", host, "--port", port]
    with (
        (folder / "old_api.log").open("w") as log,
        ended(subprocess.Popen(command, stdout=log, stderr=log, text=True, cwd=folder)) as process,
    ):
        deadline = time.monotonic() + READY_S
        while not answers(url):
            assert process.poll() is None, (folder / "old_api.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield url


def answers(url: str) -> bool:
    """Whether an API is there."""
    try:
        return requests.get(f"{url}/info", timeout=2).ok
    except requests.ConnectionError:
        return False
