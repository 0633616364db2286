"""Runs commands: parses their options, builds their settings, and turns every failure into one line.

Commands are subclasses of `pydantic_cli.Cmd`; this runner replaces `pydantic_cli.run_and_exit`, which ends
a time-out with exit code 0 and answers a typing mistake with a traceback.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NoReturn

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from atroposlib.config.command import Cmd
from atroposlib.config.exits import guarded
from atroposlib.config.flags import HELP, parse
from atroposlib.config.merge import build
from atroposlib.config.mistakes import errors_of, raise_all
from atroposlib.config.options import Option, options_of, prefixed
from atroposlib.config.suggest import require_command
from atroposlib.config.usage import command_list, help_text
from atroposlib.config.yaml_file import YamlFile, load_yaml
from atroposlib.errors import EXIT_OK, UsageError

__all__ = ["Cmd", "passed_flags", "prefixed", "run", "run_and_exit", "run_settings"]

CONSEQUENCES = ("usage.missing_value", "config.invalid")
Commands = type[Cmd] | Mapping[str, type[Cmd]]

# The options of the command that runs, for Atropos's get_double_dash_flags, which takes no argument.
running_flags: ContextVar[dict[str, Any] | None] = ContextVar("running_flags", default=None)


def run_and_exit(
    commands: Commands, argv: Sequence[str] | None = None, *, prog: str | None = None
) -> NoReturn:
    """Run a command, or the one of several that `argv` names, and end the process with its exit code."""
    sys.exit(run(commands, argv, prog))


def run(commands: Commands, argv: Sequence[str] | None = None, prog: str | None = None) -> int:
    """Run a command and return its exit code.

    Args:
        commands: A command class, or several by name.
        argv: Arguments without the program's name; those of the process when omitted.
        prog: Name of the program for help texts.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = prog or Path(sys.argv[0]).name
    return guarded(lambda: _run(commands, arguments, name))


def run_settings(settings_cls: type[BaseModel], target: str, argv: Sequence[str], prog: str) -> int:
    """Build settings from `--config FILE` and options, and hand them to a function.

    Args:
        settings_cls: Class of the settings; its docstring is the help text's summary.
        target: The function as `module:function`, imported when the settings are valid. It returns an exit
            code or None.
        argv: Arguments without the command's name.
        prog: Name of the command for help texts.
    """
    return guarded(lambda: _run_settings(settings_cls, target, argv, prog))


def passed_flags(cmd: Cmd) -> dict[str, Any]:
    """The options typed on the command line, by dotted name, with their parsed values.

    Call it before attributes of the command are assigned, since pydantic counts those as set.
    """
    return {name: getattr(cmd, name) for name in type(cmd).model_fields if name in cmd.model_fields_set}


def _run(commands: Commands, argv: list[str], prog: str) -> int | None:
    if not isinstance(commands, Mapping):
        return _run_command(commands, argv, prog)
    if not argv or argv[0] in HELP:
        summaries = {name: _summary(command) for name, command in commands.items()}
        return _show(command_list(prog, summaries), wanted=bool(argv))
    return _run_command(commands[require_command(argv[0], commands)], argv[1:], f"{prog} {argv[0]}")


def _show(text: str, *, wanted: bool) -> int:
    """Print a help text: the answer to a question on stdout, else on stderr as a mistake."""
    stream = sys.stdout if wanted else sys.stderr
    stream.write(text + "\n")
    return EXIT_OK if wanted else UsageError.exit_code


def _summary(command: type[Cmd]) -> str:
    return (command.__doc__ or "").strip().partition("\n")[0]


def _run_command(command: type[Cmd], argv: list[str], prog: str) -> int | None:
    options = options_of(command)
    parsed = parse(argv, options)
    if parsed.help:
        return _show(help_text(prog, command.__doc__, options.values()), wanted=True)
    with _all_mistakes(parsed.mistakes):
        cmd = build(command, defaults=None, yaml=YamlFile(), keys=(), flags=parsed.values)
    token = running_flags.set(passed_flags(cmd))
    try:
        code: int | None = cmd.run()
    finally:
        running_flags.reset(token)
    return code


@contextmanager
def _all_mistakes(typed: Sequence[UsageError]) -> Iterator[None]:
    """Tell the mistakes in the words of the command line together with those in the values."""
    try:
        yield
    except UsageError as error:
        # A mistyped option leaves its value out: what follows from that alone is no second mistake.
        told = [each for each in errors_of(error) if not typed or each.code not in CONSEQUENCES]
        raise_all([*typed, *told], error)
    if typed:
        raise_all(typed)


def settings_options(settings_cls: type[BaseModel]) -> dict[str, Option]:
    """The options of a settings class with `--config FILE` before them."""
    text = "YAML file with the options below as keys; options of the command line win over it."
    field = FieldInfo(annotation=Path, default=None, description=text)
    return {"config": Option("config", ("config",), field, None), **options_of(settings_cls)}


def _run_settings(settings_cls: type[BaseModel], target: str, argv: Sequence[str], prog: str) -> int | None:
    options = settings_options(settings_cls)
    parsed = parse(argv, options)
    if parsed.help:
        return _show(help_text(prog, settings_cls.__doc__, options.values()), wanted=True)
    flags = dict(parsed.values)
    with _all_mistakes(parsed.mistakes):
        yaml = load_yaml(flags.pop("config", None))
        settings = build(settings_cls, defaults=None, yaml=yaml, keys=(), flags=flags)
    code: int | None = load_name(target)(settings)
    return code


def load_name(name: str) -> Any:
    """What `module:name` names, imported now."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)
