"""What a teacher reads of a sequence, and its rows at the student's positions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atroposlib.envs.teacher_reading import Part, Reading, as_arrays, at_student_positions, plain_part
from atroposlib.errors import TeacherError


def test_reading_ends_at_the_last_kept_position() -> None:
    part = plain_part([7, 8, 9, 10, 11], [-100, 8, -100, 10, -100], "completion")
    assert part.reading == Reading([7, 8, 9, 10], first=1, end=4)
    assert part.kept.tolist() == [False, True, False, True, False]


def test_sequence_without_masks_is_kept_whole_but_for_its_first_token() -> None:
    part = plain_part([7, 8, 9], None, "completion")
    assert part.reading == Reading([7, 8, 9], first=1, end=3)


@pytest.mark.parametrize("tokens", [[], [7]])
def test_sequence_without_a_second_token_is_not_read(tokens: list[int]) -> None:
    assert plain_part(tokens, tokens, "completion").reading is None


def test_cut_leaves_what_the_servers_context_holds() -> None:
    reading = Reading([1, 2, 3, 4, 5, 6], first=2, end=5, shift=1)
    assert reading.cut(4) == Reading([1, 2, 3, 4], first=2, end=3, shift=1)
    assert reading.cut(2) == Reading([1, 2], first=2, end=2, shift=1)
    assert reading.cut(6) is reading
    assert reading.cut(None) is reading


def test_rows_move_to_the_students_positions() -> None:
    # The teacher reads three tokens more before the student's third.
    kept = np.array([False, False, True, False, True])
    reading = Reading([90, 91, 92, 93, 94, 3, 4, 5], first=2, end=5, shift=3)
    ids = np.arange(8)[:, None] + 100
    logprobs = -np.arange(8, dtype=np.float32)[:, None]
    placed_ids, placed = at_student_positions((ids, logprobs), Part(kept, reading), reading)
    assert placed_ids[:, 0].tolist() == [-1, -1, 105, -1, 107]
    assert placed[:, 0].tolist() == [-9999.0, -9999.0, -5.0, -9999.0, -7.0]


def test_lists_stay_lists_and_numbers_stay_as_they_are() -> None:
    part = plain_part([1, 2, 3], None, "all")
    assert part.reading is not None
    rows: Any = ([[], [2, 5], [3]], [[], [-0.1, -0.2], [-0.3]])
    ids, logprobs = at_student_positions(rows, part, part.reading)
    assert ids == [[-1, -1], [2, 5], [3, -1]]
    assert logprobs == [[-9999.0, -9999.0], [-0.1, -0.2], [-0.3, -9999.0]]


@pytest.mark.parametrize(
    "rows",
    [
        ([[1]], [[-0.1]]),
        ([[1], [2]], [[-0.1]]),
        ([[1], [2]], [[-0.1], [-0.2, -0.3]]),
        ([[1], ["x"]], [[-0.1], [-0.2]]),
        ([[1], [2]], [[-0.1], [None]]),
        (np.ones((2, 2), np.int32), np.ones((2, 1), np.float32)),
        (np.ones(2, np.int32), np.ones(2, np.float32)),
        (np.ones((3, 1), np.int32), np.ones((3, 1), np.float32)),
    ],
)
def test_rows_that_do_not_fit_are_refused_whole(rows: Any) -> None:
    with pytest.raises(TeacherError):
        as_arrays(rows, 2)
