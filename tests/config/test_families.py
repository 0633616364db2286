"""Settings that map names to models: `--teachers.math.weight 2`, YAML, and every mistake with its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field

from atroposlib.config.flags import parse
from atroposlib.config.merge import build
from atroposlib.config.mistakes import errors_of
from atroposlib.config.options import options_of, prefixed
from atroposlib.config.server import APIServerConfig
from atroposlib.config.teacher import TeacherConfig
from atroposlib.config.usage import help_text
from atroposlib.config.yaml_file import load_yaml
from atroposlib.errors import ConfigError


class Member(BaseModel):
    model_config = ConfigDict(extra="forbid")

    weight: float = Field(1.0, ge=0, description="How much.")
    sharp: bool = False
    stops: list[str] = []
    key: str = Field("", repr=False)


class Families(BaseModel):
    """Settings with a family."""

    model_config = ConfigDict(extra="forbid")

    members: dict[str, Member] = {}
    member: Member = Member()
    free: dict[str, Any] = {}
    count: int = 1


def read(*argv: str, yaml: str = "", path: Path | None = None) -> Families:
    """The settings of a YAML text and of options."""
    if path is not None:
        path.write_text(yaml)
    parsed = parse(argv, options_of(Families))
    assert parsed.mistakes == []
    return build(Families, defaults=None, yaml=load_yaml(path), keys=(), flags=parsed.values)


def test_each_option_of_a_family_is_listed_once() -> None:
    names = [name for name in options_of(Families) if name.startswith("members.")]
    assert names == [f"members.NAME.{field}" for field in Member.model_fields]
    text = help_text("x", None, options_of(Families).values())
    assert text.count("--members.NAME.weight") == 1
    assert "members.NAME:" in text


@pytest.mark.parametrize("name", ["math", "my-math", "my_math", "7b", "NAME"])
def test_any_name_is_taken_as_it_is_spelled(name: str) -> None:
    settings = read(f"--members.{name}.weight", "2", f"--members.{name}.sharp", "--members.other.weight=3")
    assert {key: one.weight for key, one in settings.members.items()} == {name: 2.0, "other": 3.0}
    assert settings.members[name].sharp
    assert settings.members["other"].model_fields_set == {"weight"}


def test_spellings_of_other_options_hold_for_a_family_too() -> None:
    settings = read("--no-members.a-b.sharp", "--members.a-b.stops", "x", "y", "--members.a-b.stops", "z")
    assert settings.members["a-b"].model_dump(exclude_unset=True) == {
        "sharp": False,
        "stops": ["x", "y", "z"],
    }


def test_options_win_over_yaml_field_by_field_and_name_by_name(tmp_path: Path) -> None:
    yaml = "members:\n  math: {weight: 2, sharp: true}\n  code:\n  1: {weight: 4}\n"
    settings = read("--members.math.weight", "5", "--members.new.sharp", yaml=yaml, path=tmp_path / "x.yaml")
    assert {name: (one.weight, one.sharp) for name, one in settings.members.items()} == {
        "math": (5.0, True),
        "code": (1.0, False),
        "1": (4.0, False),
        "new": (1.0, True),
    }


def test_defaults_are_the_lowest_layer_of_a_family(tmp_path: Path) -> None:
    defaults = Families(members={"math": Member(weight=2, sharp=True)})
    path = tmp_path / "x.yaml"
    path.write_text("members: {math: {weight: 3}}")
    settings = build(Families, defaults=defaults, yaml=load_yaml(path), keys=(), flags={})
    assert settings.members == {"math": Member(weight=3, sharp=True)}


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--members.math.wieght", "--members.math.weight"),
        ("--membrs.math.weight", "--members.math.weight"),
        ("--member.math.weight", "--members.math.weight"),
        ("--members.my-math.stop", "--members.my-math.stops"),
        ("--members.weight", "--member.weight"),
        ("--no-members.math.shrp", "--no-members.math.sharp"),
        ("--members.ma$th.weight", "--members.NAME.weight"),
    ],
)
def test_mistyped_option_is_told_with_the_name_that_was_given(typed: str, meant: str) -> None:
    (mistake,) = parse([typed, "1"], options_of(Families)).mistakes
    assert mistake.where == typed
    assert mistake.fix is not None
    assert meant in mistake.fix.rstrip("?").split()


def mistakes_of(path: Path, yaml: str, *argv: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(*argv, yaml=yaml, path=path)
    return [str(error) for error in errors_of(caught.value)]


@pytest.mark.parametrize(
    ("yaml", "told"),
    [
        ("members:\n  math:\n    wieght: 2", ["x.yaml:3 members.math.wieght", "did you mean weight?"]),
        ("members:\n  math:\n    weight: -2", ["x.yaml:3 members.math.weight", "greater than or equal to 0"]),
        ("members:\n  a: {}\n  math: {weight: true}", ["x.yaml:3 members.math.weight", "got true"]),
        ("members:\n  math: fast", ["x.yaml:2 members.math", "got a text", "`key: value` lines"]),
        ("members: fast", ["x.yaml:1 members", "got a text"]),
    ],
)
def test_mistake_in_yaml_is_told_with_its_line(tmp_path: Path, yaml: str, told: list[str]) -> None:
    (line,) = mistakes_of(tmp_path / "x.yaml", yaml)
    assert all(part in line for part in told), line


def test_mistake_in_an_option_is_told_as_it_was_typed(tmp_path: Path) -> None:
    (line,) = mistakes_of(tmp_path / "x.yaml", "", "--members.my-math.weight", "-2")
    assert line.startswith("--members.my-math.weight: ")


def test_key_of_a_member_is_never_shown(tmp_path: Path) -> None:
    yaml = "members:\n  math: {key: [s3cret]}"
    (line,) = mistakes_of(tmp_path / "x.yaml", yaml)
    assert "s3cret" not in line
    (line,) = mistakes_of(tmp_path / "x.yaml", "members:\n  key: s3cret")
    assert "s3cret" not in line
    assert "write it as members.NAME.key" in line
    assert "s3cret" not in repr(read("--members.math.key", "s3cret"))
    replicas = [APIServerConfig(base_url="http://a", api_key="s3cret")]
    assert "s3cret" not in repr(TeacherConfig(api_key="s3cret", replicas=replicas))


def test_prefixed_family_keeps_its_namespace() -> None:
    options = options_of(prefixed(Families, "env."))
    assert options["env.members.NAME.weight"].path == ("env.members", "NAME", "weight")
    parsed = parse(["--env.members.math.weight", "2"], options)
    assert parsed.values == {"env.members": {"math": {"weight": "2"}}}
