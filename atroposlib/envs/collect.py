"""From one item to its groups: gather rollouts, read the policy version around them, name the groups."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import TYPE_CHECKING, Any, cast

from atroposlib.envs.tasks import all_of
from atroposlib.errors import RunError, StudentError
from atroposlib.types import Item, ScoredDataGroup

if TYPE_CHECKING:
    from atroposlib.envs.base import BaseEnv

VERSION_SECONDS = 30.0

OPTIONAL_COLUMNS = (
    "advantages",
    "ref_logprobs",
    "messages",
    "inference_logprobs",
    "overrides",
    "images",
    "distill_token_ids",
    "distill_logprobs",
)


def new_group_id() -> str:
    """A fresh id of a group, kept over every retry."""
    return uuid.uuid4().hex


def collate(items: list[dict[str, Any]]) -> ScoredDataGroup:
    """One group out of G scored rollouts; an optional column is there when every rollout has it."""
    group: dict[str, Any] = {name: [item[name] for item in items] for name in ("tokens", "masks", "scores")}
    for name in OPTIONAL_COLUMNS:
        column = [item.get(name) for item in items]
        group[name] = column if all(value is not None for value in column) else None
    group["group_overrides"] = {}
    for item in items:
        group["group_overrides"].update(item.get("group_overrides") or {})
        if item.get("generation_params") is not None:
            group["generation_params"] = item["generation_params"]
    return cast(ScoredDataGroup, group)


async def gather_group(env: BaseEnv, item: Item) -> tuple[ScoredDataGroup | None, list[Item]]:
    """``group_size`` concurrent calls of ``collect_trajectory`` as one group, and the items they hand back.

    Raises:
        RunError: A rollout is neither a dict nor None.
    """
    results = await all_of(env.collect_trajectory(item) for _ in range(env.config.group_size))
    backlog = [handed_back for _, rest in results for handed_back in rest]
    rollouts = [rollout for rollout, _ in results]
    if any(rollout is None for rollout in rollouts):
        return None, backlog
    if not all(isinstance(rollout, dict) for rollout in rollouts):
        raise RunError(
            "collect_trajectory must return (ScoredDataItem or None, list of items)",
            where=type(env).__name__,
            got=sorted({type(rollout).__name__ for rollout in rollouts}),
        )
    return collate(rollouts), backlog


async def read_policy_version(env: BaseEnv) -> int | None:
    """Version of the student's weights, or None when no server tells it."""
    try:
        async with asyncio.timeout(VERSION_SECONDS):
            return await env.server.policy_version()
    except (StudentError, TimeoutError):
        # A server that is away fails the rollout itself, with a better message than this side question.
        return None


async def collect_groups(env: BaseEnv, item: Item) -> tuple[list[ScoredDataGroup], bool, list[Item]]:
    """Roll one item out.

    Each group is given a ``group_id`` and the smaller of the policy versions read before and after
    sampling; an environment that sets them itself keeps its own.

    Returns:
        The groups, whether the environment returned them as a list, and the items for the backlog.
    """
    start = time.time()
    before = await read_policy_version(env)
    collected, backlog = await env.collect_trajectories(item)
    after = await read_policy_version(env)
    if before != after and before is not None and after is not None:
        env.runtime.counters.policy_changes += 1
        env.runtime.journal.write("policy_changed", before=before, after=after)
    # Versions rise, so the first read is the smaller one; without it nothing is known of the sample's start.
    version = before if before is None or after is None else min(before, after)
    processed: Any = await env.postprocess_histories(collected) if collected else None
    as_list = isinstance(processed, list)
    groups = [group for group in (processed if as_list else [processed]) if group]
    for group in groups:
        group["group_id"] = group.get("group_id") or new_group_id()
        if group.get("policy_version") is None:
            group["policy_version"] = version
    env.runtime.journal.write(
        "rollout",
        start=start,
        sequences=sum(len(group.get("tokens") or []) for group in groups),
        tokens=sum(len(ids) for group in groups for ids in group.get("tokens") or []),
        policy_version=version,
    )
    return groups, as_list, backlog
