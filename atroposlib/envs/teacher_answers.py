"""What one teacher said of a group, sequence by sequence, and what becomes of the group by what all said.

For every teacher: positions wanted = positions scored + positions masked, each with a reason.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from atroposlib.envs.tasks import off_loop
from atroposlib.envs.teacher_reading import Part, Reading, Rows, said
from atroposlib.envs.teacher_routing import Assignment
from atroposlib.envs.teacher_views import Aligned, ViewPart
from atroposlib.errors import AtroposError

IMAGES = "teacher_images"
OVERLENGTH = "teacher_overlength"
SILENT = "teacher_silent"
FINAL = ("teacher.refused", "teacher.quarantined")
"""Codes of failures that another try does not mend."""

Fetch = Callable[[int, Reading], Awaitable[Rows]]
"""Rows [U][K] for what is read of a sequence, given its index in the group."""


@dataclass
class TeacherAnswer:
    """What one teacher said of the G sequences of a group.

    Attributes:
        teacher: Who, with what weight and top-k.
        rows: At the student's positions, [T][K] a sequence; None where nothing was scored.
        masked: Positions that have no target, by reason.
        failures: What the teacher's servers failed with, one a sequence.
        wanted: Positions that were to have a target.
        scored: Positions that have one.
        aligned: In the place of ``rows``, from a teacher with another tokenizer.
    """

    teacher: Assignment
    rows: list[Rows | None] = field(default_factory=list)
    masked: Counter[str] = field(default_factory=Counter)
    failures: list[Exception] = field(default_factory=list)
    wanted: int = 0
    scored: int = 0
    aligned: list[Aligned | None] = field(default_factory=list)

    def withhold(self, reason: str) -> None:
        """Count what was scored as masked: its group is sent without it, or not at all."""
        self.masked[reason] += self.scored
        self.masked = +self.masked
        self.scored = 0


def reason_of(error: Exception) -> str:
    """The reason under which a failure masks positions or drops a group."""
    return error.code.replace(".", "_") if isinstance(error, AtroposError) else "teacher_error"


async def answer(
    teacher: Assignment, parts: Sequence[Part | ViewPart], fetch: Fetch, *, longest: int | None = None
) -> TeacherAnswer:
    """Ask for all sequences of a group at once; a failure costs the positions of its sequence alone.

    Args:
        teacher: Who is asked.
        parts: What it reads of each of the G sequences.
        fetch: Asks it.
        longest: Most tokens that its servers score at once. What stands behind them is masked.
    """
    told = TeacherAnswer(teacher)
    calls = [_rows(fetch, index, part, longest) for index, part in enumerate(parts)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    for part, result in zip(parts, results, strict=True):
        if isinstance(result, BaseException) and not isinstance(result, Exception):
            raise result
        _book(told, part, result, longest)
    return told


async def _rows(
    fetch: Fetch, index: int, part: Part | ViewPart, longest: int | None
) -> Rows | Aligned | None:
    reading = None if part.reading is None else part.reading.cut(longest)
    if reading is None or reading.end <= reading.first:
        return None
    rows = await fetch(index, reading)
    columns = len(rows[0][0]) if len(rows[0]) else 0
    return await off_loop(len(reading.ids) * columns, lambda: part.placed(rows, reading))


def _book(
    told: TeacherAnswer,
    part: Part | ViewPart,
    result: Rows | Aligned | Exception | None,
    longest: int | None,
) -> None:
    """Count the positions of a sequence: wanted, scored, or masked for a reason."""
    wanted = int(part.kept.sum())
    told.wanted += wanted
    told.masked.update(part.known)
    rest = wanted - sum(part.known.values())
    scored = 0
    if isinstance(result, Exception):
        told.failures.append(result)
        told.masked[reason_of(result)] += rest
    else:
        scored = 0 if result is None else result.scored if isinstance(result, Aligned) else said(result)
        behind = part.behind(longest)
        told.masked[part.masked or SILENT] += rest - behind - scored
        told.masked[OVERLENGTH] += behind
    told.scored += scored
    told.rows.append(result if scored and isinstance(result, tuple) else None)
    told.aligned.append(result if scored and isinstance(result, Aligned) else None)
    told.masked = +told.masked


class Verdict(Enum):
    """What becomes of a group."""

    SEND = "send"
    SEND_WITHOUT = "send_without"
    REQUEUE = "requeue"
    DROP = "drop"


def verdict(policy: str, answers: Sequence[TeacherAnswer]) -> tuple[Verdict, Exception | None]:
    """Apply ``on_teacher_failure``; also the failure that decided it, when one did.

    A group that only images have kept from being scored is sent as it is: no teacher was to see it.
    """
    failures = [failure for one in answers for failure in one.failures]
    if failures and policy == "send_without":
        return Verdict.SEND_WITHOUT, failures[0]
    nothing = not any(one.scored for one in answers) and any(one.wanted for one in answers)
    if failures and (nothing or policy in ("drop", "requeue")):
        passing = next((failure for failure in failures if not _is_final(failure)), None)
        again = passing is not None and policy in ("mask", "requeue")
        return (Verdict.REQUEUE, passing) if again else (Verdict.DROP, failures[0])
    reasons = {reason for one in answers for reason in one.masked}
    if nothing and policy != "send_without" and reasons != {IMAGES}:
        return Verdict.DROP, None
    return Verdict.SEND, None


def _is_final(failure: Any) -> bool:
    return isinstance(failure, AtroposError) and failure.code in FINAL and not failure.servers_at_fault


def first_reason(answers: Sequence[TeacherAnswer]) -> str:
    """The reason that masks most positions of a group."""
    masked = sum((one.masked for one in answers), Counter())
    return masked.most_common(1)[0][0]
