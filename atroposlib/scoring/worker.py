"""One worker of a job: claims shards, keeps the teachers busy with their rows, and writes them in order."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from atroposlib.config.env import LogprobDtype
from atroposlib.errors import TeacherError
from atroposlib.scoring.asking import Answers, Errand, Panel
from atroposlib.scoring.chat import Chat, RowError
from atroposlib.scoring.claims import Claims
from atroposlib.scoring.counts import Counts
from atroposlib.scoring.plan import Plan, ShardRows
from atroposlib.scoring.progress import Reporter
from atroposlib.scoring.rows import Refusal, Row, read_row
from atroposlib.scoring.shard import OpenShard
from atroposlib.scoring.source import Source
from atroposlib.types import TeacherScores
from atroposlib.wire.shards import finished_shards, is_finished

READ_AHEAD_ROWS = 16
"""Rows that are read and tokenized at a time, in a thread."""

LOOK_EVERY_S = 5.0
"""Seconds between two looks at what other workers have finished, for the progress."""

LOOK_AGAIN_S = 1.0
"""The same when nothing is left to do but to take over what another worker gives up."""


@dataclass(frozen=True, slots=True)
class Job:
    """What all workers of a job share.

    Attributes:
        directory: Of its shards.
        plan: Its rows and shards.
        source: The input.
        panel: The teachers.
        chat: Makes tokens of text; None without the student's tokenizer.
        dtype: Type in which logprobs are stored.
        tokens_ahead: Tokens of rows that are asked for or wait to be written at a time.
        stop_after_failures: Rows that fail in a row before the job ends; None for no end.
    """

    directory: Path
    plan: Plan
    source: Source
    panel: Panel
    chat: Chat | None
    dtype: LogprobDtype
    tokens_ahead: int
    stop_after_failures: int | None


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A row and what is asked about it."""

    row: Row
    errands: list[Errand]


@dataclass(frozen=True, slots=True)
class _Pending:
    """A row on its way into its shard; the next one of its shard is behind it."""

    shard: OpenShard
    outcome: asyncio.Task[Answers] | Refusal
    tokens: int

    @property
    def done(self) -> bool:
        return isinstance(self.outcome, Refusal) or self.outcome.done()


class Worker:
    """Works until every shard of the job is finished, by itself or by others.

    Args:
        job: The job.
        reporter: Told of the progress.
    """

    def __init__(self, job: Job, reporter: Reporter) -> None:
        self._job = job
        self._reporter = reporter
        self._claims = Claims(job.directory)
        self._finished: set[int] = set()
        self._candidates: deque[int] = deque()
        self._others: list[int] = []
        self._open: list[OpenShard] = []
        self._window: deque[_Pending] = deque()
        self._tokens = 0
        self._failures = 0
        self._own = Counts()
        self._looked_at = -math.inf

    async def run(self) -> None:
        """Do the job.

        Raises:
            UsageError: The input has changed, or its rows need a tokenizer.
            TeacherError: A teacher is away, or fails on row after row; mostly within an ExceptionGroup.
            OSError: The input cannot be read, or a shard not be written.
        """
        try:
            await self._look()
            left = [number for number in range(self._job.plan.shards) if number not in self._finished]
            while left:
                self._candidates, self._others = deque(left), []
                async with asyncio.TaskGroup() as tasks:
                    await self._work(tasks)
                await self._look()
                left = [number for number in self._others if number not in self._finished]
                if left:
                    await asyncio.sleep(LOOK_AGAIN_S)
        finally:
            for shard in self._open:
                shard.abandon()
            self._claims.close()

    async def _look(self) -> None:
        """See what all workers have finished."""
        self._finished.update(await asyncio.to_thread(finished_shards, self._job.directory))
        self._looked_at = time.monotonic()
        self._tell()

    def _tell(self) -> None:
        rows = sum(shard.counts.rows for shard in self._open)
        self._reporter.tell(self._job.plan.rows_in(self._finished) + rows, self._own)

    def _claim(self) -> OpenShard | None:
        """The next shard that nobody else works on; None when there is none now."""
        while self._candidates:
            number = self._candidates.popleft()
            if number in self._finished:
                continue
            if not self._claims.take(number):
                self._others.append(number)
                continue
            if is_finished(self._job.directory, number):
                self._claims.give_back(number)
                self._finished.add(number)
                continue
            shard = OpenShard(self._job.directory, self._job.plan.shard(number), self._job.dtype)
            self._open.append(shard)
            return shard
        return None

    async def _work(self, tasks: asyncio.TaskGroup) -> None:
        """Finish every shard that can be claimed."""
        while (shard := self._claim()) is not None:
            rows = self._prepare(shard.rows)
            while chunk := await asyncio.to_thread(list, islice(rows, READ_AHEAD_ROWS)):
                for prepared in chunk:
                    self._begin(prepared, shard, tasks)
                    await self._settle(self._job.tokens_ahead)
            if time.monotonic() - self._looked_at > LOOK_EVERY_S:
                await self._look()
        await self._settle(0)

    def _prepare(self, rows: ShardRows) -> Iterator[_Prepared | Refusal]:
        given = self._job.source.rows(rows.first, rows.count, rows.offset)
        for number, raw in enumerate(given, start=rows.first):
            try:
                if isinstance(raw, RowError):
                    raise raw
                row = read_row(number, raw, self._job.chat)
                yield _Prepared(row, self._job.panel.errands(row))
            except RowError as error:
                yield Refusal(number, error.reason, error.detail)

    def _begin(self, prepared: _Prepared | Refusal, shard: OpenShard, tasks: asyncio.TaskGroup) -> None:
        if isinstance(prepared, Refusal):
            self._window.append(_Pending(shard, prepared, 0))
            return
        row = prepared.row
        asked = tasks.create_task(self._job.panel.ask(row, prepared.errands))
        tokens = sum(map(len, row.group.tokens))
        self._window.append(_Pending(shard, asked, tokens))
        self._tokens += tokens

    async def _settle(self, tokens_ahead: int) -> None:
        """Write rows in their order: those that are done, and as many as it takes to have room for more."""
        while self._window and (self._window[0].done or self._tokens > tokens_ahead):
            pending = self._window.popleft()
            outcome = pending.outcome if isinstance(pending.outcome, Refusal) else await pending.outcome
            self._tokens -= pending.tokens
            if isinstance(outcome, Answers):
                self._end_when_all_fails(outcome)
            shard = pending.shard
            if await asyncio.to_thread(shard.store, outcome, self._job.panel):
                self._open.remove(shard)
                self._finished.add(shard.rows.number)
                self._claims.give_back(shard.rows.number)
                self._own.add(shard.counts)
            self._tell()

    def _end_when_all_fails(self, answers: Answers) -> None:
        failure = answers.failure()
        if failure is None:
            if any(isinstance(one, TeacherScores) for said in answers.answers for one in said):
                self._failures = 0
            return
        self._failures += 1
        if self._failures == self._job.stop_after_failures:
            raise TeacherError(
                f"the teacher failed on {self._failures} rows in a row",
                code=failure.code,
                where=f"up to row {answers.row.number + 1} of the input",
                got=str(failure),
                fix="mend it and run this again; stop_after_failures: null would mask such rows",
            ) from failure
