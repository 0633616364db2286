from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, model_validator

from atroposlib.config.env import BaseEnvConfig, EvalHandlingEnum, TeacherDistillationConfig
from atroposlib.config.merge import build, given, refuse_unknown_keys
from atroposlib.config.server import APIServerConfig, ServerBaseline
from atroposlib.config.yaml_file import YamlFile, load_yaml
from atroposlib.errors import ConfigError
from tests.config.examples import Inner, Required, Settings


def _yaml(folder: Path, text: str) -> YamlFile:
    path = folder / "x.yaml"
    path.write_text(text, encoding="utf-8")
    return load_yaml(path)


def _lines(yaml: YamlFile, model_cls: type[BaseModel] = Settings, **layers: Any) -> list[str]:
    """The error lines of a build, the file called x.yaml whatever its folder."""
    arguments: dict[str, Any] = {"defaults": None, "keys": (), "flags": {}, **layers}
    with pytest.raises(ConfigError) as caught:
        build(model_cls, yaml=yaml, **arguments)
    folder = f"{yaml.path.parent}/" if yaml.path else ""
    return str(caught.value).replace(folder, "").splitlines()


def test_flags_win_over_yaml_and_yaml_over_defaults(tmp_path: Path) -> None:
    yaml = _yaml(tmp_path, "env:\n  group_size: 2\n  total_steps: 2\n")
    config = build(
        BaseEnvConfig,
        defaults=BaseEnvConfig(group_size=1, total_steps=1, wandb_name="default"),
        yaml=yaml,
        keys=("env",),
        flags={"env.total_steps": 3, "openai.timeout": 5, "config": "x.yaml"},
        prefix="env.",
    )
    assert (config.group_size, config.total_steps, config.wandb_name) == (2, 3, "default")


def test_fields_set_are_exactly_those_of_a_layer(tmp_path: Path) -> None:
    yaml = _yaml(tmp_path, "env:\n  group_size: 4\n")
    config = build(
        TeacherDistillationConfig,
        defaults=TeacherDistillationConfig(use_wandb=True),
        yaml=yaml,
        keys=("env",),
        flags={"env.wandb_name": None},
        prefix="env.",
    )
    assert config.model_fields_set == {"use_wandb", "group_size", "wandb_name"}


def test_defaults_of_another_class_give_the_fields_both_have() -> None:
    baseline = ServerBaseline(timeout=7, model_name="m")
    config = build(
        APIServerConfig, defaults=baseline, yaml=YamlFile(), keys=(), flags={"base_url": "http://t"}
    )
    assert config.model_fields_set == {"timeout", "model_name", "base_url"}
    assert config.timeout == 7


def test_one_server_of_a_list_is_read_by_its_place(tmp_path: Path) -> None:
    yaml = _yaml(tmp_path, "openai:\n  - base_url: http://a\n  - base_url: http://b\n    timeuot: 3\n")
    first = build(APIServerConfig, defaults=None, yaml=yaml, keys=("openai", 0), flags={})
    assert first.base_url == "http://a"
    assert _lines(yaml, APIServerConfig, keys=("openai", 1)) == [
        "x.yaml:4 openai.1.timeuot: unknown option; did you mean timeout? [usage.unknown_option]"
    ]


def test_nested_settings_merge_field_by_field_and_mappings_are_replaced(tmp_path: Path) -> None:
    yaml = _yaml(tmp_path, "inner: {weight: 3}\nextra: {b: 2}\n")
    defaults = Settings(inner=Inner(name="reverse", weight=2), extra={"a": 1})
    settings = build(Settings, defaults=defaults, yaml=yaml, keys=(), flags={})
    assert settings.inner.model_dump() == {"name": "reverse", "weight": 3.0}
    assert settings.extra == {"b": 2}
    flags = {"inner": {"name": "forward"}}
    settings = build(Settings, defaults=defaults, yaml=yaml, keys=(), flags=flags)
    assert settings.inner.model_dump() == {"name": "forward", "weight": 3.0}


@pytest.mark.parametrize("text", ["env:\n", "env: {}\n", "other: 1\n", ""])
def test_a_section_without_lines_sets_nothing(tmp_path: Path, text: str) -> None:
    config = build(BaseEnvConfig, defaults=None, yaml=_yaml(tmp_path, text), keys=("env",), flags={})
    assert config.model_fields_set == set()


def test_a_nested_section_without_lines_sets_nothing(tmp_path: Path) -> None:
    settings = build(Settings, defaults=None, yaml=_yaml(tmp_path, "inner:\n"), keys=(), flags={})
    assert settings.inner == Inner()


def test_given_is_true_for_what_the_user_has_set_only(tmp_path: Path) -> None:
    yaml = _yaml(tmp_path, "env: {group_size: 4}\nteacher: [{timeout: 3}]\n")
    flags = {"env.total_steps": 3}
    assert given(yaml, flags, "env", "group_size")
    assert given(yaml, flags, "env", "total_steps")
    assert not given(yaml, flags, "env", "use_wandb")
    assert not given(yaml, flags, "teacher", "timeout")
    assert not given(YamlFile(), {}, "env", "group_size")


WRONG = """\
count: three
rate: yes
nmae: x
colour: geren
inner:
  weight: -1
  name: fwd
  wieght: 2
parts:
  - weight: 1
  - weigth: 2
sizes: [1, two]
number_or_text: [1]
one_or_many: {a: 1}
extra: 3
"""


def test_every_wrong_value_of_a_file_is_told_with_its_line(tmp_path: Path) -> None:
    bad = "not a valid value"
    assert sorted(_lines(_yaml(tmp_path, WRONG))) == sorted(
        [
            f"x.yaml:1 count: {bad} (got 'three', expected a valid integer) [usage.bad_value]",
            f"x.yaml:2 rate: {bad} (got true, expected NUMBER) [usage.bad_value]",
            "x.yaml:3 nmae: unknown option; did you mean name? [usage.unknown_option]",
            f"x.yaml:4 colour: {bad} (got 'geren', expected 'red' or 'green'); did you mean green? "
            "[usage.bad_value]",
            f"x.yaml:6 inner.weight: {bad} (got -1, expected greater than or equal to 0) [usage.bad_value]",
            f"x.yaml:7 inner.name: {bad} (got 'fwd', expected 'forward' or 'reverse') [usage.bad_value]",
            "x.yaml:8 inner.wieght: unknown option; did you mean weight? [usage.unknown_option]",
            "x.yaml:11 parts.1.weigth: unknown option; did you mean weight? [usage.unknown_option]",
            f"x.yaml:12 sizes.1: {bad} (got 'two', expected a valid integer) [usage.bad_value]",
            f"x.yaml:13 number_or_text: {bad} (got a list, expected a valid integer or a valid string) "
            "[usage.bad_value]",
            f"x.yaml:14 one_or_many: {bad} (got a mapping, expected a valid string or a valid list) "
            "[usage.bad_value]",
            f"x.yaml:15 extra: {bad} (got 3, expected a valid dictionary) [usage.bad_value]",
        ]
    )


def test_the_flag_is_blamed_when_it_hides_a_yaml_value(tmp_path: Path) -> None:
    yaml = _yaml(tmp_path, "env:\n  group_size: 4\n")
    (line,) = _lines(yaml, BaseEnvConfig, keys=("env",), flags={"env.group_size": "x"}, prefix="env.")
    assert line.startswith("--env.group_size: not a valid value (got 'x'")


def test_a_wrong_default_is_told_as_one() -> None:
    defaults = BaseEnvConfig.model_construct(_fields_set={"group_size"}, group_size="x")
    (line,) = _lines(YamlFile(), BaseEnvConfig, defaults=defaults, prefix="env.")
    assert line.startswith("default of env.group_size: not a valid value")


def test_a_required_value_that_nobody_gave_is_named(tmp_path: Path) -> None:
    yaml = _yaml(tmp_path, "steps: 2\n")
    assert _lines(yaml, Required) == ["--model: a value is required (expected TEXT) [usage.missing_value]"]


def test_validators_of_the_settings_class_speak_for_themselves(tmp_path: Path) -> None:
    yaml = _yaml(tmp_path, "count: 6\nname: clash\n")
    assert _lines(yaml) == ["x.yaml: clash needs count <= 5 [config.invalid]"]
    assert _lines(YamlFile(), flags={"count": 6, "name": "clash"}) == [
        "clash needs count <= 5 [config.invalid]"
    ]
    assert _lines(_yaml(tmp_path, "\nname: two words\n")) == [
        "x.yaml:2 name: name must be one word [usage.bad_value]"
    ]


def test_a_config_error_raised_by_a_validator_keeps_its_words() -> None:
    class Strict(BaseModel):
        size: int = 1

        @model_validator(mode="after")
        def _odd(self) -> Strict:
            raise ConfigError("even", code="usage.model", got=2, expected="odd", fix="add one")

    assert _lines(YamlFile(), Strict) == ["even (got 2, expected odd); add one [usage.model]"]


@pytest.mark.parametrize(("text", "place"), [("env: 3\n", "x.yaml:1 env"), ("env: [1]\n", "x.yaml:1 env")])
def test_a_section_that_is_no_mapping_is_refused(tmp_path: Path, text: str, place: str) -> None:
    (line,) = _lines(_yaml(tmp_path, text), BaseEnvConfig, keys=("env",))
    assert line.startswith(f"{place}: must be a mapping (got a")


def test_secrets_are_never_repeated(tmp_path: Path) -> None:
    yaml = _yaml(tmp_path, "key: [s3cret]\nparts: [{key: s3cret}]\ninner: [s3cret]\n")
    assert "s3cret" not in "\n".join(_lines(yaml))
    assert "s3cret" not in "\n".join(_lines(YamlFile(), flags={"key": ["s3cret"], "api_key": "s3cret"}))


def test_a_long_value_is_cut() -> None:
    (line,) = _lines(YamlFile(), flags={"count": "9" * 5000 + "x"})
    assert len(line) < 250


def test_unknown_top_level_keys_are_named(tmp_path: Path) -> None:
    yaml = _yaml(tmp_path, "env: {}\nteachr: {}\nqqqq: 1\n")
    with pytest.raises(ConfigError) as caught:
        refuse_unknown_keys(yaml, {"env", "openai", "teacher"})
    assert str(caught.value).replace(f"{tmp_path}/", "").splitlines() == [
        "x.yaml:2 teachr: unknown option; did you mean teacher? [usage.unknown_option]",
        "x.yaml:3 qqqq: unknown option; known: env, openai, teacher [usage.unknown_option]",
    ]
    refuse_unknown_keys(yaml, {"env", "teachr", "qqqq"})


class Tolerant(BaseEnvConfig):
    """What old environments do: fields overridden with other types, unknown ones allowed."""

    model_config = ConfigDict(extra="allow")

    group_size: Literal[1, 2] | int = 7  # type: ignore[assignment]  # an override, as authors write them
    judge: Inner | None = None
    reward_functions: list[str | dict[str, Any]] = Field(default_factory=list)


def test_an_environment_that_allows_unknown_fields_gets_them(tmp_path: Path) -> None:
    yaml = _yaml(tmp_path, "env:\n  reward_functions: [a, {type: b}]\n  mine: 3\n  judge: {weight: 2}\n")
    defaults = Tolerant(own=1)  # type: ignore[call-arg]  # unknown on purpose
    config = build(Tolerant, defaults=defaults, yaml=yaml, keys=("env",), flags={})
    assert config.model_extra == {"own": 1, "mine": 3}
    assert config.judge == Inner(weight=2)
    assert config.group_size == 7


@pytest.mark.parametrize("union", [int | list[Inner], dict[str, Inner] | None])
def test_a_mistake_inside_a_union_is_told_once_with_its_place(tmp_path: Path, union: Any) -> None:
    class Holder(BaseModel):
        part: union = None  # type: ignore[valid-type]  # the annotation is the parameter of the test

    inside = "a: {weight: much}" if "dict" in str(union) else "- {weight: much}"
    lines = _lines(_yaml(tmp_path, f"part:\n  {inside}\n"), Holder)
    assert any(line.startswith("x.yaml:2 part.") and "'much'" in line for line in lines)


def test_enum_members_and_parsed_values_are_taken_as_they_are() -> None:
    flags = {"eval_handling": EvalHandlingEnum.NONE}
    config = build(BaseEnvConfig, defaults=None, yaml=YamlFile(), keys=(), flags=flags)
    assert config.eval_handling is EvalHandlingEnum.NONE
