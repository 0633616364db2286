"""What one teacher said of a group, and the verdict over what all of them said."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import numpy as np
import pytest

from atroposlib.envs.teacher_answers import IMAGES, TeacherAnswer, Verdict, answer, first_reason, verdict
from atroposlib.envs.teacher_reading import Part, Reading, plain_part
from atroposlib.envs.teacher_routing import Assignment
from atroposlib.errors import TeacherError, TeacherUnreachable

WHO = Assignment("teacher", 1.0, 0)
AWAY = TeacherUnreachable("away")
REFUSED = TeacherError("refused", code="teacher.refused")
LOCKED_OUT = TeacherError("wrong key", code="teacher.refused")
LOCKED_OUT.servers_at_fault = True


def said_of(scored: int, *failures: Exception, masked: dict[str, int] | None = None) -> TeacherAnswer:
    wanted = scored + len(failures) + sum((masked or {}).values())
    reasons = Counter(masked or {})
    reasons.update("failed" for _ in failures)
    return TeacherAnswer(WHO, [], reasons, list(failures), wanted, scored)


@pytest.mark.parametrize(
    ("policy", "answers", "expected"),
    [
        ("mask", [said_of(3)], Verdict.SEND),
        ("mask", [said_of(3, AWAY)], Verdict.SEND),
        ("mask", [said_of(0, AWAY)], Verdict.REQUEUE),
        ("mask", [said_of(0, REFUSED)], Verdict.DROP),
        ("mask", [said_of(0, REFUSED, AWAY)], Verdict.REQUEUE),
        ("mask", [said_of(0, LOCKED_OUT)], Verdict.REQUEUE),
        ("mask", [said_of(0, AWAY), said_of(1)], Verdict.SEND),
        ("mask", [said_of(0, masked={IMAGES: 2})], Verdict.SEND),
        ("mask", [said_of(0, masked={"teacher_overlength": 2})], Verdict.DROP),
        ("mask", [said_of(0, masked={IMAGES: 1, "teacher_overlength": 1})], Verdict.DROP),
        ("mask", [said_of(0)], Verdict.SEND),
        ("requeue", [said_of(3)], Verdict.SEND),
        ("requeue", [said_of(3, AWAY)], Verdict.REQUEUE),
        ("requeue", [said_of(3, REFUSED)], Verdict.DROP),
        ("requeue", [said_of(3, masked={"teacher_overlength": 2})], Verdict.SEND),
        ("requeue", [said_of(3), said_of(2, AWAY)], Verdict.REQUEUE),
        ("drop", [said_of(3)], Verdict.SEND),
        ("drop", [said_of(3, AWAY)], Verdict.DROP),
        ("drop", [said_of(0, masked={IMAGES: 2})], Verdict.SEND),
        ("send_without", [said_of(3, AWAY)], Verdict.SEND_WITHOUT),
        ("send_without", [said_of(0, REFUSED)], Verdict.SEND_WITHOUT),
        ("send_without", [said_of(0, masked={"teacher_overlength": 2})], Verdict.SEND),
    ],
)
def test_policy_decides_what_becomes_of_a_group(policy: str, answers: Any, expected: Verdict) -> None:
    assert verdict(policy, answers)[0] is expected


def test_failure_that_may_pass_is_the_one_a_group_waits_for() -> None:
    assert verdict("mask", [said_of(0, REFUSED, AWAY)])[1] is AWAY


def test_reason_of_a_drop_is_what_masks_most() -> None:
    assert first_reason([said_of(0, masked={"a": 1, "b": 2}), said_of(0, masked={"a": 2})]) == "a"


def parts_of(chance: np.random.Generator) -> list[Part]:
    parts: list[Part] = []
    for _ in range(int(chance.integers(1, 6))):
        tokens = chance.integers(0, 50, int(chance.integers(1, 12))).tolist()
        mask = [token if chance.random() < 0.6 else -100 for token in tokens]
        part = plain_part(tokens, mask, "completion")
        parts.append(part if chance.random() < 0.8 else Part(part.kept, None, "teacher_images"))
    return parts


@pytest.mark.parametrize("seed", range(40))
async def test_every_wanted_position_is_scored_or_masked_for_a_reason(seed: int) -> None:
    chance = np.random.default_rng(seed)
    parts = parts_of(chance)
    fates = chance.choice(["fine", "fails", "silent", "misshapen", "odd"], len(parts)).tolist()

    async def fetch(index: int, reading: Reading) -> Any:
        ids = np.array(reading.ids)[:, None]
        logprobs = np.full(ids.shape, -1.0, np.float32)
        match fates[index]:
            case "fails":
                raise AWAY
            case "silent":
                return np.full_like(ids, -1), logprobs
            case "misshapen":
                return ids[:-1], logprobs[:-1]
            case "odd":
                return ids.tolist(), [[None]] * len(ids)
        return ids, logprobs

    longest = int(chance.integers(2, 14))
    told = await answer(WHO, parts, fetch, longest=longest)
    assert told.wanted == sum(int(part.kept.sum()) for part in parts)
    assert told.wanted == told.scored + told.masked.total()
    targets = sum(int((np.asarray(rows[0]) != -1).sum()) for rows in told.rows if rows is not None)
    assert targets == told.scored
    for index, (part, rows) in enumerate(zip(parts, told.rows, strict=True)):
        if rows is not None:
            assert fates[index] == "fine"
            assert part.reading is not None
            at = np.flatnonzero(np.asarray(rows[0])[:, 0] != -1)
            assert set(at) == {p for p in np.flatnonzero(part.kept) if p < longest}
            assert [int(rows[0][p][0]) for p in at] == [part.reading.ids[p] for p in at]


async def test_cancelled_question_ends_all_of_them() -> None:
    begun = asyncio.Event()
    ended: list[int] = []

    async def fetch(index: int, reading: Reading) -> Any:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(index)

    parts = [plain_part([1, 2], [1, 2], "completion")] * 3
    task = asyncio.create_task(answer(WHO, parts, fetch))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(ended) == [0, 1, 2]
