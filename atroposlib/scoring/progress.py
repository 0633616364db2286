"""Tells how far a job is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import logging
import time
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from atroposlib.scoring.counts import Counts

LINE_EVERY_S = 10.0

logger = logging.getLogger(__name__)


class Reporter(Protocol):
    """Told how far a job is."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def tell(self, rows: int, own: Counts) -> None:
        """``rows`` are done by all workers, of which this one has done ``own``."""


def reporter(rows: int) -> Reporter:
    """What fits where stderr goes."""
    console = Console(stderr=True)
    return _Bar(rows, console) if console.is_terminal else _Lines(rows)


class _Pace:
    """Rows and tokens a second since the start."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._rows_before: int | None = None

    def seconds(self) -> float:
        return max(time.monotonic() - self._start, 1e-9)

    def rows_per_second(self, rows: int) -> float:
        if self._rows_before is None:
            # What earlier runs have done is no work of this one.
            self._rows_before = rows
        return (rows - self._rows_before) / self.seconds()

    def tokens_per_second(self, own: Counts) -> float:
        return own.tokens / self.seconds()


class _Lines:
    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._pace = _Pace()
        self._next = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def tell(self, rows: int, own: Counts) -> None:
        rate = self._pace.rows_per_second(rows)
        if self._pace.seconds() < self._next:
            return
        self._next = self._pace.seconds() + LINE_EVERY_S
        left = f"{(self._rows - rows) / rate:.0f} s left" if rate else "time left not known"
        logger.info(
            "%d/%d rows, %.1f rows/s, %.0f tokens/s, %s; %s",
            rows,
            self._rows,
            rate,
            self._pace.tokens_per_second(own),
            left,
            _outcome(own),
        )


class _Bar:
    def __init__(self, rows: int, console: Console) -> None:
        self._progress = Progress(
            TextColumn("rows"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[pace]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[outcome]}"),
            console=console,
        )
        self._bar = self._progress.add_task("", total=rows, pace="", outcome="")
        self._pace = _Pace()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def tell(self, rows: int, own: Counts) -> None:
        rate, tokens = self._pace.rows_per_second(rows), self._pace.tokens_per_second(own)
        self._progress.update(
            self._bar,
            completed=rows,
            pace=f"{rate:.1f} rows/s {tokens:.0f} tokens/s",
            outcome=_outcome(own),
        )


def _outcome(own: Counts) -> str:
    return f"here {own.scored} scored, {own.masked.total()} masked, {own.refused.total()} refused"
