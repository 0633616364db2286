"""Runs the demo from its settings to its report; `atropos demo` calls this."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from rich.console import Console

from atroposlib.config.demo import DemoSettings
from atroposlib.config.interrupts import sigterm_as_interrupt
from atroposlib.demo.conductor import Conductor, Outcome
from atroposlib.demo.live import View
from atroposlib.demo.plan import Plan
from atroposlib.demo.prepare import prepare
from atroposlib.demo.processes import ChildDied
from atroposlib.demo.progress import Progress
from atroposlib.demo.results import keep_newest_checkpoint, print_summary, write_results
from atroposlib.errors import EXIT_INTERRUPTED, EXIT_OK, AtroposError


def run(settings: DemoSettings) -> int:
    """Run a demo; returns the exit code.

    Raises:
        AtroposError: Something cannot be used, a part died, or the teacher cannot be reached. What the run
            had reached by then stands in its directory.
    """
    started = time.time()
    console = Console()
    with sigterm_as_interrupt():
        plan = prepare(settings, lambda line: console.print(line, markup=False, highlight=False))
    outcome = asyncio.run(_conduct(plan, console, started))
    summary = write_results(plan, outcome.status, _facts(outcome, time.time() - started))
    print_summary(console, summary, plan.files, keep_newest_checkpoint(plan.files))
    if outcome.failure is not None:
        _show_log(outcome.failure)
        raise outcome.failure
    return EXIT_INTERRUPTED if outcome.interrupted else EXIT_OK


async def _conduct(plan: Plan, console: Console, started: float) -> Outcome:
    progress = Progress(plan.settings.steps, started, plan.unit)
    title = f"atropos demo: {plan.models.teacher_title} teaches {plan.models.student_title}"
    with View(console, progress, title) as view:
        view.say(f"results in {plan.files.root}")
        view.say(f"the student is {plan.models.student_origin}")
        return await Conductor(plan, view, progress).run()


def _facts(outcome: Outcome, seconds: float) -> dict[str, Any]:
    ended = "failed" if outcome.failure else "interrupted" if outcome.interrupted else "finished"
    error = str(outcome.failure) if outcome.failure else None
    return {"outcome": ended, "error": error, "seconds": round(seconds, 1)}


def _show_log(failure: AtroposError) -> None:
    """The last lines of the log of a part that died."""
    died = failure if isinstance(failure, ChildDied) else failure.__cause__
    if isinstance(died, ChildDied):
        console = Console(stderr=True)
        console.print(f"last lines of {died.where}:", markup=False, highlight=False, soft_wrap=True)
        for line in died.tail:
            console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)
