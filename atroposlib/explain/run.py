"""Entry point of ``atropos explain``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console

from atroposlib.config.explain import ExplainSettings
from atroposlib.envs.teacher_loading import read_as_written
from atroposlib.envs.telling import first_line
from atroposlib.envs.tokenizer import load_tokenizer
from atroposlib.errors import ConfigError, UsageError
from atroposlib.explain import sample
from atroposlib.explain.comparison import Comparison, compare_messages, compare_text
from atroposlib.explain.lines import legend, lines
from atroposlib.explain.summary import as_json, summary

PLAIN_WIDTH = 120
"""Columns where the output is no terminal."""


def run(settings: ExplainSettings) -> None:
    """Load both tokenizers, compare and print.

    Raises:
        UsageError: A file cannot be read, or a tokenizer cannot be loaded.
        ConfigError: A tokenizer that a byte table cannot represent (``align.unsupported``).
        AlignError: A conversation that a chat template cannot write as it is.
    """
    found = _compared(settings)
    names = settings.student, settings.teacher
    if settings.json:
        sys.stdout.write(as_json(found, names) + "\n")
    else:
        _print(found, names)


def _compared(settings: ExplainSettings) -> Comparison:
    if settings.messages is not None:
        messages, tools = _conversation(settings.messages)
        return compare_messages(*_tokenizers(settings), messages, tools)
    text = _text(settings.text)
    return compare_text(*_tokenizers(settings), text)


def _print(found: Comparison, names: tuple[str, str]) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    for line in lines(found.shown, console.width):
        console.print(line, soft_wrap=True)
    if console.is_terminal:
        console.print(legend())
    for told in summary(found, names):
        console.print(told, markup=False, soft_wrap=True)


def _tokenizers(settings: ExplainSettings) -> tuple[Any, Any]:
    student = load_tokenizer(settings.student, "--student", read_as_written)
    return student, load_tokenizer(settings.teacher, "--teacher", read_as_written)


def _text(file: Path | None) -> str:
    if file is not None:
        return _decoded(str(file), file.expanduser().read_bytes)
    piped = "" if sys.stdin.isatty() else _decoded("what is piped in", sys.stdin.buffer.read)
    return piped or sample.TEXT


def _decoded(where: str, read: Callable[[], bytes]) -> str:
    try:
        return read().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            "the file cannot be read",
            code="usage.file",
            where=where,
            got=first_line(error),
        ) from error


def _conversation(file: Path) -> tuple[list[dict[str, Any]], list[Any] | None]:
    """The messages of a file, and the tools that stand beside them."""
    try:
        content = orjson.loads(_decoded(str(file), file.expanduser().read_bytes))
    except orjson.JSONDecodeError as error:
        raise ConfigError("not JSON", code="usage.file", where=str(file), got=str(error)) from error
    tools = content.get("tools") if isinstance(content, dict) else None
    messages = content.get("messages") if isinstance(content, dict) else content
    if not isinstance(messages, list) or not _hold_an_answer(messages):
        raise ConfigError(
            "no conversation with an answer",
            code="usage.file",
            where=str(file),
            expected='messages, one of them the assistant\'s: a list, or {"messages": [...], "tools": [...]}',
        )
    return messages, tools


def _hold_an_answer(messages: list[Any]) -> bool:
    return all(isinstance(one, dict) for one in messages) and any(
        one.get("role") == "assistant" for one in messages
    )
