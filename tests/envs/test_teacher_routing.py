"""Which teachers a group goes to."""

from __future__ import annotations

from typing import Any

import pytest

from atroposlib.config.teacher import TeacherConfig
from atroposlib.envs.teacher_routing import Assignment, assigned
from atroposlib.errors import ConfigError

TEACHERS = {
    "all": TeacherConfig(),
    "named": TeacherConfig(route="named", weight=2.0),
    "mine": TeacherConfig(route="env:gsm8k,math", top_k=3),
    "off": TeacherConfig(top_k=-1),
    "light": TeacherConfig(weight=0.0),
}


def names(overrides: dict[str, Any], env_names: Any = (), top_k: int = 5) -> list[str]:
    return [one.name for one in assigned(TEACHERS, overrides, top_k=top_k, env_names=env_names)]


def test_route_decides_where_a_group_names_nobody() -> None:
    assert names({}) == ["all"]
    assert names({}, {"math", "other"}) == ["all", "mine"]


def test_group_that_names_its_teachers_goes_to_them_alone() -> None:
    assert names({"teacher": "named"}) == ["named"]
    assert names({"teacher": ["mine", "all"]}, {"elsewhere"}) == ["all", "mine"]


def test_weight_of_zero_asks_nobody_and_the_overrides_change_it() -> None:
    assert names({"teacher_weights": {"light": 0.5, "all": 0}}) == ["light"]


def test_top_k_is_the_groups_then_the_teachers_then_the_settings() -> None:
    def top_ks(overrides: dict[str, Any]) -> list[int]:
        found = assigned(TEACHERS, overrides, top_k=5, env_names={"math"})
        return [one.top_k for one in found]

    assert top_ks({}) == [5, 3]
    assert top_ks({"teacher_top_k": None}) == [5, 3]
    assert top_ks({"teacher_top_k": 0}) == [0, 0, 0]
    assert top_ks({"teacher_top_k": -1}) == []


def test_assignment_carries_the_weight_of_the_mixture() -> None:
    assert assigned(TEACHERS, {"teacher": "named"}, top_k=1, env_names=()) == [Assignment("named", 2.0, 1)]


@pytest.mark.parametrize(
    "overrides", [{"teacher": "nmed"}, {"teacher_weights": {"nmed": 1}}, {"teacher_weights": {"all": -1}}]
)
def test_overrides_that_mean_nobody_are_refused(overrides: Any) -> None:
    with pytest.raises(ConfigError, match=r"named|weight >= 0"):
        names(overrides)
