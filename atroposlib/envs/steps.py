"""What is due when the trainer has moved on: evaluations, checkpoints, metrics."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from atroposlib.config.env import EvalHandlingEnum

if TYPE_CHECKING:
    from atroposlib.envs.base import BaseEnv

logger = logging.getLogger(__name__)


def crossed(before: int, after: int, every: int) -> int | None:
    """The last multiple of ``every`` in (before, after], or None when there is none or ``every`` is off."""
    if every <= 0 or after // every <= before // every:
        return None
    return after // every * every


async def on_status(env: BaseEnv) -> bool:
    """Act on the trainer's step in ``env.status_dict``.

    Returns:
        Whether an evaluation has begun that training workers must make room for.
    """
    before, after = env.curr_step, int(env.status_dict["current_step"])
    if before == after:
        return False
    env.curr_step = after
    checkpoint = crossed(before, after, env.checkpoint_interval)
    if checkpoint is not None:
        env.save_checkpoint(checkpoint)
    if env.items_sent_this_step >= env.config.min_items_sent_before_logging:
        env.items_sent_this_step = 0
        await env.wandb_log({})
    if crossed(before, after, env.config.steps_per_eval) is None:
        return False
    return _start_evaluation(env)


def _start_evaluation(env: BaseEnv) -> bool:
    if env.is_evaluating:
        logger.warning("the evaluation before is not finished; the one at step %d is left out", env.curr_step)
        return False
    env.eval_runner = asyncio.create_task(env.evaluate())
    env.eval_runner.add_done_callback(_tell_failure)
    return env.config.eval_handling == EvalHandlingEnum.STOP_TRAIN


def _tell_failure(evaluation: asyncio.Task[None]) -> None:
    error = None if evaluation.cancelled() else evaluation.exception()
    if error is not None:
        logger.error("the evaluation failed: %s: %s", type(error).__name__, error)
