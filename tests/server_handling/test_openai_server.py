"""resolve_openai_configs: which of defaults, YAML and command line wins."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from atroposlib.config.server import APIServerConfig, ServerBaseline
from atroposlib.envs.server_handling.openai_server import resolve_openai_configs
from atroposlib.errors import ConfigError

A, B = APIServerConfig(base_url="http://a/v1"), APIServerConfig(base_url="http://b/v1")
MERGED = {"base_url": "http://merged/v1", "api_key": "sk-secret"}


def resolve(default: Any, merged: Any = None, yaml: Any = None, flags: Any = None) -> Any:
    return resolve_openai_configs(default, merged or {}, yaml or {}, flags or {}, logging.getLogger("test"))


@pytest.mark.parametrize("default", [A, [A]])
def test_one_server_is_the_merged_one(default: Any) -> None:
    assert resolve(default, MERGED, flags={"openai.base_url": "x"}) == [APIServerConfig(**MERGED)]


def test_a_baseline_that_nobody_changed_stays() -> None:
    baseline = ServerBaseline(model_name="m")
    assert resolve(baseline) is baseline


@pytest.mark.parametrize("default", [A, [A]])
def test_one_server_that_nobody_changed_stays(default: Any) -> None:
    assert resolve(default) == default


def test_several_servers_in_yaml_win_over_the_default() -> None:
    yaml = {"openai": [{"base_url": "http://x"}, {"base_url": "http://y"}]}
    assert [one.base_url for one in resolve([A], MERGED, yaml)] == ["http://x", "http://y"]


def test_several_default_servers_are_used_as_they_are() -> None:
    assert resolve([A, B]) == [A, B]


@pytest.mark.parametrize(
    ("default", "yaml"),
    [([A, B], {}), ([A], {"openai": [{"base_url": "http://x"}, {"base_url": "http://y"}]})],
)
def test_an_option_beside_several_servers_is_refused(default: Any, yaml: Any) -> None:
    with pytest.raises(ConfigError, match=r"--openai\.model_name.*2 servers") as caught:
        resolve(default, yaml=yaml, flags={"openai.model_name": "m"})
    assert caught.value.exit_code == 2


def test_other_namespaces_options_do_not_matter() -> None:
    assert resolve([A, B], flags={"env.group_size": 2, "teacher.base_url": "x"}) == [A, B]


def test_invalid_settings_are_named_without_their_value() -> None:
    with pytest.raises(ConfigError, match=r"openai\.api_keys") as caught:
        resolve(A, {"base_url": "http://a", "api_keys": "sk-secret"})
    assert "sk-secret" not in str(caught.value)
