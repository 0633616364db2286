"""Completes one group with its teachers' targets: whom to ask, what to ask, and what becomes of the group."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from atroposlib.config.teachers import called
from atroposlib.envs.counters import Coverage
from atroposlib.envs.tasks import all_of, off_loop
from atroposlib.envs.teacher_answers import (
    TeacherAnswer,
    Verdict,
    answer,
    first_reason,
    reason_of,
    verdict,
)
from atroposlib.envs.teacher_exact import projected
from atroposlib.envs.teacher_parts import parts_of, plain_parts
from atroposlib.envs.teacher_reading import Part, Reading, Rows, said
from atroposlib.envs.teacher_routing import Assignment, assigned
from atroposlib.envs.teacher_set import TeacherSet
from atroposlib.envs.teacher_targets import aligned_entry, entry, rectangular, with_arrays
from atroposlib.errors import AtroposError, ConfigError, TeacherError
from atroposlib.types import ScoredDataGroup

if TYPE_CHECKING:
    from atroposlib.envs.teacher_distillation_env import TeacherDistillationEnv

NOT_EXACT = "not_exact"
"""Reason of positions that a teacher scored in chunks which no row of the student's ids can say."""

STUDENT = "the student, asked for its own top-k,"

Extra = tuple[int, NDArray[np.int32]]
"""First position, and ids [R, E] that the student names from there on."""


async def complete(
    env: TeacherDistillationEnv, teachers: TeacherSet, group: ScoredDataGroup
) -> ScoredDataGroup | None:
    """A copy of the group with its targets; None when it was dropped or goes back to the loop."""
    config = env.config
    who = assigned(
        teachers.configs,
        group.get("group_overrides") or {},
        top_k=config.teacher_top_k,
        env_names=_names(env),
    )
    if not group.get("tokens") or not who:
        return with_arrays(group, None, None)
    troubles = await teachers.meet([one.name for one in who])
    # Every teacher is asked, so that each that takes no ids is told.
    takers = {one.name for one in who if _student_top_k(env) and teachers.takes_ids(one.name)}
    extra = await _student_ids(env, teachers, group) if takers else []
    answers = await all_of(
        _answer(env, teachers, one, group, extra if one.name in takers else [], troubles.get(one.name))
        for one in who
    )
    decided, failure = verdict(getattr(config, "on_teacher_failure", "send_without"), answers)
    reason = reason_of(failure) if failure is not None else ""
    if decided is Verdict.REQUEUE and failure is not None:
        if env.runtime.requeue(reason, group, failure, config.teacher_requeues):
            return None
        decided = Verdict.DROP
    if decided is not Verdict.SEND:
        reason = reason or first_reason(answers)
        for one in answers:
            one.withhold(reason)
    _book(env, group, answers)
    if decided is Verdict.DROP:
        env.runtime.drop(reason, group)
        return None
    if decided is Verdict.SEND_WITHOUT:
        return with_arrays(group, None, None)
    return await _with_targets(env, teachers, group, answers)


def _student_top_k(env: TeacherDistillationEnv) -> int:
    top_k: int = getattr(env.config, "student_top_k", 0)
    return top_k


def _names(env: TeacherDistillationEnv) -> set[str]:
    """What the environment may be called in a teacher's route."""
    names = (getattr(env.config, "wandb_name", None), env.name, type(env).__name__)
    return {name for name in names if name}


async def _answer(
    env: TeacherDistillationEnv,
    teachers: TeacherSet,
    who: Assignment,
    group: ScoredDataGroup,
    extra: Sequence[Extra | None],
    trouble: TeacherError | None,
) -> TeacherAnswer:
    """What one teacher says of the group; told in the log, the journal and the counters.

    ``trouble`` is why its tokenizer is not known, so that it cannot be asked.
    """
    start = time.time()
    parts = plain_parts(env, group) if trouble else await parts_of(env, teachers, who.name, group)

    async def fetch(index: int, reading: Reading) -> Rows:
        if trouble is not None:
            raise trouble
        ask = env._fetch_teacher_for_sequence
        ids = _extra_of(extra[index], reading) if extra else None
        more = {"start": reading.start, "teacher": who.name, "extra_ids": ids}
        accepted = _accepted(ask, more)
        if "teacher" not in accepted and who.name != teachers.first:
            raise ConfigError(
                "_fetch_teacher_for_sequence is overridden without its argument `teacher`, so it answers for "
                f"{teachers.first} alone",
                where=f"teacher {who.name}",
            )
        rows: Rows = await ask(reading.ids, who.top_k, **accepted)
        return rows

    told = await answer(who, parts, fetch, longest=teachers.longest(who.name))
    teachers.tell(called(who.name), told.failures)
    runtime = getattr(env, "runtime", None)
    if runtime is not None:
        codes = (error.code if isinstance(error, AtroposError) else "other" for error in told.failures)
        runtime.counters.teacher_failures.update(codes)
        readings = [part.reading for part in parts if part.reading is not None]
        runtime.journal.write(
            "teacher",
            start=start,
            teacher=who.name,
            sequences=len(readings),
            tokens=sum(len(reading.ids) for reading in readings),
            failed=len(told.failures),
            positions=told.wanted,
            scored=told.scored,
        )
    return told


def _accepted(function: Any, keywords: dict[str, Any]) -> dict[str, Any]:
    """The keywords that a function takes: an override may be written for Atropos's two arguments."""
    parameters = inspect.signature(function).parameters
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        return keywords
    return {name: value for name, value in keywords.items() if name in parameters}


async def _student_ids(
    env: TeacherDistillationEnv, teachers: TeacherSet, group: ScoredDataGroup
) -> list[Extra | None]:
    """The student's own top-k at the kept positions of each sequence."""
    named = (_named(env, part, _student_top_k(env)) for part in plain_parts(env, group))
    results = await asyncio.gather(*named, return_exceptions=True)
    failures: list[Exception] = []
    found: list[Extra | None] = []
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, AtroposError):
            raise result
        failures += [result] if isinstance(result, AtroposError) else []
        found.append(None if isinstance(result, BaseException) else result)
    # The teacher's own top-k is a target without it.
    teachers.tell(STUDENT, failures)
    return found


async def _named(env: TeacherDistillationEnv, part: Part, top_k: int) -> Extra | None:
    if part.reading is None:
        return None
    scores = await env.server.score(part.reading.ids, top_k, part.reading.first)
    return part.reading.first, scores.ids[:, 1:]


def _extra_of(extra: Extra | None, reading: Reading) -> NDArray[np.int32] | None:
    """The ids [R, E] that the student names at the rows of a reading."""
    if extra is None:
        return None
    first, ids = extra
    return ids[reading.first - first : reading.end - first]


def _book(env: TeacherDistillationEnv, group: ScoredDataGroup, answers: Sequence[TeacherAnswer]) -> None:
    """Count what each teacher was to score and has scored, and the rest by reason."""
    runtime = getattr(env, "runtime", None)
    if runtime is None:
        return
    for one in answers:
        coverage = runtime.counters.teachers.setdefault(one.teacher.name, Coverage())
        coverage.wanted += one.wanted
        coverage.scored += one.scored
    masked: Counter[str] = sum((one.masked for one in answers), Counter())
    if masked:
        runtime.count_masked(group, masked)


async def _with_targets(
    env: TeacherDistillationEnv,
    teachers: TeacherSet,
    group: ScoredDataGroup,
    answers: Sequence[TeacherAnswer],
) -> ScoredDataGroup:
    """The group with what its teachers said: an entry each, and ``distill_*`` in the student's own ids."""
    lengths = [len(ids) for ids in group["tokens"]]
    others = [one for one in answers if teachers.is_other(one.teacher.name)]
    arrays = [None if one in others or not one.scored else rectangular(one.rows, lengths) for one in answers]
    distill = next((pair for pair in arrays if pair is not None), None)
    if distill is None and getattr(env.config, "distill_projection", "off") == "exact":
        distill = await _projected(env, teachers, group, others)
    complete = with_arrays(group, *(distill or (None, None)))
    if teachers.are_named or others:
        complete["teachers"] = [
            aligned_entry(teachers.facts(one.teacher), one.aligned if one.scored else [], lengths)
            if one in others
            else entry(teachers.facts(one.teacher), pair)
            for one, pair in zip(answers, arrays, strict=True)
        ]
    return complete


async def _projected(
    env: TeacherDistillationEnv,
    teachers: TeacherSet,
    group: ScoredDataGroup,
    others: Sequence[TeacherAnswer],
) -> tuple[list[Any], list[Any]] | None:
    """What the first teacher with another tokenizer said, where student ids say it exactly; counted."""
    first = next((one for one in others if one.scored), None)
    if first is None:
        return None
    exact = await teachers.tokenizers.exact_ids(first.teacher.name)
    cells = sum(one.rows[0].size for one in first.aligned if one is not None)
    rows = await off_loop(
        cells,
        lambda: [
            None if one is None else projected(one, np.asarray(ids, np.int32), exact)
            for one, ids in zip(first.aligned, group["tokens"], strict=True)
        ],
    )
    inexact = first.scored - sum(said(pair) for pair in rows if pair is not None)
    if inexact:
        env.runtime.count_masked(group, Counter({NOT_EXACT: inexact}))
    return rectangular(rows, [len(ids) for ids in group["tokens"]])
