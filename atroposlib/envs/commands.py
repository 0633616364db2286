"""The command line of an environment: serve, process, evaluate."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from types import GenericAlias
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, cast

import yaml as pyyaml
from pydantic import Field, create_model

from atroposlib.config.env import BaseEnvConfig
from atroposlib.config.merge import build, refuse_unknown_keys
from atroposlib.config.runner import Cmd, passed_flags, prefixed, run_and_exit
from atroposlib.config.server import APIServerConfig, ServerManagerConfig
from atroposlib.config.yaml_file import YamlFile, load_yaml
from atroposlib.envs import managers
from atroposlib.envs.constants import ENV_NAMESPACE, NAMESPACE_SEP, OPENAI_NAMESPACE
from atroposlib.envs.run import run_to_end
from atroposlib.envs.server_options import resolve_students
from atroposlib.errors import UsageError

if TYPE_CHECKING:
    from atroposlib.envs.base import BaseEnv

COMMANDS = {
    "serve": "Roll out items and send scored groups to the trajectory API until the trainer has finished.",
    "process": "Roll out env.total_steps items into a JSON-lines file, without a trainer.",
    "evaluate": "Run the environment's evaluation once.",
}


def run_cli(env_cls: type[BaseEnv]) -> NoReturn:
    """Run the command that the process's arguments name, and exit with its code."""
    run_and_exit(_Commands(env_cls))


class _Commands(Mapping[str, type[Cmd]]):
    """The commands by name; each is made when it is asked for, since making one takes a while."""

    def __init__(self, env_cls: type[BaseEnv]) -> None:
        self._env_cls = env_cls

    def __getitem__(self, name: str) -> type[Cmd]:
        if name not in COMMANDS:
            raise KeyError(name)
        made: type[Cmd] = getattr(self._env_cls, f"get_cli_{name}_config_cls")()
        return made

    def __contains__(self, name: object) -> bool:
        # Mapping's own would make the command to see whether it is there.
        return name in COMMANDS

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _EnvCommand(ServerManagerConfig, Cmd):
    """What the three commands share."""

    env_cls: ClassVar[type[BaseEnv]]
    command: ClassVar[str]

    config: str | None = Field(None, description="YAML file with env, openai, .. sections; options win.")

    def run(self) -> int:  # type: ignore[override]  # our runner takes an exit code
        """Build the environment and run it."""
        flags = passed_flags(self)
        return start(self.env_cls, self.command, load_yaml(flags.pop("config", None)), flags)


def command_class(env_cls: type[BaseEnv], name: str) -> type[Cmd]:
    """The command ``serve``, ``process`` or ``evaluate`` of an environment, with all its options."""
    env_defaults, server_defaults = env_cls.config_init()
    servers = server_defaults if isinstance(server_defaults, list) else [server_defaults]
    one_server = servers[0] if len(servers) == 1 else None
    bases: Any = (
        prefixed(type(env_defaults), ENV_NAMESPACE + NAMESPACE_SEP, env_defaults),
        prefixed(APIServerConfig, OPENAI_NAMESPACE + NAMESPACE_SEP, one_server),
        *(prefixed(APIServerConfig, space + NAMESPACE_SEP) for space in env_cls.server_namespaces()),
        _EnvCommand,
    )
    families: Any = {
        space: (GenericAlias(dict, (str, model)), {}) for space, model in env_cls.server_families().items()
    }
    made = create_model(f"{name.capitalize()}Command", __base__=bases, __doc__=COMMANDS[name], **families)
    command = cast(type[_EnvCommand], made)
    command.env_cls, command.command = env_cls, name
    return command


def start(env_cls: type[BaseEnv], name: str, yaml: YamlFile, flags: dict[str, Any]) -> int:
    """Build an environment from YAML and options and run it; the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    env = build_env(env_cls, name, yaml, flags)
    return run_to_end(RUN[name](env))


def build_env(env_cls: type[BaseEnv], name: str, yaml: YamlFile, flags: dict[str, Any]) -> BaseEnv:
    """The environment of a command; defaults of ``config_init`` < YAML < options.

    Raises:
        ConfigError: A mistake in YAML or options, each named with its place.
        UsageError: A tokenizer or file that is not there.
    """
    servers = ServerManagerConfig.model_fields.keys()
    spaces = (*env_cls.server_namespaces(), *env_cls.server_families())
    known = {ENV_NAMESPACE, OPENAI_NAMESPACE, *spaces, *servers}
    refuse_unknown_keys(yaml, known)
    env_defaults, server_defaults = env_cls.config_init()
    config = build(
        type(env_defaults),
        defaults=_defaults_of(name, env_defaults, env_cls.name),
        yaml=yaml,
        keys=(ENV_NAMESPACE,),
        flags=flags,
        prefix=ENV_NAMESPACE + NAMESPACE_SEP,
    )
    manager = build(
        ServerManagerConfig,
        defaults=None,
        yaml=YamlFile(yaml.path, {key: yaml.data[key] for key in servers if key in yaml.data}, yaml.root),
        keys=(),
        flags={key: flags[key] for key in servers if key in flags},
    )
    students = resolve_students(server_defaults, yaml, flags)
    env = env_cls.from_options(config, students, yaml, flags, slurm=manager.slurm, testing=manager.testing)
    if name == "process":
        env.process_mode = True
        env.n_groups_to_process = config.total_steps
        env.group_size_to_process = config.group_size
    return env


def _defaults_of(name: str, defaults: BaseEnvConfig, env_name: str | None) -> BaseEnvConfig:
    """Defaults of a command: process keeps every group, and only serve logs to wandb unless told to."""
    if name == "serve":
        return defaults
    changed: dict[str, Any] = {"use_wandb": False}
    if name == "process":
        changed |= {"ensure_scores_are_not_same": False, "include_messages": True}
        if defaults.data_path_to_save_groups is None:
            changed["data_path_to_save_groups"] = f"data/{env_name or 'groups'}.jsonl"
    return defaults.model_copy(update=changed)


async def _serve(env: BaseEnv) -> None:
    await env.env_manager()


async def _process(env: BaseEnv) -> None:
    if env.n_groups_to_process <= 0:
        raise UsageError("process needs a number of groups", where="env.total_steps", expected="at least 1")
    await env.process_manager()


async def _evaluate(env: BaseEnv) -> None:
    if env.config.data_dir_to_save_evals is not None:
        write_resolved(Path(env.config.data_dir_to_save_evals) / "evaluate_config.yaml", env)
    await managers.evaluate(env)


def write_resolved(path: Path, env: BaseEnv) -> None:
    """Write the settings that an evaluation ran with; keys of servers are left out."""
    servers = [server.config.model_dump(mode="json", exclude={"api_key"}) for server in env.server.servers]
    resolved = {ENV_NAMESPACE: env.config.model_dump(mode="json"), OPENAI_NAMESPACE: servers}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(pyyaml.safe_dump(resolved, sort_keys=False), encoding="utf-8")


RUN: dict[str, Callable[[BaseEnv], Coroutine[Any, Any, None]]] = {
    "serve": _serve,
    "process": _process,
    "evaluate": _evaluate,
}
