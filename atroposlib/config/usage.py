"""Help texts: the options of a command with type, default and description, grouped by namespace."""

from __future__ import annotations

import inspect
import json
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from atroposlib.config.options import Option

MAX_WIDTH = 120
LABEL_WIDTH = 38
LONGEST_DEFAULT = 60


def help_text(prog: str, summary: str | None, options: Iterable[Option]) -> str:
    """The answer to `--help`."""
    lines = [f"usage: {prog} [--option VALUE ...]", ""]
    if summary:
        lines += [*_wrapped(inspect.cleandoc(summary).partition("\n\n")[0], ""), ""]
    lines += option_lines(options)
    lines += [
        "",
        *_wrapped("  -h, --help shows this text. Options may be spelled with - in place of _.", "  "),
    ]
    return "\n".join(lines)


def command_list(prog: str, commands: Mapping[str, str]) -> str:
    """The answer to `--help` of a program with several commands, given one line about each."""
    width = max(len(name) for name in commands) + 4
    lines = [f"usage: {prog} COMMAND [--option VALUE ...]", "", "commands:"]
    for name, summary in commands.items():
        lines += _wrapped(f"  {name}".ljust(width) + summary, " " * width)
    lines += ["", f"`{prog} COMMAND --help` lists the options of a command."]
    return "\n".join(lines)


def option_lines(options: Iterable[Option]) -> list[str]:
    """One entry an option, under a heading for each namespace."""
    groups: dict[str, list[Option]] = {}
    for option in options:
        groups.setdefault(option.group, []).append(option)
    lines: list[str] = []
    for group, members in groups.items():
        lines += ["", f"{group or 'options'}:"] if lines else [f"{group or 'options'}:"]
        for option in members:
            lines += _entry(option)
    return lines


def _entry(option: Option) -> Iterator[str]:
    label = f"  --{option.name} {option.kind}"
    text = " ".join(part for part in (option.field.description, _default(option)) if part)
    indent = " " * LABEL_WIDTH
    if len(label) + 2 > LABEL_WIDTH:
        yield from _wrapped(label, "      ")
        yield from _wrapped(indent + text, indent)
    else:
        yield from _wrapped(label.ljust(LABEL_WIDTH) + text, indent)


def _default(option: Option) -> str:
    if option.secret:
        return ""
    if option.default is PydanticUndefined:
        return "(required)"
    return f"(default: {textwrap.shorten(plain(option.default), LONGEST_DEFAULT, placeholder=' ...')})"


def plain(value: Any) -> str:
    """A value as the user would write it."""
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, str):
        return value or '""'
    return json.dumps(value, default=_as_written)


def _as_written(value: object) -> object:
    return value.model_dump(mode="json", exclude_unset=True) if isinstance(value, BaseModel) else str(value)


def _wrapped(text: str, indent: str) -> list[str]:
    width = min(shutil.get_terminal_size().columns, MAX_WIDTH)
    return textwrap.wrap(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    ) or [""]
