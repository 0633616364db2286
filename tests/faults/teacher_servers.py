"""Real model servers that are killed and started again, forked from one process that has torch loaded."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import requests

ROOT = Path(__file__).parents[2]
READY_S = 60.0


class TeacherServers:
    """Starts model servers under the name ``teacher``; each is a process of its own.

    Importing torch and transformers takes seconds, so it is done once, in the process that forks.
    """

    def __init__(self) -> None:
        self._nursery = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.teacher_servers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        )
        self._processes: dict[int, int] = {}

    def start(self, model: Path, port: int) -> None:
        """Serve ``model`` on ``port``; returns once it answers."""
        assert self._nursery.stdin is not None
        assert self._nursery.stdout is not None
        self._nursery.stdin.write(json.dumps({"model": str(model), "port": port}) + "\n")
        self._nursery.stdin.flush()
        self._processes[port] = int(self._nursery.stdout.readline())
        deadline = time.monotonic() + READY_S
        while not _answers(port):
            assert time.monotonic() < deadline, "the model server did not start"
            time.sleep(0.05)

    def kill(self, port: int) -> None:
        """SIGKILL to the server on ``port``; returns when it is gone."""
        os.kill(self._processes.pop(port), signal.SIGKILL)
        while _answers(port):
            time.sleep(0.01)

    def close(self) -> None:
        """End all of them."""
        for port in list(self._processes):
            self.kill(port)
        self._nursery.kill()
        self._nursery.communicate(timeout=30)


def _answers(port: int) -> bool:
    try:
        return requests.get(f"http://127.0.0.1:{port}/health", timeout=5).status_code == 200
    except requests.ConnectionError:
        return False


def _main() -> None:
    import uvicorn

    from atroposlib.config.modelserver import ModelServerSettings
    from atroposlib.modelserver.app import create_app
    from atroposlib.modelserver.build import build_model

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if child == 0:
            settings = ModelServerSettings(
                model=asked["model"], served_model_name="teacher", device="cpu", dtype="float32"
            )
            uvicorn.run(create_app(build_model(settings)), port=asked["port"], log_level="error")
            os._exit(0)
        sys.stdout.write(f"{child}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _main()
