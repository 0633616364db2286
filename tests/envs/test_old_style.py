"""Three environments written the way Atropos's authors write them run unchanged."""

# ruff: noqa: C408, RUF012, UP006, UP007, UP035, UP045 - their style is what is tested

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple, Union

import pytest

from atroposlib.envs.base import (
    APIServerConfig,
    BaseEnv,
    BaseEnvConfig,
    OpenaiConfig,
    ScoredDataGroup,
    ScoredDataItem,
)
from atroposlib.type_definitions import Item
from atroposlib.utils.tokenize_for_trainer import tokenize_for_trainer
from tests.envs.fakes import FakeApi, group_of


class PerItemEnv(BaseEnv):
    """collect_trajectory, one rollout at a time; positional super().__init__."""

    name = "per_item"

    def __init__(self, config, server_configs, slurm=True, testing=False):
        super().__init__(config, server_configs, slurm, testing)
        self.percent_correct_buffer = list()
        self.rollouts_for_wandb = []
        self.completion_lengths = []

    async def setup(self):
        self.iter = 0

    async def get_next_item(self):
        self.iter += 1
        return (str(self.iter),)

    async def collect_trajectory(self, item: Item) -> Tuple[Optional[ScoredDataItem], List[Item]]:
        tokens = [1, 2, random.randint(0, 9)]
        to_return: Dict = {"tokens": tokens, "masks": [-100, 2, tokens[2]], "scores": random.random()}
        return to_return, []

    async def evaluate(self, *args, **kwargs):
        pass


class ManyGroupsEnv(PerItemEnv):
    """collect_trajectories with a list of groups, own metrics, own checkpoint, group_overrides None."""

    name = "many_groups"

    async def collect_trajectories(
        self, item: Item
    ) -> Tuple[Union[ScoredDataGroup, List[ScoredDataGroup]], List[Item]]:
        scores = ScoredDataGroup()
        scores["tokens"] = list()
        scores["masks"] = list()
        scores["scores"] = list()
        for score in (1.0, -1.0):
            scores["tokens"].append([1, 2, 3])
            scores["masks"].append([-100, 2, 3])
            scores["scores"].append(score)
        other = dict(scores)
        other["group_overrides"] = None
        return [scores, other, None], []

    async def wandb_log(self, wandb_metrics: Optional[Dict] = None):
        if wandb_metrics is None:
            wandb_metrics = {}
        wandb_metrics["train/percent_correct"] = 1.0
        self.logged = getattr(self, "logged", 0) + 1
        await super().wandb_log(wandb_metrics)

    def save_checkpoint(self, step, data=None):
        if data is None:
            data = {}
        data["iter"] = self.iter
        super().save_checkpoint(step, data)


class ChatEnv(PerItemEnv):
    """chat_completion and tokenize_for_trainer, and a config_init of its own."""

    name = "chat"

    @classmethod
    def config_init(cls) -> Tuple[BaseEnvConfig, List[OpenaiConfig]]:
        return BaseEnvConfig(group_size=2, use_wandb=False), [
            APIServerConfig(model_name="m", base_url="http://localhost:9001/v1", api_key="x")
        ]

    async def collect_trajectories(self, item):
        chat_completions = await self.server.chat_completion(
            messages=[{"role": "user", "content": item[0]}], n=self.config.group_size, max_tokens=10
        )
        group = ScoredDataGroup()
        group["tokens"], group["masks"], group["scores"] = [], [], []
        for i, chat_completion in enumerate(chat_completions.choices):
            messages = (
                {"role": "user", "content": item[0]},
                {"role": "assistant", "content": chat_completion.message.content},
            )
            out_dict = tokenize_for_trainer(
                self.tokenizer, messages, finish_reason=chat_completion.finish_reason
            )
            group["tokens"].append(out_dict["tokens"])
            group["masks"].append(out_dict["masks"])
            group["scores"].append(float(i))
        return group, []


class Choice:
    def __init__(self, text: str) -> None:
        self.message = type("Message", (), {"content": text})()
        self.finish_reason = "stop"


class ChatServer:
    """Answers chat_completion as the OpenAI client does."""

    servers: list[Any] = []

    async def chat_completion(self, **kwargs: Any) -> Any:
        choices = [Choice(f"answer {index}") for index in range(kwargs["n"])]
        return type("Completion", (), {"choices": choices})()

    async def policy_version(self) -> int:
        return 2

    async def close(self) -> None:
        return None


@pytest.fixture
def settings(tokenizer_dir: Path, api: FakeApi) -> Callable[..., BaseEnvConfig]:
    def make(**more: Any) -> BaseEnvConfig:
        defaults = {"group_size": 2, "use_wandb": False, "total_steps": 3}
        return BaseEnvConfig(
            **{
                **defaults,
                "tokenizer_name": str(tokenizer_dir),
                "rollout_server_url": api.url,
                **more,
            }
        )

    return make


async def test_environment_of_single_rollouts_runs(api: FakeApi, settings: Any) -> None:
    env = PerItemEnv(settings(), [], False, True)
    await env.env_manager()
    assert api.step >= 3
    assert all(len(group["tokens"]) == 2 for group in api.groups)


async def test_environment_of_group_lists_runs(api: FakeApi, settings: Any) -> None:
    env = ManyGroupsEnv(settings(min_items_sent_before_logging=0), [], False, True)
    await env.env_manager()
    assert api.step >= 3
    assert env.logged >= 1
    assert env.runtime.counters.dropped == {}


async def test_environment_of_chats_runs(api: FakeApi, settings: Any) -> None:
    api.batch_size = 2
    env = ChatEnv(settings(), [], False, True)
    env.server = ChatServer()
    await env.env_manager()
    group = api.groups[0]
    trained = [token for token in group["masks"][1] if token != -100]
    assert env.tokenizer.decode(trained).startswith("answer 1")
    assert group["policy_version"] == 2


async def test_bare_environment_default_group_is_what_it_was(api: FakeApi, settings: Any) -> None:
    env = PerItemEnv(settings(), [], False, True)
    await env.setup()
    group, backlog = await env.collect_trajectories(("1",))
    assert set(group) >= {"tokens", "masks", "scores", "group_overrides", "overrides", "messages"}
    assert backlog == []
    assert set(group_of(0.0, 1.0)) <= set(group)
