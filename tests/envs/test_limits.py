"""How many items are worked on at once."""

from __future__ import annotations

from typing import Any

import pytest

from atroposlib.config.env import BaseEnvConfig, EvalHandlingEnum
from atroposlib.envs.limits import derived_batch_size, worker_limit

STATUS = {"queue_size": 0, "self_queue_size": 0, "unallocated_fraction": 1.0}


def limit(config: dict[str, Any], status: dict[str, Any] | None = None, **more: Any) -> int:
    settings = BaseEnvConfig(**{"group_size": 4, "batch_size": 8, "max_batches_offpolicy": 3, **config})
    told = {**STATUS, **(status or {})}
    asked = {
        "max_workers": 100,
        "derived_batch_size": derived_batch_size(settings, told),
        "evaluating": False,
    }
    return worker_limit(settings, told, **{**asked, **more})


@pytest.mark.parametrize(("queued", "expected"), [(0, 6), (2, 4), (6, 0), (9, 0)])
def test_work_and_queue_together_hold_the_batches_ahead(queued: int, expected: int) -> None:
    assert limit({}, {"queue_size": queued}) == expected


def test_number_of_workers_bounds() -> None:
    assert limit({}, max_workers=2) == 2


def test_nothing_is_started_before_the_batch_size_is_known() -> None:
    assert limit({"batch_size": -1}) == 0


@pytest.mark.parametrize(
    ("handling", "expected"),
    [(EvalHandlingEnum.STOP_TRAIN, 0), (EvalHandlingEnum.LIMIT_TRAIN, 2), (EvalHandlingEnum.NONE, 4)],
)
def test_evaluation_stops_limits_or_leaves_training(handling: EvalHandlingEnum, expected: int) -> None:
    config = {"eval_handling": handling, "eval_limit_ratio": 0.5}
    assert limit(config, max_workers=4, evaluating=True) == expected


def test_guaranteed_share_is_filled_although_others_fill_the_queue() -> None:
    # Half of 3 batches of 8 are 12 sequences: 3 groups of 4, one of which waits already.
    status = {"queue_size": 50, "self_queue_size": 1, "unallocated_fraction": 0.5}
    assert limit({"min_batch_allocation": 0.5}, status) == 2


@pytest.mark.parametrize(
    ("minimum", "unallocated", "expected"), [(None, 1.0, 8), (None, 0.5, 4), (0.25, 0.5, 6), (None, 0.0, 0)]
)
def test_derived_batch_size_is_the_free_part_and_the_own_share(
    minimum: float | None, unallocated: float, expected: int
) -> None:
    config = BaseEnvConfig(batch_size=8, min_batch_allocation=minimum)
    assert derived_batch_size(config, {"unallocated_fraction": unallocated}) == expected


def test_derived_batch_size_before_the_first_status_is_the_batch_size() -> None:
    assert derived_batch_size(BaseEnvConfig(batch_size=8), {}) == 8
