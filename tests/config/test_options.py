from __future__ import annotations

import pytest
from pydantic import BaseModel, Field, SecretStr, ValidationError
from pydantic_core import PydanticUndefined

from atroposlib.config.annotations import describe
from atroposlib.config.env import BaseEnvConfig, TeacherDistillationConfig
from atroposlib.config.options import options_of, prefixed
from tests.config.examples import Inner, Required, Serve, Settings


def test_prefixed_keeps_limits_description_default_and_secrecy() -> None:
    flags = prefixed(Settings, "env.")
    field = flags.model_fields["env.count"]
    assert (field.description, field.default) == ("How many.", 3)
    assert flags.model_fields["env.key"].repr is False
    with pytest.raises(ValidationError):
        flags.model_validate({"env.count": -2})
    with pytest.raises(ValidationError):
        flags.model_validate({"env.count": 11})


def test_prefixed_covers_every_field_and_requires_none() -> None:
    assert [*prefixed(BaseEnvConfig, "env.").model_fields] == [f"env.{n}" for n in BaseEnvConfig.model_fields]
    assert getattr(prefixed(Required, "x.")(), "x.model") is None


def test_prefixed_makes_a_new_list_for_every_command() -> None:
    flags = prefixed(Settings, "env.")
    assert getattr(flags(), "env.stops") is not getattr(flags(), "env.stops")


def test_prefixed_shows_the_defaults_that_an_environment_sets() -> None:
    flags = prefixed(TeacherDistillationConfig, "env.", TeacherDistillationConfig(group_size=16))
    assert options_of(flags)["env.group_size"].default == 16
    assert options_of(flags)["env.teacher_top_k"].default == 0
    with pytest.raises(ValidationError):
        prefixed(
            TeacherDistillationConfig, "env.", TeacherDistillationConfig(teacher_top_k=3)
        ).model_validate({"env.teacher_top_k": -2})


def test_a_factory_that_needs_the_other_values_shows_no_default() -> None:
    class Computed(BaseModel):
        size: int = 3
        sizes: list[int] = Field(default_factory=lambda data: [data["size"]])

    assert options_of(Computed)["sizes"].default is None
    assert prefixed(Computed, "x.").model_fields["x.sizes"].default is None


def test_options_carry_namespace_and_nested_defaults() -> None:
    class Outer(BaseModel):
        inner: Inner = Inner(weight=5)
        other: Inner | None = None

    options = options_of(Outer)
    assert [*options] == ["inner.name", "inner.weight", "other.name", "other.weight"]
    assert options["inner.weight"].default == 5
    assert options["inner.weight"].path == ("inner", "weight")
    assert {option.group for option in options_of(Serve).values()} == {"", "env", "openai", "teacher"}
    assert options_of(Required)["model"].default is PydanticUndefined


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("count", "INT >= -1 <= 10"),
        ("rate", "NUMBER"),
        ("note", "TEXT|null"),
        ("wanted", "true|false"),
        ("maybe", "true|false|null"),
        ("colour", "red|green"),
        ("effort", "low|high|null"),
        ("stops", "LIST of TEXT"),
        ("extra", "JSON"),
        ("one_or_many", "TEXT|LIST of TEXT"),
        ("parts", "LIST of JSON"),
    ],
)
def test_the_accepted_values_are_told_in_words(name: str, kind: str) -> None:
    assert options_of(Settings)[name].kind == kind


def test_secret_types_count_as_secret() -> None:
    class Keys(BaseModel):
        token: SecretStr | None = None

    assert options_of(Keys)["token"].secret
    assert describe(SecretStr) == "TEXT"
