"""What BaseEnv offers environment authors."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atroposlib.envs import base
from atroposlib.errors import ConfigError, UsageError
from atroposlib.journal import read_journal
from tests.envs.fakes import FakeApi, ToyEnv, group_of

Make = Callable[..., Any]


def test_names_that_authors_import_are_there() -> None:
    assert base.OpenaiConfig is base.APIServerConfig
    assert set(base.__all__) >= {
        "BaseEnv",
        "BaseEnvConfig",
        "ScoredDataGroup",
        "ScoredDataItem",
        "EvalHandlingEnum",
        "Item",
        "ServerBaseline",
    }


def test_default_config_init_is_the_config_class_and_a_baseline() -> None:
    config, servers = ToyEnv.config_init()
    assert type(config) is ToyEnv.env_config_cls
    assert type(servers) is base.ServerBaseline


def test_attributes_that_authors_use_are_there_before_the_run(make_env: Make) -> None:
    env = make_env(max_num_workers=7)
    assert (env.curr_step, env.env_id, env.completion_lengths, env.rollouts_for_wandb) == (0, None, [], [])
    assert (env.eval_workers, env.status_dict, env.n_groups_to_process) == (set(), {}, 0)
    assert env.server.servers == []
    assert env.max_num_workers == 7
    assert env.tokenizer.decode([72, 105]) == "Hi"


def test_missing_tokenizer_is_a_usage_error_that_names_it(make_env: Make, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere") as caught:
        ToyEnv(ToyEnv.env_config_cls(tokenizer_name=str(tmp_path / "nowhere")), [], testing=True)
    assert caught.value.code == "usage.model"


async def test_what_is_not_implemented_is_told_with_the_class(make_env: Make) -> None:
    class Empty(base.BaseEnv):
        async def get_next_item(self) -> Any:
            return None

        async def evaluate(self, *args: Any, **kwargs: Any) -> None:
            return None

    env = make_env(Empty)
    with pytest.raises(ConfigError, match=r"Empty: setup\(\)"):
        await env.setup()
    with pytest.raises(ConfigError, match="collect_trajectory"):
        await env.collect_trajectories(0)


# Sending.


async def test_sent_group_is_journaled_with_its_figures(api: FakeApi, make_env: Make, tmp_path: Path) -> None:
    env = make_env(rollout_server_url=api.url, journal_path=str(tmp_path / "journal.jsonl"))
    await env.handle_send_to_api(group_of(0.0, 1.0, group_id="g", policy_version=3))
    await env.runtime.close()
    line = read_journal(tmp_path / "journal.jsonl")[-1]
    del line["time"]
    assert line == {
        "kind": "group_sent",
        "group_id": "g",
        "policy_version": 3,
        "sequences": 2,
        "tokens": 8,
        "trained_tokens": 4,
        "target_tokens": 0,
        "captured_mass": None,
    }


async def test_group_can_be_sent_twice_and_keeps_its_id(api: FakeApi, make_env: Make) -> None:
    env = make_env(rollout_server_url=api.url)
    group = group_of(0.0, 1.0, group_id="g")
    before = json.dumps(group)
    await env.handle_send_to_api(group)
    await env.handle_send_to_api(group)
    await env.runtime.close()
    assert json.dumps(group) == before
    assert [sent["group_id"] for sent in api.groups] == ["g", "g"]


async def test_group_carries_the_id_of_its_environment(api: FakeApi, make_env: Make) -> None:
    env = make_env(rollout_server_url=api.url)
    env.env_id = 5
    await env.handle_send_to_api(group_of(0.0, 1.0))
    await env.runtime.close()
    assert api.groups[0]["env_id"] == 5
    assert len(api.groups[0]["group_id"]) == 32


async def test_single_group_and_list_take_the_route_of_their_form_at_atropos(
    api: FakeApi, make_env: Make
) -> None:
    api.is_atropos = True
    env = make_env(rollout_server_url=api.url)
    await env.handle_send_to_api(group_of(0.0, 1.0))
    await env.handle_send_to_api([group_of(0.0, 1.0)])
    await env.handle_send_to_api(None)
    await env.handle_send_to_api([None])
    await env.runtime.close()
    assert [json.loads(raw).__class__ for raw in api.raw] == [dict, list]


async def test_length_filter_can_be_left_out(api: FakeApi, make_env: Make) -> None:
    env = make_env(rollout_server_url=api.url)
    env.max_token_len = 4
    await env.handle_send_to_api(group_of(0.0, 1.0), abort_on_any_max_length_exceeded=False)
    await env.runtime.close()
    assert len(api.groups) == 1


async def test_messages_are_filled_in_only_when_wanted_and_missing(api: FakeApi, make_env: Make) -> None:
    env = make_env(rollout_server_url=api.url, include_messages=True)
    mine: Any = [[{"role": "user", "content": "mine"}]] * 2
    texts = group_of(0.0, 1.0, length=2)
    texts["tokens"] = [[72, 105], [72, 111]]
    await env.handle_send_to_api([group_of(0.0, 1.0, messages=mine), texts])
    await env.runtime.close()
    assert api.groups[0]["messages"] == mine
    assert [rows[0]["content"] for rows in api.groups[1]["messages"]] == ["Hi", "Ho"]


async def test_refused_group_is_counted_and_not_recorded(
    api: FakeApi, make_env: Make, tmp_path: Path
) -> None:
    path = tmp_path / "groups.jsonl"
    env = make_env(rollout_server_url=api.url, data_path_to_save_groups=str(path))
    api.answers.append((422, {"detail": "no"}))
    await env.handle_send_to_api(group_of(0.0, 1.0))
    await env.runtime.close()
    assert env.runtime.counters.dropped == {"api_refused": 1}
    assert env.runtime.counters.sent == 0
    assert not path.exists()


# Groups file.


async def test_sent_groups_are_appended_to_the_groups_file(
    api: FakeApi, make_env: Make, tmp_path: Path
) -> None:
    path = tmp_path / "new" / "groups.jsonl"
    env = make_env(rollout_server_url=api.url, data_path_to_save_groups=str(path))
    await env.handle_send_to_api([group_of(0.0, 1.0), group_of(1.0, 0.0)])
    await env.runtime.close()
    assert [json.loads(line)["scores"] for line in path.read_text().splitlines()] == [[0.0, 1.0], [1.0, 0.0]]


def test_groups_file_of_an_earlier_run_is_not_touched(make_env: Make, tmp_path: Path) -> None:
    path = tmp_path / "groups.jsonl"
    path.write_text("old")
    (tmp_path / "groups_1.jsonl").write_text("old")
    env = make_env(data_path_to_save_groups=str(path))
    assert env.config.data_path_to_save_groups == str(tmp_path / "groups_2.jsonl")


# Rollout table and metrics.


class Wandb:
    """Notes what is logged."""

    def __init__(self) -> None:
        self.logged: list[tuple[dict[str, Any], int]] = []

    def log(self, metrics: dict[str, Any], step: int) -> None:
        self.logged.append((metrics, step))

    def Table(self, columns: list[str], data: list[Any]) -> Any:
        return SimpleNamespace(columns=columns, data=data)


@pytest.mark.parametrize(("keep", "shown"), [(1, 1), (2, 2), (-1, 2), (99, 2)])
async def test_rollouts_kept_of_a_group_never_exceed_it(make_env: Make, keep: int, shown: int) -> None:
    env = make_env(num_rollouts_per_group_for_logging=keep)
    await env.add_rollouts_for_wandb(group_of(0.0, 1.0))
    assert len(env.rollouts_for_wandb[0]) == shown


async def test_last_groups_are_kept(make_env: Make) -> None:
    env = make_env(num_rollouts_to_keep=2)
    for score in (1.0, 2.0, 3.0):
        await env.add_rollouts_for_wandb(group_of(score, 0.0))
    assert [rows[0][1] for rows in env.rollouts_for_wandb] == [2.0, 3.0]


async def test_metrics_carry_lengths_counters_table_and_the_name(make_env: Make) -> None:
    env = make_env()
    env.wandb, env.wandb_prepend, env.curr_step, env.max_token_len = Wandb(), "toy_0", 4, 10
    env.completion_lengths = [2, 4]
    env.runtime.counters.dropped["too_long"] = 3
    await env.add_rollouts_for_wandb(group_of(0.5, 0.0))
    await env.wandb_log({"train/own": 1})
    metrics, step = env.wandb.logged[0]
    assert step == 4
    assert metrics["toy_0_train/own"] == 1
    assert metrics["toy_0_train/completion_lengths"] == 3.0
    assert metrics["toy_0_train/groups_dropped/too_long"] == 3
    assert metrics["toy_0_train/rollouts"].data[0][1] == 0.5
    assert (env.completion_lengths, env.rollouts_for_wandb) == ([], [])


async def test_metrics_without_wandb_only_reset(make_env: Make) -> None:
    env = make_env()
    env.completion_lengths = [2]
    await env.wandb_log()
    assert env.completion_lengths == []


# Checkpoints.


class Remembering(ToyEnv):
    """Keeps a number in its checkpoints."""

    number = 0

    def save_checkpoint(self, step: int, data: dict[str, Any] | None = None) -> None:
        super().save_checkpoint(step, {**(data or {}), "number": self.number})


async def test_checkpoint_comes_back_at_its_step(make_env: Make, tmp_path: Path) -> None:
    env = make_env(Remembering)
    env.checkpoint_dir, env.wandb_prepend, env.number = str(tmp_path), "toy_0", 41
    env.save_checkpoint(6)
    assert (tmp_path / "env_checkpoints/toy_0/step-6.json").exists()
    other = make_env(Remembering)
    other.checkpoint_dir, other.wandb_prepend, other.curr_step = str(tmp_path), "toy_0", 6
    other.load_checkpoint()
    assert other.number == 41


def test_missing_checkpoint_changes_nothing_and_no_data_writes_none(make_env: Make, tmp_path: Path) -> None:
    env = make_env()
    env.checkpoint_dir, env.curr_step = str(tmp_path), 3
    env.load_checkpoint()
    env.save_checkpoint(3)
    assert list(tmp_path.iterdir()) == []


# Evaluation results.


async def test_evaluation_is_written_in_lightevals_layout(make_env: Make, tmp_path: Path) -> None:
    env = make_env(data_dir_to_save_evals=str(tmp_path / "evals"), max_token_length=99)
    await env.evaluate_log(
        {"accuracy": 0.5},
        start_time=10.0,
        end_time=12.5,
        generation_parameters={"temperature": 0.0},
        samples=[{"question": "a"}, {"question": "b"}],
    )
    written = json.loads((tmp_path / "evals/metrics.json").read_text())
    assert written["results"] == {"atropos|toy_eval|0": {"accuracy": 0.5}, "all": {"accuracy": 0.5}}
    assert written["config_general"]["total_evaluation_time_seconds"] == "2.5"
    assert written["config_general"]["generation_parameters"] == {"max_new_tokens": 99, "temperature": 0.0}
    assert len((tmp_path / "evals/samples.jsonl").read_text().splitlines()) == 2


async def test_evaluation_is_only_told_without_a_directory(
    make_env: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    await make_env().evaluate_log({"accuracy": math.pi}, task_name="pie")
    assert "pie after 0.0 s: accuracy 3.14" in caplog.text


# Weights & Biases.


async def test_missing_wandb_is_a_usage_error_before_anything_is_asked(
    api: FakeApi, make_env: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    env = make_env(rollout_server_url=api.url, use_wandb=True)
    with pytest.raises(UsageError, match=r"atroposlib\[wandb\].*--env\.use_wandb false"):
        await env.env_manager()
    assert sum(api.calls.values()) == 0


async def test_run_joins_the_trainers_wandb_project(
    api: FakeApi, make_env: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined: dict[str, Any] = {}
    fake = SimpleNamespace(init=lambda **kwargs: joined.update(kwargs), log=lambda *a, **k: None)
    fake.Table = Wandb().Table
    monkeypatch.setitem(__import__("sys").modules, "wandb", fake)
    await make_env(rollout_server_url=api.url, use_wandb=True).env_manager()
    assert (joined["project"], joined["group"], joined["name"]) == ("project", "group", "toy")
