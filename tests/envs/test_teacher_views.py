"""Chunks on their way to a teacher and back: what is asked, what is taken out, and that all is counted."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from atroposlib.align.views.viewer import TeacherView
from atroposlib.envs.teacher_answers import answer
from atroposlib.envs.teacher_reading import Reading
from atroposlib.envs.teacher_routing import Assignment
from atroposlib.envs.teacher_views import ViewPart, without
from atroposlib.errors import TeacherUnreachable

WHO = Assignment("big", 1.0, 0)


def ints(*values: int) -> Any:
    return np.array(values, np.int32)


def part(student: Any, teacher: Any, masked: dict[str, int] | None = None) -> ViewPart:
    """Of student tokens that are all to have a target; the teacher's ids are 100, 101, .."""
    view = TeacherView(100 + np.arange(len(teacher), dtype=np.int32), student, teacher, Counter(masked or {}))
    return ViewPart(np.ones(len(student), np.bool_), view)


def rows(reading: Reading, *silent: int) -> Any:
    """One column: the standing token, but where the teacher is silent."""
    ids = np.array(reading.ids, np.int32)[:, None]
    ids[: reading.start] = -1
    ids[list(silent)] = -1
    return ids, np.where(ids < 0, -9999.0, -1.0).astype(np.float32)


def test_chunks_with_a_lost_token_or_without_a_side_are_taken_out_and_the_rest_renumbered() -> None:
    student, teacher = without(
        ints(-1, 0, 0, 1, 2, 4), ints(0, 1, 1, 2, 3, -1, 4), np.array([0, 0, 1, 0, 0, 0, 0], np.bool_)
    )
    assert student.tolist() == [-1, 0, 0, -1, 1, 2]
    assert teacher.tolist() == [0, -1, -1, 1, -1, -1, 2]


def test_nothing_is_left_of_nothing() -> None:
    student, teacher = without(ints(-1, -1), ints(), np.zeros(0, np.bool_))
    assert (student.tolist(), teacher.tolist()) == ([-1, -1], [])


def test_teacher_reads_to_its_last_chunk_and_is_scored_from_the_first() -> None:
    reading = part(ints(-1, 0, 1), ints(-1, -1, 0, -1, 1, -1)).reading
    assert reading is not None
    assert (reading.ids, reading.start, reading.end) == ([100, 101, 102, 103, 104], 2, 5)


def test_chunk_of_the_first_teacher_token_has_nothing_before_it() -> None:
    assert part(ints(0), ints(0)).reading is None


def test_chunk_is_lost_on_both_sides_when_the_teacher_leaves_one_of_its_tokens_out() -> None:
    one = part(ints(0, 1, 1, 2), ints(-1, 0, 1, 1, 2))
    assert one.reading is not None
    said = one.placed(rows(one.reading, 3), one.reading)
    assert said.student_chunk_id.tolist() == [0, -1, -1, 1]
    assert said.teacher_chunk_id.tolist() == [-1, 0, -1, -1, 1]
    assert said.rows[0][:, 0].tolist() == [-1, 101, -1, -1, 104]
    assert said.rows[1][:, 0].tolist() == [-9999.0, -1.0, -9999.0, -9999.0, -1.0]


def test_row_of_another_token_than_the_one_that_stands_there_is_no_score() -> None:
    one = part(ints(0), ints(-1, 0))
    assert one.reading is not None
    ids, logprobs = rows(one.reading)
    assert one.placed((ids + 1, logprobs), one.reading).scored == 0


def test_row_that_is_no_probability_takes_its_chunk_along() -> None:
    """It could not travel, and would leave a chunk of which one token has no score."""
    one = part(ints(0, 1, 2), ints(-1, 0, 1, 1, 2))
    assert one.reading is not None
    ids, logprobs = rows(one.reading)
    ids, logprobs = np.repeat(ids, 2, axis=1), np.repeat(logprobs, 2, axis=1)
    ids[1:, 1] += 50
    # e^-1 + e^-1 is below 1, e^-1 + e^-0.3 is not.
    logprobs[3, 1] = -0.3
    said = one.placed((ids, logprobs), one.reading)
    assert said.student_chunk_id.tolist() == [0, -1, 1]
    assert said.teacher_chunk_id.tolist() == [-1, 0, -1, -1, 1]


def chance_part(chance: np.random.Generator) -> ViewPart:
    chunks = int(chance.integers(0, 8))
    sides = [np.sort(chance.integers(0, max(chunks, 1), int(chance.integers(1, 12)))) for _ in range(2)]
    student, teacher = (np.where(chance.random(len(ids)) < 0.8, ids, -1).astype(np.int32) for ids in sides)
    valid = set(student.tolist()) & set(teacher.tolist()) - {-1}
    masked = int(sum(chunk not in valid for chunk in student.tolist()))
    return part(student, teacher, {"not_equal": masked} if masked else None)


@pytest.mark.parametrize("seed", range(40))
async def test_every_wanted_position_is_in_a_chunk_or_masked_for_a_reason(seed: int) -> None:
    chance = np.random.default_rng(seed)
    parts = [chance_part(chance) for _ in range(5)] + [ViewPart(np.ones(3, np.bool_), None, "images")]
    fates = chance.choice(["fine", "fails", "silent"], len(parts)).tolist()

    async def fetch(index: int, reading: Reading) -> Any:
        if fates[index] == "fails":
            raise TeacherUnreachable("away")
        silent = [reading.end - 1] if fates[index] == "silent" else []
        return rows(reading, *silent)

    longest = int(chance.integers(2, 14))
    told = await answer(WHO, parts, fetch, longest=longest)
    assert told.wanted == sum(len(one.kept) for one in parts)
    assert told.wanted == told.scored + told.masked.total()
    assert told.masked["images"] == 3
    found = [one for one in told.aligned if one is not None]
    assert told.scored == sum(int((one.student_chunk_id >= 0).sum()) for one in found)
    for one in found:
        chunks = set(one.student_chunk_id.tolist()) - {-1}
        assert chunks == set(one.teacher_chunk_id.tolist()) - {-1} == set(range(len(chunks)))
        assert len(one.tokens) <= longest
        # Each token of a chunk has its row, and no other token has one.
        assert ((one.rows[0][:, 0] == one.tokens) == (one.teacher_chunk_id >= 0)).all()
