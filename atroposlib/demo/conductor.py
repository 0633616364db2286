"""Conducts one run: starts the parts in order, follows them, and ends them however the run ends."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import aiohttp

from atroposlib.demo.children import children
from atroposlib.demo.live import View
from atroposlib.demo.plan import API, ENVIRONMENT, EVALUATOR, STUDENT, TEACHER, TRAINER, Plan
from atroposlib.demo.processes import Supervisor
from atroposlib.demo.progress import Follower, Progress
from atroposlib.errors import AtroposError, RunError, TeacherUnreachable
from atroposlib.journal import Journal

LOOK_S = 0.5
TEACHER_CHECK_S = 5.0
TEACHER_CHECKS = 3
HTTP_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended.

    Attributes:
        interrupted: Whether a signal ended it.
        failure: What ended it before its time; None when nothing did.
        status: The API's last GET /v1/status; None when it could not be had.
    """

    interrupted: bool
    failure: AtroposError | None
    status: dict[str, Any] | None


class Conductor:
    """One run of a plan; use it once."""

    def __init__(self, plan: Plan, view: View, progress: Progress) -> None:
        self._plan = plan
        self._view = view
        self._progress = progress
        self._specs = {spec.name: spec for spec in children(plan)}
        self._supervisor = Supervisor(plan.files.logs, grace_s=plan.settings.grace_s)
        self._follower = Follower(plan.files, progress)
        self._journal = Journal(plan.files.journal("demo"))
        self._interrupted = asyncio.Event()

    async def run(self) -> Outcome:
        """Run to the end, to an interrupt or to a failure; no process is left running."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupt)
        failure: AtroposError | None = None
        status: dict[str, Any] | None = None
        timeout = aiohttp.ClientTimeout(total=HTTP_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            try:
                await _first_of(
                    self._conduct(),
                    self._follow(session),
                    self._supervisor.watch(),
                    self._watch_teacher(session),
                    self._interrupted.wait(),
                )
            except AtroposError as error:
                failure = error
            finally:
                status = await self._wind_down(session)
        interrupted = self._interrupted.is_set() and failure is None
        return Outcome(interrupted, failure, status)

    async def _conduct(self) -> None:
        timeout_s = self._plan.settings.ready_timeout_s
        with self._journal.span("phase", name="servers start"):
            servers = [name for name in (API, STUDENT, TEACHER) if name in self._specs]
            for name in (*servers, EVALUATOR):
                await self._start(name)
            await self._ready([API], timeout_s)
            # The trainer loads its model while the servers load theirs.
            await self._start(TRAINER)
            await self._ready([name for name in servers if name != API], timeout_s)
        with self._journal.span("phase", name="training"):
            await self._start(ENVIRONMENT)
            await self._supervisor.ended(TRAINER)
            self._progress.parts[TRAINER] = "has ended"
            self._look()
            if self._progress.done < self._plan.settings.steps:
                raise RunError(
                    "the trainer ended before the last step",
                    where=str(self._plan.files.logs / f"{TRAINER}.log"),
                    got=f"{self._progress.done} steps",
                    expected=f"{self._plan.settings.steps}",
                )
        await self._supervisor.stop(ENVIRONMENT)
        with self._journal.span("phase", name="last evaluation"):
            await self._supervisor.ended(EVALUATOR)

    async def _start(self, name: str) -> None:
        self._progress.parts[name] = "starts"
        await self._supervisor.start(self._specs[name])

    async def _ready(self, names: list[str], timeout_s: float) -> None:
        await self._supervisor.ready(names, timeout_s)
        for name in names:
            self._progress.parts[name] = "is ready"
            self._view.log(f"{name}: is ready")

    async def _follow(self, session: aiohttp.ClientSession) -> None:
        while True:
            status = await self._status(session)
            self._progress.queue = status["queue"]["sequences"] if status else None
            self._look()
            await asyncio.sleep(LOOK_S)

    def _look(self) -> None:
        self._view.update(self._follower.update())

    async def _watch_teacher(self, session: aiohttp.ClientSession) -> None:
        """Raises TeacherUnreachable when a teacher that runs elsewhere stays away."""
        url = self._plan.models.teacher_url
        if url is None:
            await asyncio.Event().wait()
        self._progress.parts[TEACHER] = f"runs at {url}"
        missed = 0
        while missed < TEACHER_CHECKS:
            await asyncio.sleep(TEACHER_CHECK_S)
            missed = 0 if await _json(session, f"{url}/v1/models") is not None else missed + 1
        raise TeacherUnreachable(
            "the teacher is gone", where=url, expected=f"an answer to {missed} questions"
        )

    async def _wind_down(self, session: aiohttp.ClientSession) -> dict[str, Any] | None:
        try:
            self._view.say("ending every part")
            # First what posts and fetches, so that the API's counters stand still.
            await self._supervisor.stop(ENVIRONMENT, TRAINER)
            return await self._status(session)
        finally:
            await self._supervisor.stop_all()
            self._look()

    async def _status(self, session: aiohttp.ClientSession) -> dict[str, Any] | None:
        return await _json(session, f"{self._plan.api_url}/v1/status")

    def _interrupt(self) -> None:
        if self._interrupted.is_set():
            self._supervisor.hurry()
        self._interrupted.set()


async def _first_of(*coroutines: Coroutine[Any, Any, object]) -> None:
    """Run all until one ends; the others are cancelled, and its exception is raised."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in done:
        task.result()


async def _json(session: aiohttp.ClientSession, url: str) -> dict[str, Any] | None:
    """The JSON object that a URL answers with; None when there is no answer."""
    try:
        async with session.get(url) as answer:
            value: dict[str, Any] | None = await answer.json() if answer.status == 200 else None
            return value
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return None
