"""How many items an environment works on at once, as a function of the queue and the settings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from atroposlib.config.env import BaseEnvConfig, EvalHandlingEnum


def worker_limit(
    config: BaseEnvConfig,
    status: Mapping[str, Any],
    *,
    max_workers: int,
    derived_batch_size: int,
    evaluating: bool,
) -> int:
    """Most items worked on at once, never below 0.

    Args:
        config: Settings of the environment, with the trainer's batch size.
        status: Answer of /status-env: ``queue_size`` and ``self_queue_size`` in groups.
        max_workers: Limit of the settings, after -1 was replaced.
        derived_batch_size: Sequences of a batch that fall to this environment; -1 when unknown.
        evaluating: An evaluation runs.
    """
    if derived_batch_size == -1:
        return 0
    if evaluating and config.eval_handling == EvalHandlingEnum.STOP_TRAIN:
        return 0
    if evaluating and config.eval_handling == EvalHandlingEnum.LIMIT_TRAIN:
        max_workers = int(max_workers * config.eval_limit_ratio)
    queued = int(status["queue_size"])
    ahead = config.max_batches_offpolicy * derived_batch_size // config.group_size - queued
    limit = min(max_workers, ahead)
    if config.min_batch_allocation is not None:
        # A guaranteed share must be filled even when the others have filled the queue.
        share = config.min_batch_allocation * config.batch_size * config.max_batches_offpolicy
        limit = max(limit, math.ceil(share / config.group_size) - int(status.get("self_queue_size", 0)))
    return max(limit, 0)


def derived_batch_size(config: BaseEnvConfig, status: Mapping[str, Any]) -> int:
    """Sequences of a batch that fall to this environment; -1 while the batch size is unknown."""
    if config.batch_size == -1 or not status:
        return config.batch_size
    fraction = float(status.get("unallocated_fraction", 1.0)) + (config.min_batch_allocation or 0.0)
    return int(config.batch_size * fraction)
