"""One run under attack: an API on a fixed port with a durable queue, and processes that die by SIGKILL."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests

from atroposlib.demo.processes import free_ports

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent
READY_S = 60.0
CYCLES = int(os.environ.get("ATROPOS_KILL_CYCLES", "50"))


@dataclass
class World:
    """Starts the parts of one run in a folder.

    Attributes:
        folder: Holds the queue and whatever the victims write.
        rng: Chooses when to kill.
    """

    folder: Path
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    port: int = field(default_factory=lambda: free_ports(1)[0])

    @property
    def url(self) -> str:
        """Address of the API, the same after every restart."""
        return f"http://127.0.0.1:{self.port}"

    def start_api(self) -> subprocess.Popen[str]:
        """An API that listens."""
        store = f"sqlite:///{self.folder / 'queue.sqlite3'}"
        command = [
            sys.executable,
            "-m",
            "atroposlib.cli.main",
            "api",
            "--port",
            str(self.port),
            "--store",
            store,
        ]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=self.folder)
        assert process.stderr is not None
        for line in process.stderr:
            if re.search(r"http://[\d.]+:\d+", line):
                return process
        raise AssertionError(f"the API ended with {process.wait()} before it listened")

    def start_victim(self, script: str, *arguments: str) -> subprocess.Popen[str]:
        """A script of this folder, told where the API is and which folder is its own."""
        command = [sys.executable, str(FOLDER / script), self.url, str(self.folder), *arguments]
        return subprocess.Popen(command, text=True, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})

    def status(self) -> dict[str, Any]:
        """GET /v1/status, with the groups all accounted for."""
        answer = requests.get(f"{self.url}/v1/status", timeout=10)
        answer.raise_for_status()
        status: dict[str, Any] = answer.json()
        groups = status["groups"]
        places = groups["queued"] + groups["leased"] + groups["trained"] + groups["dead"]
        assert groups["received"] == places + sum(groups["dropped"].values())
        return status


def kill(process: subprocess.Popen[str]) -> None:
    """SIGKILL, and wait until it is gone."""
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=30)
    if process.stderr is not None:
        process.stderr.close()


def wait_for(condition: Callable[[], bool]) -> None:
    """Return when the condition holds."""
    deadline = time.monotonic() + READY_S
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not come"
        time.sleep(0.002)


def registration(batch_size: int) -> dict[str, Any]:
    """A trainer's registration."""
    return {
        "wandb_group": "",
        "wandb_project": "",
        "batch_size": batch_size,
        "max_token_len": 512,
        "checkpoint_dir": "checkpoints",
        "save_checkpoint_interval": 1,
        "starting_step": 0,
        "num_steps": 1_000_000,
    }


def small_group(name: str) -> dict[str, Any]:
    """A group of two sequences named ``name``."""
    return {
        "tokens": [[1, 2, 3], [1, 2, 4]],
        "masks": [[-100, 2, 3], [-100, 2, 4]],
        "scores": [1.0, 0.0],
        "distill_token_ids": [[[-1], [2], [3]], [[-1], [2], [4]]],
        "distill_logprobs": [[[-9999.0], [-0.5], [-0.25]], [[-9999.0], [-0.5], [-0.125]]],
        "group_id": name,
    }
