"""Resolves the student servers from defaults, YAML and command line, under Atropos's name for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from logging import Logger
from typing import Any

from pydantic import ValidationError

from atroposlib.config.server import APIServerConfig, ServerBaseline
from atroposlib.envs.constants import NAMESPACE_SEP, OPENAI_NAMESPACE
from atroposlib.errors import ConfigError

__all__ = ["APIServerConfig", "resolve_openai_configs"]


def resolve_openai_configs(
    default_server_configs: ServerBaseline | Sequence[APIServerConfig],
    openai_config_dict: Mapping[str, Any],
    yaml_config: Mapping[str, Any],
    cli_passed_flags: Mapping[str, Any],
    logger: Logger,
) -> ServerBaseline | list[APIServerConfig]:
    """The servers that the user means.

    Args:
        default_server_configs: The environment's own.
        openai_config_dict: One server's settings, already merged; used where there is one server.
        yaml_config: The YAML file; its ``openai`` may be one server or a list.
        cli_passed_flags: Options given on the command line, dotted names.
        logger: Told which source the servers came from.

    Returns:
        A list of servers, or the default ServerBaseline where nobody named a server.

    Raises:
        ConfigError: ``--openai.*`` beside two or more servers, or settings that are not valid.
    """
    from_yaml = yaml_config.get(OPENAI_NAMESPACE)
    prefix = f"{OPENAI_NAMESPACE}{NAMESPACE_SEP}"
    flags = [name for name in cli_passed_flags if name.startswith(prefix)]
    several: Sequence[Any] = []
    for source in (from_yaml, default_server_configs):
        if not several and isinstance(source, Sequence) and len(source) >= 2:
            several = source
    if several and flags:
        raise ConfigError(
            "an option for one server cannot be applied to several",
            where=f"--{flags[0]}",
            got=f"{len(several)} servers",
            fix=f"set it in the YAML list under {OPENAI_NAMESPACE}",
        )
    if several:
        logger.info(
            "using the %d servers of the %s",
            len(several),
            "YAML file" if several is from_yaml else "environment",
        )
        return [_config(one) for one in several]
    if not openai_config_dict:
        if isinstance(default_server_configs, ServerBaseline):
            return default_server_configs
        return list(default_server_configs)
    logger.debug("using one server, merged from the environment, the YAML file and the command line")
    return [_config(openai_config_dict)]


def _config(settings: APIServerConfig | Mapping[str, Any]) -> APIServerConfig:
    if isinstance(settings, APIServerConfig):
        return settings
    try:
        return APIServerConfig(**settings)
    except ValidationError as failure:
        first = failure.errors()[0]
        name = ".".join(map(str, first["loc"]))
        # The value is not told: it may be the key.
        raise ConfigError(
            f"the settings of a server are not valid: {first['msg']}", where=f"{OPENAI_NAMESPACE}.{name}"
        ) from None
