"""A signal ends a serving environment in order: tasks, API, sessions, exit code."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from tests.envs.fakes import FakeApi, until

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
async def test_signal_disconnects_and_gives_its_exit_code(
    api: FakeApi, number: signal.Signals, code: int
) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.envs.toy_environment",
        "serve",
        *("--testing", "--env.use_wandb", "false", "--env.total_steps", "1000000"),
        *("--env.rollout_server_url", api.url),
        cwd=ROOT,
        stderr=asyncio.subprocess.PIPE,
    )
    await until(lambda: len(api.groups) >= 2)
    process.send_signal(number)
    _, told = await process.communicate()
    assert process.returncode == code, told.decode()
    assert api.calls["disconnect-env"] == 1
    assert "Traceback" not in told.decode()
    assert "never retrieved" not in told.decode()
