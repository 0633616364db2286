"""Server settings out of defaults, YAML and options, for the student's namespace and the teacher's."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from atroposlib.config.merge import build
from atroposlib.config.server import APIServerConfig, ServerBaseline
from atroposlib.config.yaml_file import YamlFile
from atroposlib.envs.constants import NAMESPACE_SEP, OPENAI_NAMESPACE
from atroposlib.envs.server_handling.openai_server import resolve_openai_configs
from atroposlib.errors import ConfigError

logger = logging.getLogger(__name__)

ServerConfigs = ServerBaseline | list[APIServerConfig]


def options_in(flags: Mapping[str, Any], namespace: str) -> dict[str, Any]:
    """The options of one namespace, without its name."""
    prefix = namespace + NAMESPACE_SEP
    return {name.removeprefix(prefix): value for name, value in flags.items() if name.startswith(prefix)}


def check_section(namespace: str, yaml: YamlFile, flags: Mapping[str, Any]) -> None:
    """Refuse mistakes in the servers of a namespace, naming the line of the file or the option.

    Raises:
        ConfigError: An unknown key, a wrong value, or a section that is neither a mapping nor a list.
    """
    section = yaml.data.get(namespace)
    if isinstance(section, list):
        for index in range(len(section)):
            build(APIServerConfig, defaults=None, yaml=yaml, keys=(namespace, index), flags={})
        yaml = YamlFile()
    elif section is not None and not isinstance(section, Mapping):
        raise ConfigError(
            "must be one server or a list of servers", where=yaml.where(namespace), got=type(section).__name__
        )
    prefix = namespace + NAMESPACE_SEP
    build(APIServerConfig, defaults=None, yaml=yaml, keys=(namespace,), flags=flags, prefix=prefix)


def merge_layers(
    defaults: ServerBaseline | list[APIServerConfig], section: Any, flags: Mapping[str, Any]
) -> tuple[ServerBaseline | list[APIServerConfig], Any, dict[str, Any]]:
    """Defaults < YAML section < options, where they speak of one server.

    Args:
        defaults: One server's settings or a list of them.
        section: What YAML says: a mapping, a list of mappings, or nothing.
        flags: Options of the namespace, without its name.

    Returns:
        The defaults (a bare ServerBaseline as an APIServerConfig once anything overrides it), the section
        (a list of one unwrapped), and the merged settings; these are empty when there are several servers.
    """
    section = section or {}
    if isinstance(defaults, ServerBaseline) and (flags or section):
        defaults = APIServerConfig(**defaults.model_dump())
    single = defaults[0] if isinstance(defaults, list) and len(defaults) == 1 else defaults
    if isinstance(section, list) and len(section) == 1:
        section = section[0]
    merged: dict[str, Any] = {}
    if isinstance(single, APIServerConfig) and isinstance(section, dict):
        merged = {**single.model_dump(), **section, **flags}
    return defaults, section, merged


def resolve_students(
    defaults: ServerBaseline | list[APIServerConfig], yaml: YamlFile, flags: Mapping[str, Any]
) -> ServerConfigs:
    """Student servers as the command line and YAML say. Raises ConfigError."""
    check_section(OPENAI_NAMESPACE, yaml, flags)
    given = options_in(flags, OPENAI_NAMESPACE)
    defaults, section, merged = merge_layers(defaults, yaml.data.get(OPENAI_NAMESPACE), given)
    return resolve_openai_configs(
        default_server_configs=defaults,
        openai_config_dict=merged,
        yaml_config={**yaml.data, OPENAI_NAMESPACE: section},
        cli_passed_flags=dict(flags),
        logger=logger,
    )
