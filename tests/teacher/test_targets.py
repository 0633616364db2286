"""Which positions are kept, and the targets of a group out of scores, against their definition."""

from __future__ import annotations

import numpy as np
import pytest

from atroposlib.errors import TeacherError
from atroposlib.teacher.targets import kept_positions, kept_span, to_targets, with_extra
from atroposlib.types import TeacherScores


@pytest.mark.parametrize(
    ("mask", "positions", "span"),
    [
        ([-100, -100, 5, 6], "completion", (2, 4)),
        ([-100, 5, -100, 6, -100], "completion", (1, 4)),
        ([5, 6], "completion", (1, 2)),
        ([-100, -100], "completion", (1, 1)),
        ([5], "completion", (1, 1)),
        ([], "completion", (1, 1)),
        ([-100, -100, -100], "all", (1, 3)),
        ([5], "all", (1, 1)),
    ],
)
def test_span_is_the_first_kept_position_to_the_end_of_what_is_read(
    mask: list[int], positions: str, span: tuple[int, int]
) -> None:
    assert kept_span(mask, positions) == span  # type: ignore[arg-type]


def scores_of(chance: np.random.Generator, length: int, start: int, k: int) -> TeacherScores:
    rows = length - start
    ids = np.stack([chance.permutation(50)[: k + 1] for _ in range(rows)]).astype(np.int32)
    return TeacherScores(ids, chance.normal(-5, 1, ids.shape).astype(np.float32), start, "m")


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("positions", ["completion", "all"])
def test_targets_are_the_scores_at_kept_positions_and_nothing_else(seed: int, positions: str) -> None:
    chance = np.random.default_rng(seed)
    masks, scores = [], []
    for _ in range(int(chance.integers(1, 5))):
        length = int(chance.integers(2, 12))
        masks.append(np.where(chance.random(length) < 0.5, 7, -100).tolist())
        start = int(chance.integers(1, length))
        known = scores_of(chance, length, start, int(chance.integers(0, 4)))
        scores.append(known if chance.random() < 0.8 else None)
    targets = to_targets(scores, masks, positions)  # type: ignore[arg-type]
    assert targets.counts.sum() == len(targets.ids)
    rows = {}
    end = 0
    for index, (start, count) in enumerate(zip(targets.starts, targets.counts, strict=True)):
        for offset in range(count):
            rows[index, int(start) + offset] = (targets.ids[end + offset], targets.logprobs[end + offset])
        end += count
    for index, (one, mask) in enumerate(zip(scores, masks, strict=True)):
        kept = kept_positions(mask, positions)  # type: ignore[arg-type]
        for position in range(len(mask)):
            ids, logprobs = rows.get((index, position), (np.array([]), np.array([])))
            if one is None or not kept[position] or position < one.start:
                assert (ids == -1).all()
                assert np.isneginf(logprobs).all()
                continue
            width = one.ids.shape[1]
            assert ids[:width].tolist() == one.ids[position - one.start].tolist()
            assert logprobs[:width].tolist() == one.logprobs[position - one.start].tolist()
            assert (ids[width:] == -1).all()


def test_named_ids_become_columns_unless_the_row_has_them() -> None:
    scores = TeacherScores(
        ids=np.array([[5, 7], [6, -1]], np.int32),
        logprobs=np.array([[-1.0, -2.0], [-0.5, -np.inf]], np.float32),
        start=3,
        model="m",
        extra_logprobs=np.array([[-2.0, -3.0, -3.0], [np.nan, -np.inf, -4.0]], np.float32),
    )
    extra = np.array([[7, 9, 9], [-1, 8, 5]], np.int32)
    joined = with_extra(scores, extra)
    assert joined.ids.tolist() == [[5, 7, -1, 9, -1], [6, -1, -1, -1, 5]]
    assert joined.logprobs.tolist() == [
        [-1.0, -2.0, -np.inf, -3.0, -np.inf],
        [-0.5, -np.inf, -np.inf, -np.inf, -4.0],
    ]
    assert (joined.start, joined.extra_logprobs) == (3, None)


def test_named_ids_that_exceed_a_row_s_probability_are_refused() -> None:
    scores = TeacherScores(
        ids=np.array([[5, 7, 6], [6, 1, 5]], np.int32),
        logprobs=np.array([[-3.0, -1.0, -2.0], [-2.0, -0.4, -1.7]], np.float32),
        start=3,
        model="m",
        extra_logprobs=np.array([[-4.0, -4.0], [-1.8, -1.8]], np.float32),
    )
    with pytest.raises(TeacherError, match=r"rows\[1\].*above 1"):
        with_extra(scores, np.array([[8, 9], [3, 4]], np.int32))


def test_scores_without_named_ids_stay_as_they_are() -> None:
    scores = TeacherScores(np.zeros((1, 1), np.int32), np.zeros((1, 1), np.float32), 1, "m")
    assert with_extra(scores, np.array([[3]], np.int32)) is scores
