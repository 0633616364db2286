"""The last stretch of a group inside the environment: filter, complete, hand over, record."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from atroposlib.envs.collect import new_group_id
from atroposlib.envs.filters import drop_reason
from atroposlib.envs.group_stats import group_stats
from atroposlib.envs.groups_file import append_group
from atroposlib.types import IGNORED, Item, ScoredDataGroup

if TYPE_CHECKING:
    from atroposlib.envs.base import BaseEnv


async def prepare(env: BaseEnv, group: ScoredDataGroup, max_token_len: int) -> ScoredDataGroup | None:
    """A copy of the group that is ready to be sent, or None when it was dropped (and counted).

    Args:
        env: Whose group it is.
        group: As the environment collected it.
        max_token_len: Sequences of this many tokens or more are too long; 0 or less means no limit.
    """
    reason = drop_reason(
        group,
        group_size=env.config.group_size,
        drop_equal_scores=env.drops_equal_scores,
        max_token_len=max_token_len,
    )
    if reason is not None:
        env.runtime.drop(reason, group)
        return None
    ready = group.copy()
    ready["group_id"] = group.get("group_id") or new_group_id()
    ready["env_id"] = env.env_id
    if env.config.include_messages and ready.get("messages") is None:
        texts = [env.tokenizer.decode(ids) for ids in group["tokens"]]
        ready["messages"] = [[{"role": "assistant", "content": text}] for text in texts]
    return await env.complete_group(ready)


async def record_sent(env: BaseEnv, group: ScoredDataGroup, *, item: Item) -> None:
    """Note in journal, counters, groups file and rollout table that the API took a group."""
    env.items_sent_this_step += 1
    stats = await asyncio.to_thread(group_stats, group)
    version = group.get("policy_version")
    env.runtime.journal.write("group_sent", group_id=group["group_id"], policy_version=version, **stats)
    await record(env, group, item)


async def record(env: BaseEnv, group: ScoredDataGroup, item: Item) -> None:
    """Note in counters, groups file and rollout table that a group is finished."""
    trained = (sum(value != IGNORED for value in mask) for mask in group["masks"])
    env.completion_lengths.extend(trained)
    await env.add_rollouts_for_wandb(group, item)
    if env.config.data_path_to_save_groups is not None:
        await asyncio.to_thread(append_group, Path(env.config.data_path_to_save_groups), group)
    env.runtime.count_sent(group)
