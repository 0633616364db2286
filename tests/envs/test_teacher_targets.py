"""Rectangular target arrays of a group."""

from __future__ import annotations

import numpy as np

from atroposlib.envs.teacher_targets import rectangular


def test_narrow_rows_are_filled_to_the_width_of_the_group() -> None:
    one = ([[-1], [5]], [[-9999.0], [-0.5]])
    other = (
        [[-1] * 3, [6, 7, 8], [9, -1, -1]],
        [[-9999.0] * 3, [-0.1, -0.2, -0.3], [-0.4, -9999.0, -9999.0]],
    )
    ids, logprobs = rectangular([one, other], [2, 3])
    assert ids == [[[-1] * 3, [5, -1, -1]], [[-1] * 3, [6, 7, 8], [9, -1, -1]]]
    assert logprobs[0][1] == [-0.5, -9999.0, -9999.0]


def test_sequence_that_was_not_scored_is_all_absent() -> None:
    ids, logprobs = rectangular([None, ([[-1, -1], [5, 6]], [[-9999.0] * 2, [-0.5, -0.6]])], [3, 2])
    assert ids[0] == [[-1, -1]] * 3
    assert logprobs[0] == [[-9999.0, -9999.0]] * 3
    assert ids[1][1] == [5, 6]


def test_arrays_stay_arrays() -> None:
    rows = (np.array([[-1], [5]], np.int32), np.array([[-9999.0], [-0.5]], np.float32))
    ids, logprobs = rectangular([rows, None], [2, 1])
    assert ids[0] is rows[0]
    assert logprobs[1].tolist() == [[-9999.0]]
    assert {array.dtype for array in (*ids, *logprobs)} == {np.dtype(np.int32), np.dtype(np.float32)}
