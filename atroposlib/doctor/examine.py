"""Examines one server: what it says of itself, then its answers, as far as it lets us come."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace

from atroposlib.doctor.answers import check_answers
from atroposlib.doctor.check import Check, failed, is_unreachable
from atroposlib.doctor.features import check_features
from atroposlib.doctor.logits import detect_logits
from atroposlib.doctor.server import check_context, check_listing, find_scoring, text_ids
from atroposlib.doctor.student import check_own_teacher, check_samples
from atroposlib.doctor.subject import Scoring, Subject
from atroposlib.doctor.tokenizers import (
    ALIGNABLE,
    check_served_tokenizer,
    check_tokenizer,
    check_vocabulary,
    with_served_tokenizer,
)
from atroposlib.errors import AtroposError


async def examine_teacher(subject: Subject, longest: int | None) -> tuple[list[Check], Scoring | None]:
    """All checks of a teacher's server but its speed.

    Args:
        subject: The server.
        longest: Tokens of the longest sequence that a run will have scored; None where that is not known.

    Returns:
        The checks, and the server as it scores; None where it does not.
    """
    checks, served = await check_listing(subject)
    if served is None:
        return checks, None
    subject = await with_served_tokenizer(subject)
    compared = await asyncio.to_thread(check_tokenizer, subject)
    checks += compared
    subject = replace(subject, other=any(check.facts.get("verdict") == ALIGNABLE for check in compared))
    checks += await _guarded("served tokenizer", subject, check_served_tokenizer(subject))
    checks += await _guarded("features", subject, check_features(subject))
    found, scoring = await find_scoring(subject)
    checks += found
    if scoring is None:
        answers = not any(is_unreachable(check) for check in found)
        return checks + (await _guarded("answers", subject, detect_logits(subject)) if answers else []), None
    checks.append(check_context(subject, scoring.can, longest))
    checks += await _guarded("answers", subject, check_answers(scoring))
    checks += await _guarded("vocabulary", subject, check_vocabulary(scoring))
    return checks, scoring


async def examine_student(subject: Subject) -> list[Check]:
    """All checks of a student's server; that it scores is asked for only to compare it with itself."""
    checks, served = await check_listing(subject)
    if served is None:
        return checks
    checks += await _guarded("served tokenizer", subject, check_served_tokenizer(subject))
    sampled, drawn = await check_samples(subject, await text_ids(subject))
    checks.append(sampled)
    if drawn is not None:
        checks += await _guarded("own teacher", subject, check_own_teacher(subject, drawn))
    return checks


async def _guarded(name: str, subject: Subject, checks: Awaitable[list[Check]]) -> list[Check]:
    """The checks, or that the first question of them failed."""
    try:
        return await checks
    except AtroposError as error:
        return [failed(name, subject.name, error)]
