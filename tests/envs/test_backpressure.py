"""A queue that is full stops the rollouts, and with them the teacher's work; nothing is dropped for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from atroposlib.envs import loop as loop_module
from atroposlib.envs import sender as sender_module
from tests.envs.fakes import FakeApi, until

Make = Callable[..., Any]


async def test_a_full_queue_pauses_rollouts(
    api: FakeApi, make_env: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_module, "POLL_SECONDS", 0.002)
    monkeypatch.setattr(sender_module, "LONGEST_PAUSE_SECONDS", 0.01)
    api.answers.extend([(429, {"code": "api.queue_full"})] * 100_000)
    env = make_env(rollout_server_url=api.url, total_steps=4, max_num_workers=2)
    run = asyncio.create_task(env.env_manager())
    await until(lambda: env.runtime.sender.is_blocked)
    polls = api.calls["status-env"]
    await until(lambda: api.calls["status-env"] > polls + 1)
    begun = len(env.given)
    # The worker that was away when the queue filled may still come; no new one starts.
    assert begun <= 2
    await until(lambda: api.calls["status-env"] > polls + 6)
    assert len(env.given) == begun
    api.answers.clear()
    await run
    assert env.runtime.counters.dropped == {}
