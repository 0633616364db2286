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
from atroposlib.envs.tasks import all_of
from atroposlib.envs.teacher_answers import (
    IMAGES,
    TeacherAnswer,
    Verdict,
    answer,
    first_reason,
    reason_of,
    verdict,
)
from atroposlib.envs.teacher_context import MISMATCH, context_of
from atroposlib.envs.teacher_reading import Part, Reading, Rows, has_images, plain_part
from atroposlib.envs.teacher_routing import Assignment, assigned
from atroposlib.envs.teacher_set import TeacherSet
from atroposlib.envs.teacher_targets import rectangular
from atroposlib.errors import AtroposError, ConfigError
from atroposlib.teacher.targets import Positions
from atroposlib.types import ScoredDataGroup

if TYPE_CHECKING:
    from atroposlib.envs.teacher_distillation_env import TeacherDistillationEnv

STUDENT = "the student, asked for its own top-k,"
NO_MESSAGES = "cannot be given its context: the groups carry no messages to render it with"
NOT_THE_PROMPT = "cannot be given its context: the messages, rendered, are not what the student was asked"

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
        return _with_arrays(group, None, None)
    # Every teacher is asked, so that each that takes no ids is told.
    takers = [one for one in who if _student_top_k(env) and teachers.takes_ids(one.name)]
    extra = await _student_ids(env, teachers, group) if takers else [None] * len(group["tokens"])
    answers = await all_of(_answer(env, teachers, one, group, extra) for one in who)
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
        return _with_arrays(group, None, None)
    return _with_targets(teachers, group, answers)


def _student_top_k(env: TeacherDistillationEnv) -> int:
    top_k: int = getattr(env.config, "student_top_k", 0)
    return top_k


def _names(env: TeacherDistillationEnv) -> set[str]:
    """What the environment may be called in a teacher's route."""
    names = (getattr(env.config, "wandb_name", None), env.name, type(env).__name__)
    return {name for name in names if name}


def _positions(env: TeacherDistillationEnv) -> Positions:
    # Settings that know no such field are Atropos's, which keeps every position.
    positions: Positions = getattr(env.config, "teacher_positions", "all")
    return positions


def _mask(group: ScoredDataGroup, index: int) -> list[int] | None:
    masks = group.get("masks")
    return masks[index] if masks else None


async def _answer(
    env: TeacherDistillationEnv,
    teachers: TeacherSet,
    who: Assignment,
    group: ScoredDataGroup,
    extra: Sequence[Extra | None],
) -> TeacherAnswer:
    """What one teacher says of the group; told in the log, the journal and the counters."""
    start = time.time()
    parts = await _parts(env, teachers, who.name, group)

    async def fetch(index: int, reading: Reading) -> Rows:
        ask = env._fetch_teacher_for_sequence
        more = {"start": reading.start, "teacher": who.name, "extra_ids": _extra_of(extra[index], reading)}
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


async def _parts(
    env: TeacherDistillationEnv, teachers: TeacherSet, name: str, group: ScoredDataGroup
) -> list[Part]:
    """What the teacher reads of each sequence."""
    positions, tokens = _positions(env), group["tokens"]
    contexts = [context_of(teachers.configs[name], group, index) for index in range(len(tokens))]
    parts = [plain_part(ids, _mask(group, index), positions) for index, ids in enumerate(tokens)]
    if has_images(group.get("images")) and not env.teacher_takes_images:
        return [Part(part.kept, None, IMAGES) for part in parts]
    if not any(contexts):
        return parts
    renderer = await teachers.renderer(name, env.tokenizer)
    messages = group.get("messages") or [[]] * len(tokens)

    def rendered() -> list[Part]:
        return [
            renderer.part(tokens[index], _mask(group, index), positions, messages[index], context)
            if context
            else parts[index]
            for index, context in enumerate(contexts)
        ]

    parts = await asyncio.to_thread(rendered)
    if any(part.masked == MISMATCH for part in parts):
        teachers.tell_once(name, NOT_THE_PROMPT if group.get("messages") else NO_MESSAGES)
    return parts


async def _student_ids(
    env: TeacherDistillationEnv, teachers: TeacherSet, group: ScoredDataGroup
) -> list[Extra | None]:
    """The student's own top-k at the kept positions of each sequence."""
    top_k, tokens = _student_top_k(env), group["tokens"]
    positions = _positions(env)
    parts = [plain_part(ids, _mask(group, index), positions) for index, ids in enumerate(tokens)]
    results = await asyncio.gather(*(_named(env, part, top_k) for part in parts), return_exceptions=True)
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


def _with_targets(
    teachers: TeacherSet, group: ScoredDataGroup, answers: Sequence[TeacherAnswer]
) -> ScoredDataGroup:
    lengths = [len(ids) for ids in group["tokens"]]
    arrays = [rectangular(one.rows, lengths) if one.scored else None for one in answers]
    first = next((pair for pair in arrays if pair is not None), (None, None))
    complete = _with_arrays(group, *first)
    if teachers.are_named:
        complete["teachers"] = [
            _entry(teachers, one.teacher, pair) for one, pair in zip(answers, arrays, strict=True)
        ]
    return complete


def _entry(teachers: TeacherSet, who: Assignment, arrays: tuple[list[Any], list[Any]] | None) -> Any:
    entry = who.facts(teachers.model(who.name), teachers.fingerprint)
    if arrays is not None:
        entry["token_ids"], entry["logprobs"] = arrays
    return entry


def _with_arrays(
    group: ScoredDataGroup, token_ids: list[Any] | None, logprobs: list[Any] | None
) -> ScoredDataGroup:
    """A shallow copy with these arrays: the caller's group can be sent a second time."""
    copy = group.copy()
    copy["distill_token_ids"], copy["distill_logprobs"] = token_ids, logprobs
    return copy
