"""The usable rows of a teacher that reads the student's own tokens.

Arrays of a group speak of token p given the tokens before it; the model's logits at p - 1 predict token p.
The shift between the two is made here, and nowhere else for these teachers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atroposlib.collate.reasons import NOT_PROBABILITIES, NOT_SCORED, TAUGHT, Reasons
from atroposlib.types import ABSENT_ID, ABSENT_LOGPROB, Targets
from atroposlib.wire.targets import MOST_MASS, repeated


@dataclass(frozen=True, slots=True)
class Rows:
    """What a teacher said of R tokens of one sequence.

    Attributes:
        positions: int64 [R], strictly rising: logits at ``positions[r]`` predict token ``positions[r] + 1``.
        ids: int64 [R, K]; ``ABSENT_ID`` where a column is absent; no id twice in a row.
        logprobs: float32 [R, K] in nats.
    """

    positions: NDArray[np.int64]
    ids: NDArray[np.int64]
    logprobs: NDArray[np.float32]

    def __len__(self) -> int:
        """R."""
        return len(self.positions)

    def of_tokens(self, token_ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """float32 [R]: the logprob of the token that stands in the sequence; NaN where it is not listed."""
        standing = self.ids == token_ids[self.positions + 1, None]
        found = np.where(standing, self.logprobs, np.float32(-np.inf)).max(axis=-1, initial=-np.inf)
        return np.where(standing.any(axis=-1), found, np.float32(np.nan))


@dataclass(slots=True)
class ColumnCounts:
    """What of the columns is not used.

    Attributes:
        duplicate: Ids listed a second time in their row; the first one counts.
        out_of_vocabulary: Entries that the student has no row for; they belong to the tail.
    """

    duplicate: int = 0
    out_of_vocabulary: int = 0


def target_rows(
    targets: Targets, index: int, trained: NDArray[np.bool_], vocab_size: int, counts: ColumnCounts
) -> tuple[Rows, Reasons]:
    """The rows at the trained tokens of one sequence.

    Args:
        targets: Of a group; float16 is read as float32.
        index: The sequence in it.
        trained: bool [T].
        vocab_size: Rows of the student's head.
        counts: Where unused columns are counted.

    Returns:
        The rows, and why each token [T] has none.
    """
    wanted = np.flatnonzero(trained)
    first_row = int(targets.counts[:index].sum())
    inside = wanted - int(targets.starts[index])
    has_row = (inside >= 0) & (inside < targets.counts[index])
    at = first_row + inside[has_row]
    ids, logprobs = _single_events(
        targets.ids[at].astype(np.int64), targets.logprobs[at].astype(np.float32), vocab_size, counts
    )
    scored = wanted[has_row]
    reasons = np.full(len(trained), NOT_SCORED, np.int8)
    reasons[scored] = _verdicts(ids, logprobs)
    usable = reasons[scored] == TAUGHT
    return Rows(scored[usable] - 1, ids[usable], logprobs[usable]), reasons


def _single_events(
    ids: NDArray[np.int64], logprobs: NDArray[np.float32], vocab_size: int, counts: ColumnCounts
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The arrays with each id once in a row and below ``vocab_size``, and absent entries marked by id."""
    ids = np.where(logprobs <= ABSENT_LOGPROB, ABSENT_ID, np.maximum(ids, ABSENT_ID))
    outside = ids >= vocab_size
    counts.out_of_vocabulary += int(outside.sum())
    ids = np.where(outside, ABSENT_ID, ids)
    duplicate = repeated(ids)
    counts.duplicate += int(duplicate.sum())
    ids = np.where(duplicate, ABSENT_ID, ids)
    return ids, np.where(ids == ABSENT_ID, np.float32(ABSENT_LOGPROB), logprobs)


def _verdicts(ids: NDArray[np.int64], logprobs: NDArray[np.float32]) -> Reasons:
    """int8 [R]: ``TAUGHT`` for rows with a present column whose values can be of one distribution."""
    present = ids != ABSENT_ID
    with np.errstate(over="ignore", invalid="ignore"):
        mass = np.where(present, np.exp(logprobs, dtype=np.float64), 0.0).sum(axis=-1)
    # NaN compares false, so a row with one is not sound either.
    sound = np.where(mass <= MOST_MASS, TAUGHT, NOT_PROBABILITIES)
    return np.where(present.any(axis=-1), sound, NOT_SCORED).astype(np.int8)
