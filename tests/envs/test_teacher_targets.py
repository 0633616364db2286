"""Rectangular target arrays and the checks on a teacher's rows."""

from __future__ import annotations

import pytest

from atroposlib.envs.teacher_targets import check_rows, rectangular
from atroposlib.errors import TeacherError


def test_position_zero_is_absent_whatever_the_teacher_says() -> None:
    ids, logprobs = rectangular([([[7, 8], [9, 1]], [[-0.1, -0.2], [-0.3, -0.4]])], [2])
    assert ids == [[[-1, -1], [9, 1]]]
    assert logprobs == [[[-9999.0, -9999.0], [-0.3, -0.4]]]


def test_narrow_rows_are_filled_to_the_width_of_the_group() -> None:
    one = ([[], [5]], [[], [-0.5]])
    other = ([[], [6, 7, 8], [9]], [[], [-0.1, -0.2, -0.3], [-0.4]])
    ids, logprobs = rectangular([one, other], [2, 3])
    assert ids == [[[-1] * 3, [5, -1, -1]], [[-1] * 3, [6, 7, 8], [9, -1, -1]]]
    assert logprobs[0][1] == [-0.5, -9999.0, -9999.0]


def test_sequence_that_was_not_scored_is_all_absent() -> None:
    ids, logprobs = rectangular([None, ([[], [5, 6]], [[], [-0.5, -0.6]])], [3, 2])
    assert ids[0] == [[-1, -1]] * 3
    assert logprobs[0] == [[-9999.0, -9999.0]] * 3
    assert ids[1][1] == [5, 6]


@pytest.mark.parametrize(
    "rows",
    [
        ([[1]], [[-0.1]]),
        ([[1], [2]], [[-0.1]]),
        ([[1], [2, 3]], [[-0.1], [-0.2]]),
    ],
)
def test_rows_that_do_not_fit_are_refused(rows: tuple[list[list[int]], list[list[float]]]) -> None:
    with pytest.raises(TeacherError):
        check_rows(rows, 2)
