"""The whole path on the real model: two steps of the demo, as a newcomer runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.demo_run import finish, logs, start_demo
from tests.support.processes import marked_processes

pytestmark = pytest.mark.model

OPTIONS = ("--steps", "2", "--eval-prompts", "4", "--sample-prompts", "1", "--max-completion-tokens", "16")


async def test_two_steps_of_the_real_model(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    run = await finish(await start_demo(directory, *OPTIONS), directory)
    assert run.returncode == 0, logs(run)
    summary = run.summary
    assert summary["steps"] == len(run.events("step")) == 2
    assert summary["backend"] == "embedded"
    assert summary["kl_start"] > 5
    assert summary["kl_end"] not in (None, summary["kl_start"])
    assert summary["teacher_token_frac"] == 1.0
    assert 0 < summary["captured_mass"] <= 1
    assert summary["overlap_share"] > 0
    assert summary["refreshes_confirmed"] == 2
    assert summary["policy_versions"][0] == 0
    dropped = sum(summary["groups_dropped"].values())
    places = sum(summary[f"groups_{place}"] for place in ("trained", "leased", "queued", "dead"))
    assert summary["groups_received"] == places + dropped > 0
    assert summary["groups_balanced"] is True
    for name in ("config.yaml", "metrics.jsonl", "report.html"):
        assert (directory / name).stat().st_size > 0
    assert "20 of 30 layers" in run.stdout
    assert str(directory / "report.html") in run.stdout
    assert marked_processes(directory) == []
