"""From an item to its groups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from atroposlib.envs.collect import collate, collect_groups
from atroposlib.errors import RunError, StudentError
from atroposlib.journal import read_journal
from tests.envs.fakes import ToyEnv, group_of


class OneByOne(ToyEnv):
    """Rolls out one trajectory at a time."""

    async def collect_trajectories(self, item: Any) -> Any:
        return await super(ToyEnv, self).collect_trajectories(item)

    async def collect_trajectory(self, item: Any) -> Any:
        self.count = getattr(self, "count", 0) + 1
        return {"tokens": [item, self.count], "masks": [-100, self.count], "scores": float(self.count)}, [
            item
        ]


async def test_default_gathers_group_size_rollouts_and_their_backlog(make_env: Callable[..., Any]) -> None:
    env = make_env(OneByOne, group_size=3)
    group, backlog = await env.collect_trajectories(7)
    assert group["tokens"] == [[7, 1], [7, 2], [7, 3]]
    assert group["scores"] == [1.0, 2.0, 3.0]
    assert backlog == [7, 7, 7]


async def test_one_rollout_of_none_gives_no_group_and_keeps_the_backlog(make_env: Callable[..., Any]) -> None:
    class SometimesNone(OneByOne):
        async def collect_trajectory(self, item: Any) -> Any:
            rollout, backlog = await super().collect_trajectory(item)
            return (None if self.count == 2 else rollout), backlog

    assert await make_env(SometimesNone).collect_trajectories(7) == (None, [7, 7])


async def test_rollout_that_is_no_dict_is_an_error_that_names_its_type(make_env: Callable[..., Any]) -> None:
    class Wrong(ToyEnv):
        async def collect_trajectories(self, item: Any) -> Any:
            return await super(ToyEnv, self).collect_trajectories(item)

        async def collect_trajectory(self, item: Any) -> Any:
            return "text", []

    with pytest.raises(RunError, match="str"):
        await make_env(Wrong).collect_trajectories(7)


async def test_failed_rollout_ends_the_others_of_its_group(make_env: Callable[..., Any]) -> None:
    ended = []

    class OneFails(OneByOne):
        async def collect_trajectory(self, item: Any) -> Any:
            await super().collect_trajectory(item)
            if self.count == 2:
                raise ValueError("broken")
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(item)

    with pytest.raises(ValueError, match="broken"):
        await make_env(OneFails).collect_trajectories(7)
    assert ended == [7]


def test_optional_column_needs_every_rollout() -> None:
    one = {"tokens": [1], "masks": [1], "scores": 0.0, "inference_logprobs": [-0.5], "messages": [{}]}
    other = {"tokens": [2], "masks": [2], "scores": 1.0, "inference_logprobs": [-0.25]}
    group = collate([one, other])
    assert group["inference_logprobs"] == [[-0.5], [-0.25]]
    assert group["messages"] is None


def test_overrides_of_rollouts_are_merged() -> None:
    rollout = {"tokens": [1], "masks": [1], "scores": 0.0}
    one, other = {**rollout, "group_overrides": {"a": 1}}, {**rollout, "group_overrides": {"b": 2}}
    assert collate([one, other])["group_overrides"] == {"a": 1, "b": 2}


class Versions:
    """Stands for the student servers; tells one version after the other."""

    servers: tuple[Any, ...] = ()

    def __init__(self, *versions: int | Exception | None) -> None:
        self.versions = list(versions)

    async def policy_version(self) -> int | None:
        version = self.versions.pop(0)
        if isinstance(version, Exception):
            raise version
        return version

    async def close(self) -> None:
        return None


@pytest.mark.parametrize(
    ("before", "after", "version", "changes"),
    [
        (3, 3, 3, 0),
        (3, 4, 3, 1),
        (4, 3, 3, 1),
        # Drawn before 4 was there, perhaps: what was not read is not known.
        (None, 4, None, 0),
        (4, None, 4, 0),
        (None, None, None, 0),
        (StudentError("away"), 2, None, 0),
    ],
)
async def test_smaller_policy_version_counts_and_a_change_is_counted(
    make_env: Callable[..., Any], tmp_path: Any, before: Any, after: Any, version: int | None, changes: int
) -> None:
    env = make_env(journal_path=str(tmp_path / "journal.jsonl"))
    env.server = Versions(before, after)
    await env.setup()
    groups, _, _ = await collect_groups(env, 0)
    assert [group["policy_version"] for group in groups] == [version]
    assert env.runtime.counters.policy_changes == changes
    changed = [line for line in read_journal(tmp_path / "journal.jsonl") if line["kind"] == "policy_changed"]
    assert [(line["before"], line["after"]) for line in changed] == [(before, after)] * changes


async def test_group_keeps_the_id_and_version_its_environment_gave(make_env: Callable[..., Any]) -> None:
    class Named(ToyEnv):
        async def collect_trajectories(self, item: Any) -> Any:
            return [group_of(0.0, 1.0, group_id="mine", policy_version=9), None, group_of(1.0, 0.0)], [5]

    env = make_env(Named)
    groups, as_list, backlog = await collect_groups(env, 0)
    assert (groups[0]["group_id"], groups[0]["policy_version"]) == ("mine", 9)
    assert len(groups) == 2
    assert len(groups[1]["group_id"]) == 32
    assert as_list
    assert backlog == [5]


async def test_none_gives_no_groups(make_env: Callable[..., Any]) -> None:
    class Nothing(ToyEnv):
        async def collect_trajectories(self, item: Any) -> Any:
            return None, [item]

    assert await collect_groups(make_env(Nothing), 3) == ([], False, [3])


async def test_postprocessing_replaces_the_group(make_env: Callable[..., Any]) -> None:
    class Split(ToyEnv):
        async def postprocess_histories(self, trajectories: Any) -> Any:
            return [trajectories, group_of(5.0, 6.0)]

    env = make_env(Split)
    await env.setup()
    groups, as_list, _ = await collect_groups(env, 0)
    assert [group["scores"] for group in groups] == [[0.0, 1.0], [5.0, 6.0]]
    assert as_list
