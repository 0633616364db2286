"""The plain teacher and the named ones together, and the servers of each."""

from __future__ import annotations

import pytest

from atroposlib.config.server import APIServerConfig
from atroposlib.config.teacher import TeacherConfig
from atroposlib.config.teachers import all_teachers
from atroposlib.errors import ConfigError

A, B = APIServerConfig(base_url="http://a", model_name="m"), APIServerConfig(base_url="http://b")


def test_plain_teacher_comes_first_under_its_name() -> None:
    found = all_teachers([A, B], {"math": TeacherConfig(base_url="http://c")})
    assert list(found) == ["teacher", "math"]
    assert [server.base_url for server in found["teacher"].servers()] == ["http://a", "http://b"]
    assert found["teacher"].servers()[0].model_name == "m"
    assert all_teachers([], {}) == {}


def test_replica_takes_what_it_leaves_out_from_its_teacher() -> None:
    teacher = TeacherConfig(
        model_name="m",
        api_key="k",
        replicas=[A.model_copy(update={"timeout": 5}), APIServerConfig(base_url="http://x")],
    )
    first, second = teacher.servers()
    assert (first.base_url, first.api_key, first.timeout) == ("http://a", "k", 5)
    assert (second.base_url, second.api_key, second.model_name) == ("http://x", "k", "m")


@pytest.mark.parametrize(
    ("plain", "named", "told"),
    [
        ([A], {"teacher": TeacherConfig(base_url="http://c")}, "one name"),
        ([], {"a b": TeacherConfig(base_url="http://c")}, "not the name"),
        ([], {"": TeacherConfig(base_url="http://c")}, "not the name"),
        ([], {"math": TeacherConfig()}, r"teachers\.math\.base_url"),
        ([], {"math": TeacherConfig(replicas=[A, APIServerConfig()])}, "no address"),
        ([APIServerConfig(base_url=None)], {}, r"teacher\.base_url"),
    ],
)
def test_teachers_that_cannot_be_meant_are_refused(
    plain: list[APIServerConfig], named: dict[str, TeacherConfig], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        all_teachers(plain, named)


@pytest.mark.parametrize("name", ["add_generation_prompt", "tokenize", "chat_template", "messages"])
def test_value_for_a_template_that_we_give_ourselves_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"not a value for the template: {name}"):
        TeacherConfig(chat_template_kwargs={"enable_thinking": False, name: True})


@pytest.mark.parametrize("route", ["everything", "env:", "env:a,", "all,named"])
def test_route_that_means_nothing_is_refused(route: str) -> None:
    with pytest.raises(ValueError, match="route"):
        TeacherConfig(route=route)
