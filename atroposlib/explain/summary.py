"""The figures of a comparison in words, and all of it as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import orjson

from atroposlib.align.explanation import UNKNOWN, Token
from atroposlib.align.tables.steps import LOSSY
from atroposlib.align.views.reasons import REASONS
from atroposlib.explain.comparison import Comparison

MEANINGS = REASONS | {UNKNOWN: "An id that stands for nobody knows what."}


def summary(found: Comparison, names: tuple[str, str]) -> Iterator[str]:
    """One line a fact.

    Args:
        found: What was compared.
        names: The student's tokenizer and the teacher's.
    """
    figures = found.coverage
    yield f"student  {names[0]}: {figures.student_tokens} tokens"
    yield f"teacher  {names[1]}: {figures.teacher_tokens} tokens"
    yield (
        f"chunks   {figures.chunks}: {figures.tokens_a_chunk:.3f} student tokens a chunk, "
        f"{figures.exact_share:.1%} one token to one"
    )
    whose = "the student's answers, which are" if found.answers_only else "the student's"
    paired = f"paired   {figures.student_share:.2%} of {whose} {figures.student_bytes} bytes"
    if not found.answers_only:
        paired += f", {figures.teacher_share:.2%} of the teacher's {figures.teacher_bytes}"
    yield paired
    if found.problem:
        yield f"problem  {found.problem}"
    for reason, count in sorted(found.masked.items()):
        yield f"masked   {count} student tokens, {reason}: {MEANINGS[reason]}"
    if found.masked:
        for side, lost in zip(("student", "teacher"), found.lossy, strict=True):
            for name in lost:
                yield f"         the {side}'s tokenizer can lose {name}: {LOSSY[name]}"
    match = found.match
    if match.same:
        yield "ids      mean the same on both sides, so no alignment is needed"
    else:
        yield f"ids      {match.reason}"
        yield f"         {match.overlap:.1%} of the student's byte strings are a token of the teacher too"


def as_json(found: Comparison, names: tuple[str, str]) -> str:
    """The same as JSON; a token is a ``marker``, a ``text``, or the ``hex`` of bytes that are no text."""
    told = {
        "student": {"tokenizer": names[0], "lossy": found.lossy[0]},
        "teacher": {"tokenizer": names[1], "lossy": found.lossy[1]},
        "match": found.match,
        "coverage": found.coverage,
        "masked": found.masked,
        "problem": found.problem,
        "chunks": [
            {
                "student": [_token(token) for token in one.student],
                "teacher": [_token(token) for token in one.teacher],
                "state": one.state,
                "reason": one.reason,
            }
            for one in found.shown
        ],
    }
    return orjson.dumps(msgspec.to_builtins(told), option=orjson.OPT_INDENT_2).decode()


def _token(token: Token) -> dict[str, Any]:
    if isinstance(token, str):
        return {"marker": token}
    try:
        return {"text": token.decode()}
    except UnicodeDecodeError:
        return {"hex": token.hex()}
