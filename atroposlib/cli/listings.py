"""`atropos errors` and `atropos options`: the vocabulary of errors and of settings, printed."""

from __future__ import annotations

from atroposlib.cli.commands import COMMANDS
from atroposlib.errors import CODES, EXIT_OK, UsageError


def errors(argv: list[str]) -> int:
    """Print every error code with its meaning."""
    if argv:
        raise UsageError(
            "errors takes no option", code="usage.unknown_option", where="atropos errors", got=argv[0]
        )
    width = max(map(len, CODES)) + 2
    for code, meaning in sorted(CODES.items()):
        print(code.ljust(width) + meaning)
    return EXIT_OK


def options(argv: list[str]) -> int:
    """Print every option of the named commands, or of all, with type, default and description."""
    from atroposlib.config.runner import load_name, settings_options
    from atroposlib.config.suggest import require_command
    from atroposlib.config.usage import option_lines

    for name in [require_command(name, COMMANDS) for name in argv] or list(COMMANDS):
        print(f"atropos {name}: {COMMANDS[name].summary}\n")
        print("\n".join(option_lines(settings_options(load_name(COMMANDS[name].settings)).values())) + "\n")
    return EXIT_OK
