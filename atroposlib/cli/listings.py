"""`atropos errors`, `losses`, `metrics` and `options`: the vocabularies of the product, printed."""

from __future__ import annotations

from collections import deque

from atroposlib.cli.commands import COMMANDS, members
from atroposlib.errors import CODES, EXIT_OK, UsageError


def errors(argv: list[str]) -> int:
    """Print every error code with its meaning."""
    _refuse_options("errors", argv)
    width = max(map(len, CODES)) + 2
    for code, meaning in sorted(CODES.items()):
        print(code.ljust(width) + meaning)
    return EXIT_OK


def losses(argv: list[str]) -> int:
    """Print every loss with one line, or of the named ones formula, needs, bias, use and settings."""
    from atroposlib.config.losses.choice import LIBRARY_ONLY, LOSSES
    from atroposlib.config.losses.telling import told
    from atroposlib.config.suggest import require_name

    if argv:
        print("\n\n".join(told(LOSSES[require_name(name, LOSSES, "loss")]) for name in argv))
        return EXIT_OK
    width = max(map(len, (*LOSSES, *LIBRARY_ONLY))) + 2
    for name, settings in LOSSES.items():
        print(name.ljust(width) + (settings.__doc__ or ""))
    print("\nIn atroposlib.losses alone:")
    for name, reason in LIBRARY_ONLY.items():
        print(name.ljust(width) + reason)
    print("\n`atropos losses NAME` tells formula, needs, bias, use and settings of one.")
    return EXIT_OK


def metrics(argv: list[str]) -> int:
    """Print every metric of GET /metrics with its type and labels, then what environments log of teachers."""
    from atroposlib.api.metric_table import METRICS
    from atroposlib.teacher.metric_table import COVERAGE_METRIC, PREFIX, TEACHER_METRICS

    _refuse_options("metrics", argv)
    shown = {
        metric: metric.name + (f"{{{','.join(metric.labels)}}}" if metric.labels else "")
        for metric in METRICS
    }
    width = max(map(len, shown.values())) + 2
    for metric in METRICS:
        print(shown[metric].ljust(width) + metric.kind.ljust(len("histogram") + 2) + metric.help)
    print("\nLogged by environments (wandb, journal):")
    for name, meaning in [
        *((PREFIX + name, told) for name, told in TEACHER_METRICS.items()),
        COVERAGE_METRIC,
    ]:
        print(name.ljust(width) + meaning)
    return EXIT_OK


def _refuse_options(name: str, argv: list[str]) -> None:
    if argv:
        raise UsageError(
            f"{name} takes no option", code="usage.unknown_option", where=f"atropos {name}", got=argv[0]
        )


def options(argv: list[str]) -> int:
    """Print every option of the named commands, or of all, with type, default and description."""
    from atroposlib.config.runner import load_name, settings_options
    from atroposlib.config.usage import option_lines

    for name in _named(argv) or list(COMMANDS):
        print(f"atropos {name}: {COMMANDS[name].summary}\n")
        print("\n".join(option_lines(settings_options(load_name(COMMANDS[name].settings)).values())) + "\n")
    return EXIT_OK


def _named(argv: list[str]) -> list[str]:
    """The commands that these words name, some of them by two, or two and more by the word they share."""
    from atroposlib.config.suggest import require_command

    names: list[str] = []
    words = deque(argv)
    while words:
        word = words.popleft()
        if group := members(word):
            chosen = [words.popleft()] if words and words[0] in group else list(group)
            names += (f"{word} {second}" for second in chosen)
        else:
            names.append(require_command(word, COMMANDS))
    return names
