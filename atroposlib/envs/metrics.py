"""Metrics of an environment for wandb, and the wandb run itself; wandb is imported only when it is used."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from atroposlib.envs.counters import Counters
from atroposlib.envs.registration import wait_for_wandb_project
from atroposlib.errors import UsageError

if TYPE_CHECKING:
    from atroposlib.envs.base import BaseEnv


def import_wandb() -> Any:
    """The wandb module. Raises UsageError when it is not installed."""
    try:
        return importlib.import_module("wandb")
    except ModuleNotFoundError as error:
        raise UsageError(
            "env.use_wandb is on and wandb is not installed",
            code="usage.missing_package",
            fix="pip install 'atroposlib[wandb]', or turn it off: --env.use_wandb false",
        ) from error


async def open_wandb(env: BaseEnv) -> Any:
    """Join the trainer's wandb project; the wandb module, or None when the trainer names no project."""
    wandb = import_wandb()
    env.wandb_group, env.wandb_project = await wait_for_wandb_project(env.runtime.api)
    if env.wandb_project is None:
        return None
    wandb.init(
        name=env.env_name,
        project=env.wandb_project,
        group=env.wandb_group,
        config=env.config.model_dump(mode="json"),
    )
    return wandb


def completion_metrics(lengths: Sequence[int], max_token_len: int) -> dict[str, float]:
    """Mean, spread and extremes of the trained tokens a sequence; empty without sequences."""
    if not lengths:
        return {}
    import numpy as np

    counts = np.asarray(lengths)
    return {
        "train/completion_lengths": float(counts.mean()),
        "train/completion_lengths_std": float(counts.std()),
        "train/completion_lengths_max": float(counts.max()),
        "train/completion_lengths_min": float(counts.min()),
        "train/completion_lengths_p95": float((counts > 0.95 * max_token_len).mean()),
    }


def counter_metrics(counters: Counters) -> dict[str, float]:
    """The counters as metrics, one for each drop reason."""
    return {
        "train/groups_sent": counters.sent,
        "train/sequences_sent": counters.sequences,
        "train/teacher_failures": counters.teacher_failures.total(),
        "train/policy_changes": counters.policy_changes,
        **{f"train/teacher_failures/{code}": count for code, count in counters.teacher_failures.items()},
        **{f"train/groups_requeued/{reason}": count for reason, count in counters.requeued.items()},
        **{f"train/groups_dropped/{reason}": count for reason, count in counters.dropped.items()},
        **{f"train/targets_masked/{reason}": count for reason, count in counters.masked.items()},
    }
