"""A run from start to end with fake parts: the order, every way to end, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import io
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from atroposlib.demo import conductor
from atroposlib.demo.conductor import Conductor, Outcome
from atroposlib.demo.live import View
from atroposlib.demo.plan import Plan
from atroposlib.demo.processes import ChildDied
from atroposlib.demo.progress import Progress
from atroposlib.errors import RunError, TeacherUnreachable
from tests.demo.journals import two_steps
from tests.demo.plans import FOREVER, fake_children, make_plan, writes
from tests.support.processes import marked_processes, until

DIES = "import sys; print('out of memory', flush=True); sys.exit(7)"
TEACHER_AWAY = "import sys; sys.exit(3)"


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return make_plan(tmp_path / "run")


def conduct(plan: Plan, monkeypatch: pytest.MonkeyPatch, **codes: str) -> asyncio.Task[Outcome]:
    """Start a run of fake parts."""
    monkeypatch.setattr(conductor, "children", lambda plan: fake_children(plan, **codes))
    progress = Progress(plan.settings.steps)
    view = View(Console(file=io.StringIO()), progress, "title")
    return asyncio.create_task(Conductor(plan, view, progress).run())


def log_of(plan: Plan, part: str) -> str:
    file = plan.files.logs / f"{part}.log"
    return file.read_text() if file.exists() else ""


async def test_a_whole_run_ends_well(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = await conduct(plan, monkeypatch)
    assert outcome.failure is None
    assert not outcome.interrupted
    assert outcome.status is not None
    assert outcome.status["groups"]["received"] == 6
    await until(lambda: not marked_processes(plan.files.root))


@pytest.mark.parametrize("part", ["api", "student", "environment", "trainer", "evaluator"])
async def test_a_part_that_dies_ends_the_run(plan: Plan, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    # The trainer works for ever, so that only the death can end the run.
    codes = {"trainer": FOREVER, "evaluator": FOREVER, part: DIES}
    outcome = await conduct(plan, monkeypatch, **codes)
    assert isinstance(outcome.failure, ChildDied)
    assert outcome.failure.name == part
    assert outcome.failure.tail == ["out of memory"]
    assert outcome.failure.exit_code == 1
    await until(lambda: not marked_processes(plan.files.root))


async def test_a_part_that_misses_its_teacher_ends_the_run_with_3(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = await conduct(plan, monkeypatch, trainer=FOREVER, environment=TEACHER_AWAY)
    assert isinstance(outcome.failure, TeacherUnreachable)
    assert outcome.failure.exit_code == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_every_part_and_keeps_the_counters(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    run = conduct(plan, monkeypatch, trainer=FOREVER, evaluator=FOREVER)
    await until(lambda: "at work" in log_of(plan, "environment"))
    assert len(marked_processes(plan.files.root)) == 6
    os.kill(os.getpid(), number)
    outcome = await run
    assert outcome.interrupted
    assert outcome.failure is None
    assert outcome.status is not None
    await until(lambda: not marked_processes(plan.files.root))


async def test_a_second_signal_does_not_wait_for_deaf_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(tmp_path / "run", grace_s=3600.0)
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('at work', flush=True); "
        "time.sleep(600)"
    )
    run = conduct(plan, monkeypatch, trainer=FOREVER, evaluator=FOREVER, environment=deaf)
    await until(lambda: "at work" in log_of(plan, "environment"))
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGINT)
    assert (await run).interrupted
    await until(lambda: not marked_processes(plan.files.root))


async def test_a_trainer_that_stops_short_is_a_failure(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    short = writes(plan, "trainer", two_steps()["trainer"][:2])
    outcome = await conduct(plan, monkeypatch, trainer=short)
    assert isinstance(outcome.failure, RunError)
    assert "before the last step" in str(outcome.failure)
    assert "got 1 steps" in str(outcome.failure)


async def test_the_environment_starts_last_and_ends_before_the_servers(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = (
        "import pathlib, signal, sys, time\n"
        "def end(*_): print(time.time()); sys.exit()\n"
        "signal.signal(15, end); pathlib.Path({file!r}).touch(); time.sleep(600)"
    )
    marks = {part: str(plan.files.root / f"{part} is up") for part in ("environment", "student")}
    parts = {part: told.format(file=mark) for part, mark in marks.items()}
    wait = f"import os, time\nwhile not all(map(os.path.exists, {list(marks.values())})): time.sleep(0.02)\n"
    trainer = wait + writes(plan, "trainer", two_steps()["trainer"])
    await conduct(plan, monkeypatch, trainer=trainer, **parts)
    assert float(log_of(plan, "environment")) < float(log_of(plan, "student"))


async def test_a_teacher_elsewhere_that_goes_away_ends_the_run(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conductor, "TEACHER_CHECK_S", 0.02)
    models = replace(plan.models, teacher_url="http://127.0.0.1:9")
    outcome = await conduct(replace(plan, models=models), monkeypatch, trainer=FOREVER, evaluator=FOREVER)
    assert isinstance(outcome.failure, TeacherUnreachable)
    assert outcome.failure.exit_code == 3
    await until(lambda: not marked_processes(plan.files.root))
