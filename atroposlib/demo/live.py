"""The live view of a demo: one table on a terminal, one line an event elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from atroposlib.demo.plan import API, ENVIRONMENT, EVALUATOR, STUDENT, TEACHER, TRAINER
from atroposlib.demo.progress import Progress

BLOCKS = "▁▂▃▄▅▆▇█"


class View:
    """Shows a run's progress on a console. Use it as a context manager."""

    def __init__(self, console: Console, progress: Progress, title: str) -> None:
        self._console = console
        self._progress = progress
        self._title = title
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, lines: list[str]) -> None:
        """Show the present state; ``lines`` are written out where there is no live table."""
        if self._live is not None:
            self._live.update(panel(self._progress, self._title, time.time()), refresh=True)
            return
        for line in lines:
            self.say(line)

    def log(self, line: str) -> None:
        """Write a line that the live table makes needless."""
        if self._live is None:
            self.say(line)

    def say(self, line: str) -> None:
        """Write one line, with the time since the start, above the table if there is one."""
        elapsed = time.time() - self._progress.started
        self._console.print(f"{elapsed:6.1f} s  {line}", markup=False, highlight=False, soft_wrap=True)


def panel(progress: Progress, title: str, now: float) -> RenderableType:
    """The live table: what each part does, how fast, and how far the run is."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    table.add_column(justify="right", no_wrap=True)
    for name, (what, rate) in rows(progress, now).items():
        table.add_row(name, what or progress.parts.get(name, "waits"), rate)
    head = Text(title, style="bold")
    foot = Text(f"{clock(now - progress.started)} elapsed", style="dim")
    return Group(head, Text(), table, Text(), foot)


def rows(progress: Progress, now: float) -> dict[str, tuple[str, str]]:
    """Name of each part -> what it does (empty while it has done nothing) and its rate."""
    sent, dropped = progress.groups_sent, progress.groups_dropped
    queue = progress.queue
    return {
        TEACHER: ("scores rollouts" if sent else "", per_second(progress.scores.value(now))),
        STUDENT: (
            f"samples rollouts, weights of step {progress.policy_version}" if sent else "",
            per_second(progress.rollouts.value(now)),
        ),
        ENVIRONMENT: (f"{sent} groups sent, {dropped} dropped" if sent or dropped else "", ""),
        API: (f"{queue} sequences queued" if queue is not None else "", ""),
        TRAINER: (_training(progress), per_second(progress.training.value(now))),
        EVALUATOR: (_held_out(progress), ""),
    }


def _training(progress: Progress) -> str:
    if not progress.losses:
        return ""
    return (
        f"step {progress.done} of {progress.steps}, loss {progress.losses[-1]:.2f} nats/{progress.unit}  "
        f"{sparkline(progress.losses)}"
    )


def _held_out(progress: Progress) -> str:
    if not progress.kl:
        return ""
    steps = sorted(progress.kl)
    values = " → ".join(f"{progress.kl[step]:.2f}" for step in steps)
    return f"held-out KL {values} nats/{progress.unit} (step {steps[-1]})"


def sparkline(values: list[float], width: int = 24) -> str:
    """The last values as a row of blocks, from zero to the largest."""
    shown = values[-width:]
    top = max(max(shown), 1e-9)
    return "".join(BLOCKS[min(len(BLOCKS) - 1, int(max(0.0, value) / top * len(BLOCKS)))] for value in shown)


def per_second(rate: float) -> str:
    """A rate for people; nothing when it is zero."""
    return f"{rate:.0f} tok/s" if rate > 0 else ""


def clock(seconds: float) -> str:
    """Minutes and seconds."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}"
