"""The trainer's weight refresh on a real vLLM: new weights, new version, nothing of the old ones left."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atroposlib.config.server import APIServerConfig
from atroposlib.envs.base import BaseEnv, BaseEnvConfig
from atroposlib.envs.collect import collect_groups
from atroposlib.journal import read_journal
from atroposlib.trainer.weight_sync import WeightSync
from atroposlib.types import Item, ScoredDataGroup
from tests.support.running_vllm import NAME
from tests.vllm.conftest import Forward
from tests.vllm.raw import get, prompt_logprobs, sample, tokenize
from tests.vllm.weights import generated_tokens, wait_for_tokens, weight_sync, write_changed_weights

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

TOLERANCE = 1e-3
TEXT = "Once upon a time there was a small village by the sea, and everybody in it knew how to sail."


@pytest.fixture(scope="module")
def changed_dir(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_changed_weights(model_dir, tmp_path_factory.mktemp("changed") / "step-5")


@pytest.fixture
def sync(vllm: str, model_dir: Path, tmp_path: Path) -> Iterator[WeightSync]:
    with weight_sync(vllm, model_dir, tmp_path / "trainer.jsonl") as opened:
        yield opened


def selected(forward: Forward, directory: Path, ids: list[int]) -> Any:
    """Logprobs float32 [T-1] that the weights in a directory give the ids 1.. ."""
    return forward(directory, ids)[range(len(ids) - 1), ids[1:]].numpy()


def test_reload_changes_logprobs_and_version_and_the_original_comes_back(
    vllm: str, model_dir: Path, changed_dir: Path, sync: WeightSync, forward: Forward, tmp_path: Path
) -> None:
    ids = tokenize(vllm, TEXT)
    before = prompt_logprobs(vllm, ids, 8)
    sync.push(changed_dir, 5)
    assert get(vllm, "/weight_info") == {"weight_version": "step-5"}
    changed = prompt_logprobs(vllm, ids, 8)
    told = np.array([row[str(token)]["logprob"] for row, token in zip(changed, ids[1:], strict=True)])
    assert told == pytest.approx(selected(forward, changed_dir, ids), abs=TOLERANCE)
    assert np.abs(told - selected(forward, model_dir, ids)).max() > 0.1
    sync.push(model_dir, 6)
    assert get(vllm, "/weight_info") == {"weight_version": "step-6"}
    assert prompt_logprobs(vllm, ids, 8) == before
    events = read_journal(tmp_path / "trainer.jsonl")
    assert [(event["version"], event["confirmed"]) for event in events] == [
        ("step-5", True),
        ("step-6", True),
    ]


def test_samples_after_a_refresh_owe_nothing_to_cached_blocks_of_the_old_weights(
    vllm: str, changed_dir: Path, sync: WeightSync, forward: Forward
) -> None:
    # Longer than two of the blocks of 128 tokens that the CPU backend caches.
    prompt = (tokenize(vllm, TEXT) * 20)[:300]
    sample(vllm, prompt, max_tokens=1, temperature=1.0)
    sync.push(changed_dir, 5)
    drawn = sample(vllm, prompt, max_tokens=8, temperature=1.0, seed=3)
    exact = selected(forward, changed_dir, prompt + drawn.ids[0])[len(prompt) - 1 :]
    assert np.array(drawn.logprobs[0]) == pytest.approx(exact, abs=TOLERANCE)


class LongAnswers(BaseEnv):
    """Samples two answers of a fixed length to one question."""

    tokens = 160

    async def setup(self) -> None:
        """Nothing to load."""

    async def get_next_item(self) -> Item:
        """The question."""
        return "Tell me about the sea."

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to evaluate."""

    async def collect_trajectories(self, item: Item) -> tuple[ScoredDataGroup, list[Item]]:
        """Two answers in one request."""
        async with self.server.managed_server(tokenizer=self.tokenizer) as managed:
            messages = [{"role": "user", "content": item}]
            await managed.chat_completion(
                messages=messages, n=2, max_tokens=self.tokens, temperature=1.0, ignore_eos=True
            )
            nodes = managed.get_state()["nodes"]
        return ScoredDataGroup(
            tokens=[node.tokens for node in nodes],
            masks=[node.masked_tokens for node in nodes],
            scores=[0.0, 1.0],
            inference_logprobs=[node.logprobs for node in nodes],
        ), []


async def test_group_sampled_across_a_refresh_carries_the_older_version_and_is_counted(
    vllm: str, model_dir: Path, changed_dir: Path, sync: WeightSync, forward: Forward, tmp_path: Path
) -> None:
    await asyncio.to_thread(sync.push, model_dir, 4)
    config = BaseEnvConfig(
        tokenizer_name=str(model_dir), use_wandb=False, journal_path=str(tmp_path / "environment.jsonl")
    )
    env = LongAnswers(config, [APIServerConfig(base_url=vllm, model_name=NAME)])
    start = generated_tokens(vllm)
    collecting = asyncio.create_task(collect_groups(env, await env.get_next_item()))
    await asyncio.to_thread(wait_for_tokens, vllm, start + 16)
    await asyncio.to_thread(sync.push, changed_dir, 5)
    assert not collecting.done()
    (group,), _, _ = await collecting
    assert group["policy_version"] == 4
    assert env.runtime.counters.policy_changes == 1
    events = read_journal(tmp_path / "environment.jsonl")
    assert [(event["before"], event["after"]) for event in events if event["kind"] == "policy_changed"] == [
        (4, 5)
    ]
    assert [event["policy_version"] for event in events if event["kind"] == "rollout"] == [4]
    for index in range(2):
        assert_old_then_new(group, index, model_dir, changed_dir, forward)
    await env.server.close()
    await env.runtime.close()


def assert_old_then_new(
    group: ScoredDataGroup, index: int, old_dir: Path, new_dir: Path, forward: Forward
) -> None:
    """The logprobs are the old weights' up to one token, and from it on the new weights' over all tokens."""
    ids, mask = group["tokens"][index], group["masks"][index]
    first = next(position for position, value in enumerate(mask) if value != -100)
    assert len(ids) - first == LongAnswers.tokens
    columns = group["inference_logprobs"]
    assert columns is not None
    told = np.array(columns[index][first:])
    is_old, is_new = (
        np.abs(told - selected(forward, directory, ids)[first - 1 :]) <= TOLERANCE
        for directory in (old_dir, new_dir)
    )
    switch = int(np.argmin(is_old))
    assert 0 < switch < len(told)
    assert is_new[switch:].all()
