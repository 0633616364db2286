"""The `atropos` command."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version

from atroposlib.cli.commands import COMMANDS, LISTINGS, members
from atroposlib.config.exits import guarded
from atroposlib.config.suggest import require_command
from atroposlib.errors import EXIT_OK, EXIT_USAGE

PROG = "atropos"
HELP = ("-h", "--help", "help")
_LISTING_WORDS = {"options": " [COMMAND ...]", "losses": " [NAME ...]"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run `atropos` with the arguments of the process, or with `argv`; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    return guarded(lambda: _main(arguments))


def _main(argv: list[str]) -> int:
    if not argv:
        print(_overview(), file=sys.stderr)
        return EXIT_USAGE
    name, *rest = argv
    if name in HELP:
        print(_overview())
        return EXIT_OK
    if name == "--version":
        print(f"{PROG} {version('atroposlib')}")
        return EXIT_OK
    if group := members(name):
        return _run_member(name, group, rest)
    if require_command(name, [*COMMANDS, *LISTINGS]) in COMMANDS:
        return _run_settings(name, rest)
    return _run_listing(name, rest)


def _run_member(first: str, group: dict[str, str], argv: list[str]) -> int:
    from atroposlib.config.usage import command_list

    if not argv or argv[0] in HELP:
        print(command_list(f"{PROG} {first}", group), file=sys.stdout if argv else sys.stderr)
        return EXIT_OK if argv else EXIT_USAGE
    return _run_settings(f"{first} {require_command(argv[0], group)}", argv[1:])


def _overview() -> str:
    from atroposlib.config.usage import command_list

    summaries = {name: command.summary for name, command in COMMANDS.items()}
    return command_list(PROG, {**summaries, **LISTINGS})


def _run_settings(name: str, argv: list[str]) -> int:
    from atroposlib.config.runner import load_name, run, run_settings

    command, prog = COMMANDS[name], f"{PROG} {name}"
    if command.target is None:
        return run(load_name(command.settings), argv, prog)
    return run_settings(load_name(command.settings), command.target, argv, prog)


def _run_listing(name: str, argv: list[str]) -> int:
    from atroposlib.cli import listings

    if any(word in HELP for word in argv):
        print(f"usage: {PROG} {name}{_LISTING_WORDS.get(name, '')}\n\n{LISTINGS[name]}")
        return EXIT_OK
    listing: Callable[[list[str]], int] = getattr(listings, name)
    return listing(argv)


if __name__ == "__main__":
    sys.exit(main())
