"""A fixed short sequence whose scores tell whether a server still holds the model it held before.

A server that was restarted with another model answers validly, and a run would go on against a wrong teacher.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from atroposlib.teacher.protocol import Question
from atroposlib.types import TeacherScores

IDS = np.asarray([3 + (7 * index * index + 5 * index) % 41 for index in range(33)], dtype=np.int32)
"""Ids below 44, which every vocabulary has. What they spell does not matter."""

TOLERANCE = 0.1
"""Nats, in the mean over the 32 positions. Another model is off by several, another order of summation in
bfloat16 by about 0.03; another quantisation of the same weights may be refused, and is another teacher."""

QUESTION = Question(ids=IDS, k=0)


def logprobs(scores: TeacherScores) -> NDArray[np.float32]:
    """What is compared of the answer to :data:`QUESTION`: float32 [32] in nats, -inf where absent."""
    return np.array(scores.logprobs[:, 0], dtype=np.float32)


def difference(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """Mean distance in nats; infinite where a token is impossible in one and not in the other."""
    if one.shape != other.shape or (np.isneginf(one) != np.isneginf(other)).any():
        return float("inf")
    both = np.isfinite(one)
    return float(np.abs(one[both] - other[both]).mean()) if both.any() else 0.0


def same(one: NDArray[np.float32], other: NDArray[np.float32]) -> bool:
    """Whether two answers are one model's, up to :data:`TOLERANCE`."""
    return difference(one, other) <= TOLERANCE
