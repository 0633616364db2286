"""TeacherDistillationEnv: targets, failures, constructor orders, and the rules for its servers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atroposlib.config.server import APIServerConfig, ServerBaseline
from atroposlib.config.yaml_file import YamlFile
from atroposlib.envs import teacher_distillation_env as module
from atroposlib.envs import teacher_set
from atroposlib.envs.base import BaseEnv
from atroposlib.envs.teacher_distillation_env import TeacherDistillationConfig, TeacherDistillationEnv
from atroposlib.errors import ConfigError, TeacherError, TeacherUnreachable
from atroposlib.journal import read_journal
from tests.envs.fakes import FakeApi, ToyConfig, ToyEnv, group_of

ABSENT = [-1, -1, -1]


class Config(ToyConfig, TeacherDistillationConfig):
    """Toy settings with a teacher."""


class Env(TeacherDistillationEnv):
    """The least a teacher environment has."""

    env_config_cls = Config

    async def get_next_item(self) -> Any:
        return None

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        return None


class Teacher:
    """Answers like ServerManager.get_logprobs; fails on the sequences that begin with a given token."""

    servers: tuple[Any, ...] = ()

    def __init__(self, *failing: int, error: Exception | None = None) -> None:
        self.failing = failing
        self.error = error or TeacherError("broken")
        self.asked: list[tuple[list[int], int]] = []

    async def get_logprobs(self, *, input_ids: list[int], top_k: int, max_tokens: int, split: str) -> Any:
        self.asked.append((input_ids, top_k))
        if input_ids[0] in self.failing:
            raise self.error
        rows = [[token, *range(100, 100 + top_k)] for token in input_ids]
        return {
            "prompt_tokens": input_ids,
            "prompt_topk_token_ids": [[-1] * (top_k + 1), *rows[1:]],
            "prompt_topk_logprobs": [[-9999.0] * (top_k + 1), *[[-2.5] * (top_k + 1) for _ in rows[1:]]],
        }

    async def close(self) -> None:
        return None


def bare(teacher: Any, **settings: Any) -> Env:
    """An environment whose constructor never ran, with settings that know Atropos's fields only."""
    env = object.__new__(Env)
    env.config = SimpleNamespace(**{"teacher_enabled": True, "teacher_top_k": 2, **settings})  # type: ignore[assignment]
    env.teacher_server = teacher
    return env


def two_sequences(**more: Any) -> Any:
    return {
        "tokens": [[1, 2, 3], [4, 5]],
        "masks": [[-100, 2, 3], [-100, 5]],
        "scores": [1.0, 0.0],
        "group_overrides": None,
        **more,
    }


@pytest.fixture
def teacher_env(tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Env]:
    """Builds an environment that was constructed in the ordinary way, with a fake teacher."""

    def make(teacher: Teacher, env_cls: type[Env] = Env, **settings: Any) -> Env:
        monkeypatch.setattr(module, "ServerManager", lambda *args, **kwargs: teacher)
        config = Config(tokenizer_name=str(tokenizer_dir), teacher_enabled=True, teacher_top_k=2, **settings)
        configs = [APIServerConfig(model_name="t", tokenizer_name=str(tokenizer_dir), base_url="http://t")]
        return env_cls(config, [], testing=True, teacher_server_configs=configs)

    return make


# Atropos's own twelve behaviours.


async def test_targets_cover_every_token_of_every_sequence() -> None:
    out: Any = await bare(Teacher())._attach_teacher_distillation(two_sequences())
    assert out["distill_token_ids"] == [[ABSENT, [2, 100, 101], [3, 100, 101]], [ABSENT, [5, 100, 101]]]
    assert out["distill_logprobs"][1] == [[-9999.0] * 3, [-2.5] * 3]


async def test_failure_drops_the_payload_where_settings_know_no_policy() -> None:
    out: Any = await bare(Teacher(4))._attach_teacher_distillation(two_sequences())
    assert (out["distill_token_ids"], out["distill_logprobs"]) == (None, None)
    assert out["tokens"] == [[1, 2, 3], [4, 5]]


async def test_negative_top_k_asks_nobody() -> None:
    teacher = Teacher()
    out: Any = await bare(teacher, teacher_top_k=-1)._attach_teacher_distillation(two_sequences())
    assert teacher.asked == []
    assert out["distill_token_ids"] is None


async def test_top_k_of_zero_is_asked_as_zero_and_gives_one_column() -> None:
    teacher = Teacher()
    out: Any = await bare(teacher, teacher_top_k=0)._attach_teacher_distillation(two_sequences())
    assert teacher.asked == [([1, 2, 3], 0), ([4, 5], 0)]
    assert out["distill_token_ids"] == [[[-1], [2], [3]], [[-1], [5]]]


async def test_group_override_changes_top_k() -> None:
    teacher = Teacher()
    await bare(teacher)._attach_teacher_distillation(two_sequences(group_overrides={"teacher_top_k": 7}))
    assert [top_k for _, top_k in teacher.asked] == [7, 7]


async def test_group_override_can_skip_the_teacher() -> None:
    teacher = Teacher()
    skipped = two_sequences(group_overrides={"skip_teacher_top_k": True})
    out: Any = await bare(teacher)._attach_teacher_distillation(skipped)
    assert teacher.asked == []
    assert out["distill_token_ids"] is None


def tokenizer(vocabulary: dict[str, int], name: str = "student") -> Any:
    return SimpleNamespace(name_or_path=name, get_vocab=lambda: vocabulary)


def test_other_vocabulary_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    env = bare(None)
    env.tokenizer = tokenizer({"a": 1})
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", lambda *a, **k: tokenizer({"b": 1}))
    with pytest.raises(ValueError, match="Cross-tokenizer distillation is not supported"):
        env._validate_teacher_tokenizer_compatibility(teacher_tokenizer_name="teacher")


def patched_base(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Replaces what the constructor calls by notes of how it was called."""
    seen: dict[str, Any] = {"tokenizers": []}

    def init(self: Any, config: Any, server_configs: Any, slurm: bool = False, testing: bool = False) -> None:
        self.config, self.tokenizer = config, tokenizer({})
        seen.update(slurm=slurm, testing=testing, server_configs=server_configs)

    monkeypatch.setattr(BaseEnv, "__init__", init)
    monkeypatch.setattr(
        module, "ServerManager", lambda configs, **kwargs: SimpleNamespace(configs=configs, **kwargs)
    )
    monkeypatch.setattr(
        Env,
        "_validate_teacher_tokenizer_compatibility",
        lambda self, teacher_tokenizer_name: seen["tokenizers"].append(teacher_tokenizer_name),
    )
    return seen


ENABLED = SimpleNamespace(teacher_enabled=True, teacher_top_k=0)
TEACHER = APIServerConfig(model_name="model", tokenizer_name="its-tokenizer", base_url="http://t/v1")


def test_enabled_without_a_teacher_is_a_value_error(monkeypatch: pytest.MonkeyPatch) -> None:
    patched_base(monkeypatch)
    told = "teacher_enabled=True but no teacher server configuration was provided"
    with pytest.raises(ValueError, match=told):
        Env(config=ENABLED, server_configs=[])


def test_explicit_teacher_list_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = patched_base(monkeypatch)
    env: Any = Env(config=ENABLED, server_configs=[], teacher_server_configs=[TEACHER])
    assert env.teacher_server.configs == [TEACHER]
    assert seen["tokenizers"] == ["its-tokenizer"]


def test_bare_teacher_config_is_wrapped_into_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    patched_base(monkeypatch)
    env: Any = Env(config=ENABLED, server_configs=[], teacher_server_configs=TEACHER)
    assert env.teacher_server.configs == [TEACHER]


def test_no_teacher_anywhere_resolves_to_none() -> None:
    assert Env._resolve_teacher_server_configs(None, {}, {}) is None


def test_teacher_is_resolved_in_its_own_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    captured: dict[str, Any] = {}
    monkeypatch.setattr(module, "resolve_openai_configs", lambda **kwargs: captured.update(kwargs))
    Env._resolve_teacher_server_configs(
        default_teacher_server_configs=TEACHER,
        yaml_config={"teacher": {"tokenizer_name": "from-yaml"}, "openai": {"base_url": "http://student"}},
        cli_passed_flags={"teacher.base_url": "http://cli/v1", "openai.model_name": "student"},
    )
    assert captured["openai_config_dict"]["base_url"] == "http://cli/v1"
    assert captured["openai_config_dict"]["tokenizer_name"] == "from-yaml"
    assert captured["openai_config_dict"]["model_name"] == "model"
    assert captured["yaml_config"] == {"openai": {"tokenizer_name": "from-yaml"}}
    assert captured["cli_passed_flags"] == {"openai.base_url": "http://cli/v1"}


# The rules for the teacher's servers.


@pytest.mark.parametrize("default", [TEACHER, [TEACHER]])
@pytest.mark.parametrize("section", [{"model_name": "yaml"}, [{"model_name": "yaml"}]])
def test_default_yaml_and_options_override_each_other_in_this_order(default: Any, section: Any) -> None:
    resolved: Any = Env._resolve_teacher_server_configs(
        default, {"teacher": section}, {"teacher.timeout": 5, "env.group_size": 2}
    )
    assert len(resolved) == 1
    one = resolved[0]
    assert (one.base_url, one.model_name, one.timeout) == ("http://t/v1", "yaml", 5)


def test_options_alone_make_a_teacher() -> None:
    resolved: Any = Env._resolve_teacher_server_configs(None, {}, {"teacher.base_url": "http://x"})
    assert [one.base_url for one in resolved] == ["http://x"]


def test_baseline_becomes_one_server_once_something_overrides_it() -> None:
    baseline = ServerBaseline(model_name="m", timeout=7)
    resolved: Any = Env._resolve_teacher_server_configs(baseline, {"teacher": {"base_url": "http://x"}}, {})
    assert [(one.base_url, one.model_name, one.timeout) for one in resolved] == [("http://x", "m", 7)]
    assert Env._resolve_teacher_server_configs(baseline, {}, {}) == baseline


def test_several_teachers_of_a_file_are_kept() -> None:
    section = [{"base_url": "http://a"}, {"base_url": "http://b"}]
    resolved: Any = Env._resolve_teacher_server_configs(None, {"teacher": section}, {})
    assert [one.base_url for one in resolved] == ["http://a", "http://b"]


def test_option_beside_several_teachers_is_refused() -> None:
    section = [{"base_url": "http://a"}, {"base_url": "http://b"}]
    with pytest.raises(ConfigError):
        Env._resolve_teacher_server_configs(None, {"teacher": section}, {"teacher.timeout": 5})


# Constructor orders.


@pytest.mark.parametrize(
    ("arguments", "keywords", "expected"),
    [
        (([], True, False), {"teacher_server_configs": TEACHER}, (True, False)),
        (([], False, True), {"teacher_server_configs": TEACHER}, (False, True)),
        (([], True), {"testing": True, "teacher_server_configs": TEACHER}, (True, True)),
        (([], TEACHER, True, False), {}, (True, False)),
        (([], [TEACHER], False), {}, (False, False)),
        (([], TEACHER), {"slurm": True}, (True, False)),
        (([], None, True), {"teacher_server_configs": TEACHER}, (True, False)),
    ],
)
def test_both_constructor_orders_mean_what_they_say(
    monkeypatch: pytest.MonkeyPatch, arguments: Any, keywords: Any, expected: tuple[bool, bool]
) -> None:
    seen = patched_base(monkeypatch)
    env: Any = Env(ENABLED, *arguments, **keywords)
    assert (seen["slurm"], seen["testing"]) == expected
    assert env.teacher_server.configs == [TEACHER]


class OldEnv(BaseEnv):
    """Written for BaseEnv, with its own constructor and positional arguments."""

    def __init__(self, config: Any, server_configs: Any, slurm: bool = True, testing: bool = False) -> None:
        super().__init__(config, server_configs, slurm, testing)
        self.mine = "kept"

    async def get_next_item(self) -> Any:
        return None

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        return None


class Mixed(OldEnv, Env):
    """An old environment with a teacher mixed in."""


def test_teacher_mixes_into_an_environment_that_knows_no_teacher(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = patched_base(monkeypatch)
    env: Any = Mixed(
        config=ENABLED, server_configs=["s"], slurm=False, testing=True, teacher_server_configs=TEACHER
    )
    assert (seen["slurm"], seen["testing"], seen["server_configs"]) == (False, True, ["s"])
    assert env.teacher_server.configs == [TEACHER]
    assert env.mine == "kept"


def test_mixed_environment_without_a_teacher_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = patched_base(monkeypatch)
    env = Mixed(SimpleNamespace(teacher_enabled=False), [])
    assert env.teacher_server is None
    assert seen["slurm"] is True


# Tokenizers.


def test_same_name_is_not_compared() -> None:
    env = bare(None)
    env.tokenizer = tokenizer({}, name="same")
    env._validate_teacher_tokenizer_compatibility("same")


def test_other_name_with_the_same_vocabulary_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    env = bare(None)
    env.tokenizer = tokenizer({"a": 1, "b": 2})
    monkeypatch.setattr(
        "transformers.AutoTokenizer.from_pretrained", lambda *a, **k: tokenizer({"b": 2, "a": 1})
    )
    env._validate_teacher_tokenizer_compatibility("teacher")


def test_teacher_tokenizer_that_cannot_be_loaded_is_a_value_error(tmp_path: Path) -> None:
    env = bare(None)
    env.tokenizer = tokenizer({"a": 1})
    with pytest.raises(ValueError, match=r"teacher\.tokenizer_name"):
        env._validate_teacher_tokenizer_compatibility(str(tmp_path / "missing"))


def test_every_teacher_of_a_list_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = patched_base(monkeypatch)
    other = APIServerConfig(model_name="second", base_url="http://u")
    Env(ENABLED, [], teacher_server_configs=[TEACHER, TEACHER, other])
    assert seen["tokenizers"] == ["its-tokenizer", "second"]


# What becomes of failures.


async def test_mask_hides_the_failed_sequence_and_keeps_the_rest(
    teacher_env: Callable[..., Env], tmp_path: Path
) -> None:
    env = teacher_env(Teacher(1), journal_path=str(tmp_path / "journal.jsonl"))
    out: Any = await env._attach_teacher_distillation(two_sequences())
    assert out["distill_token_ids"] == [[ABSENT] * 3, [ABSENT, [5, 100, 101]]]
    assert out["distill_logprobs"][0] == [[-9999.0] * 3] * 3
    assert env.runtime.counters.teacher_failures == {"teacher.bad_reply": 1}
    assert env.runtime.counters.masked == {"teacher_bad_reply": 2}
    line = read_journal(tmp_path / "journal.jsonl")[0]
    assert (line["kind"], line["sequences"], line["tokens"], line["failed"]) == ("teacher", 2, 5, 1)
    assert (line["teacher"], line["positions"], line["scored"]) == ("teacher", 3, 1)


async def test_group_without_any_scored_sequence_is_dropped(teacher_env: Callable[..., Env]) -> None:
    env = teacher_env(Teacher(1, 4))
    assert await env._attach_teacher_distillation(two_sequences()) is None
    assert env.runtime.counters.dropped == {"teacher_bad_reply": 1}


async def test_drop_policy_drops_the_group_for_one_failure(teacher_env: Callable[..., Env]) -> None:
    env = teacher_env(Teacher(1), on_teacher_failure="drop")
    assert await env._attach_teacher_distillation(two_sequences()) is None
    assert env.runtime.counters.dropped == {"teacher_bad_reply": 1}


async def test_send_without_keeps_the_group_without_targets(teacher_env: Callable[..., Env]) -> None:
    env = teacher_env(Teacher(1, 4), on_teacher_failure="send_without")
    out: Any = await env._attach_teacher_distillation(two_sequences())
    assert out["distill_token_ids"] is None
    assert env.runtime.counters.dropped == {}


async def test_rows_of_another_length_count_as_a_failure(teacher_env: Callable[..., Env]) -> None:
    class Short(Teacher):
        async def get_logprobs(self, **kwargs: Any) -> Any:
            told = await super().get_logprobs(**kwargs)
            return {**told, "prompt_topk_logprobs": told["prompt_topk_logprobs"][:-1]}

    env = teacher_env(Short())
    assert await env._attach_teacher_distillation(two_sequences()) is None
    assert env.runtime.counters.teacher_failures == {"teacher.bad_reply": 2}


async def test_outage_is_told_once_and_its_end_too(
    teacher_env: Callable[..., Env], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    teacher = Teacher(1, 4, error=TeacherUnreachable("away"))
    env = teacher_env(teacher)
    for _ in range(5):
        await env._attach_teacher_distillation(two_sequences())
    teacher.failing = ()
    await env._attach_teacher_distillation(two_sequences())
    told = [record.message for record in caplog.records if record.name == teacher_set.__name__]
    assert len(told) == 2
    assert "away" in told[0]
    assert told[1] == "the teacher answers again"


# What the group looks like afterwards.


async def test_group_of_the_caller_is_not_changed() -> None:
    group = two_sequences()
    await bare(Teacher())._attach_teacher_distillation(group)
    assert group == two_sequences()


async def test_override_of_null_takes_the_settings_top_k() -> None:
    teacher = Teacher()
    await bare(teacher)._attach_teacher_distillation(two_sequences(group_overrides={"teacher_top_k": None}))
    assert [top_k for _, top_k in teacher.asked] == [2, 2]


async def test_override_can_turn_one_group_off_and_another_on() -> None:
    teacher = Teacher()
    off = two_sequences(group_overrides={"teacher_top_k": -1})
    on = two_sequences(group_overrides={"teacher_top_k": 3})
    out: Any = await bare(teacher)._attach_teacher_distillation(off)
    assert out["distill_token_ids"] is None
    await bare(teacher, teacher_top_k=-1)._attach_teacher_distillation(on)
    assert [top_k for _, top_k in teacher.asked] == [3, 3]


async def test_group_without_sequences_asks_nobody() -> None:
    out: Any = await bare(Teacher())._attach_teacher_distillation({"tokens": []})  # type: ignore[typeddict-item]
    assert out["distill_token_ids"] is None


# On the way to the API.


class ToyTeacherEnv(ToyEnv, Env):
    """The toy environment with a teacher."""

    env_config_cls = Config


async def test_teacher_is_asked_only_for_groups_that_pass_the_filters(
    api: FakeApi, teacher_env: Callable[..., Env]
) -> None:
    teacher = Teacher()
    env = teacher_env(teacher, rollout_server_url=api.url)
    env.max_token_len = 10
    groups = [group_of(0.0), None, group_of(0.0, 1.0, length=10), group_of(0.0, 1.0)]
    await env.handle_send_to_api(groups)
    await env.runtime.close()
    assert len(teacher.asked) == 2
    assert env.runtime.counters.dropped == {"size_mismatch": 1, "too_long": 1}
    assert len(api.groups) == 1
    assert api.groups[0]["distill_token_ids"][0] == [ABSENT, ABSENT, [3, 100, 101], [4, 100, 101]]


async def test_equal_scores_teach_all_the_same(api: FakeApi, teacher_env: Callable[..., Env]) -> None:
    env = teacher_env(Teacher(), rollout_server_url=api.url)
    await env.handle_send_to_api(group_of(1.0, 1.0))
    await env.runtime.close()
    assert len(api.groups) == 1


async def test_equal_scores_are_dropped_when_that_was_asked_for(
    api: FakeApi, teacher_env: Callable[..., Env]
) -> None:
    env = teacher_env(Teacher(), rollout_server_url=api.url, ensure_scores_are_not_same=True)
    await env.handle_send_to_api(group_of(1.0, 1.0))
    await env.runtime.close()
    assert api.groups == []
    assert env.runtime.counters.dropped == {"equal_scores": 1}


async def test_whole_run_with_a_failing_teacher_sends_only_real_targets(
    api: FakeApi, teacher_env: Callable[..., Env]
) -> None:
    teacher = Teacher(*range(1, 1000, 3))
    env: Any = teacher_env(teacher, ToyTeacherEnv, rollout_server_url=api.url, total_steps=8)
    await env.env_manager()
    assert {group["tokens"][0][0] % 3 for group in api.groups} <= {0, 2}
    assert all(group["distill_token_ids"][0][2] == [3, 100, 101] for group in api.groups)
    assert env.runtime.counters.dropped["teacher_bad_reply"] >= 1
    assert env.runtime.counters.requeued["teacher_bad_reply"] >= 3


# What the command line turns on.


def from_options(yaml: dict[str, Any], flags: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    patched_base(monkeypatch)
    config = Config(**yaml.get("env", {}))
    return Env.from_options(config, [], YamlFile(data=yaml), flags, slurm=False, testing=True)


@pytest.mark.parametrize(
    ("yaml", "flags", "enabled"),
    [
        ({}, {}, False),
        ({}, {"teacher.base_url": "http://t"}, True),
        ({"teacher": {"base_url": "http://t"}}, {}, True),
        ({"teacher": [{"base_url": "http://t"}]}, {}, True),
        ({"teacher": {"base_url": "http://t"}, "env": {"teacher_enabled": False}}, {}, False),
    ],
)
def test_naming_a_teacher_turns_it_on_unless_it_was_turned_off(
    monkeypatch: pytest.MonkeyPatch, yaml: Any, flags: Any, enabled: bool
) -> None:
    env = from_options(yaml, flags, monkeypatch)
    assert env.config.teacher_enabled is enabled
    assert (env.teacher_server is not None) is enabled


def test_equal_scores_filter_is_off_with_a_teacher_unless_set(monkeypatch: pytest.MonkeyPatch) -> None:
    teacher = {"teacher": {"base_url": "http://t"}}
    assert not from_options(teacher, {}, monkeypatch).config.ensure_scores_are_not_same
    explicit = {**teacher, "env": {"ensure_scores_are_not_same": True}}
    assert from_options(explicit, {}, monkeypatch).config.ensure_scores_are_not_same
    assert from_options({}, {}, monkeypatch).config.ensure_scores_are_not_same


def test_unknown_key_of_the_teacher_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="model_nme"):
        from_options({"teacher": {"model_nme": "x"}}, {}, monkeypatch)
