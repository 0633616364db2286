"""The three ways to run an environment: serve a trainer, write groups to a file, evaluate."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from atroposlib.envs.collect import collect_groups
from atroposlib.envs.groups_page import write_page
from atroposlib.envs.loop import RolloutLoop
from atroposlib.envs.metrics import import_wandb, open_wandb
from atroposlib.envs.tasks import cancel_all
from atroposlib.errors import RunError

if TYPE_CHECKING:
    from atroposlib.envs.base import BaseEnv

logger = logging.getLogger(__name__)

MOST_EMPTY_ITEMS_IN_A_ROW = 100


@asynccontextmanager
async def _opened(env: BaseEnv) -> AsyncIterator[None]:
    """Check, set up, and close everything the environment owns at the end, however it ends."""
    try:
        await env.check_servers()
        await env.setup()
        yield
    finally:
        running = set(env.eval_workers)
        if env.eval_runner is not None:
            running.add(env.eval_runner)
        await cancel_all(running)
        await env.runtime.close()
        await env.close_servers()


async def serve(env: BaseEnv) -> None:
    """Roll out until the trainer has reached ``total_steps``; end the evaluation, disconnect from the API."""
    if env.config.use_wandb:
        import_wandb()
    async with _opened(env):
        if env.config.use_wandb:
            env.wandb = await open_wandb(env)
        await env.register_env()
        try:
            await env.get_server_info()
            logger.info(
                "registered as %s (id %s) with %s: step %d of %d, batches of %d",
                env.wandb_prepend,
                env.env_id,
                env.config.rollout_server_url,
                env.curr_step,
                env.config.total_steps,
                env.config.batch_size,
            )
            await RolloutLoop(env).run()
            await _finish_evaluation(env)
        finally:
            await env.runtime.sender.close()
            await env.runtime.disconnect(env.env_id)
            logger.info("ended at step %d: %s", env.curr_step, env.runtime.counters.line())


async def _finish_evaluation(env: BaseEnv) -> None:
    """Wait for an evaluation under way, as one that began at the last step; its failure was told already."""
    if env.eval_runner is not None and not env.eval_runner.done():
        logger.info("waiting for the evaluation to end")
        await asyncio.wait([env.eval_runner])
    if env.eval_workers:
        await asyncio.wait(env.eval_workers)


async def process(env: BaseEnv) -> None:
    """Write ``n_groups_to_process`` groups to the groups file; no trainer and no API are asked.

    Raises:
        RunError: A hundred items in a row gave no group.
    """
    async with _opened(env):
        if env.config.use_wandb:
            env.wandb = import_wandb()
            env.wandb.init(name=env.env_name, config=env.config.model_dump(mode="json"))
        env.config.group_size = env.group_size_to_process
        written, empty = 0, 0
        while written < env.n_groups_to_process:
            item = await env.get_next_item()
            if item is None:
                logger.info("no more items")
                break
            groups, as_list, _ = await collect_groups(env, item)
            if groups:
                await env.handle_send_to_api(
                    groups if as_list else groups[0],
                    item,
                    do_send_to_api=False,
                    abort_on_any_max_length_exceeded=False,
                )
            empty = empty + 1 if env.runtime.counters.sent == written else 0
            if empty >= MOST_EMPTY_ITEMS_IN_A_ROW:
                raise RunError(f"the last {empty} items gave no group", where=type(env).__name__)
            written = env.runtime.counters.sent
            env.curr_step = written
            await env.wandb_log()
        await _tell_written(env)


async def _tell_written(env: BaseEnv) -> None:
    path = env.config.data_path_to_save_groups
    if path is None or env.runtime.counters.sent == 0:
        logger.info("nothing was written: %s", env.runtime.counters.line())
        return
    page = await asyncio.to_thread(write_page, Path(path))
    logger.info("wrote %s and %s: %s", path, page, env.runtime.counters.line())


async def evaluate(env: BaseEnv) -> None:
    """Run the environment's evaluation once."""
    async with _opened(env):
        await env.evaluate()
        # An author's finished task may still stand in the set.
        while pending := {task for task in env.eval_workers if not task.done()}:
            await asyncio.wait(pending)


def first_model_name(env: BaseEnv) -> str | None:
    """Model of the first student server, or None without one."""
    servers = env.server.servers
    return servers[0].config.model_name if servers else None
