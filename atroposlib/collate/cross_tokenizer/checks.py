"""Refuses at construction what a collator could only get wrong later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atroposlib.align.sameness import compare
from atroposlib.align.tables.table import Vocabulary
from atroposlib.collate.cross_tokenizer.config import CrossTokenizerCollatorConfig
from atroposlib.errors import ConfigError


def check_flags(
    config: CrossTokenizerCollatorConfig, *, ce_covers_assistant_turn: bool, add_special_tokens_in_text: bool
) -> None:
    """Refuse flags that the mode has no use for.

    Raises:
        ConfigError: There is one.
    """
    if ce_covers_assistant_turn and (config.mode != "chat" or config.native_thinking_alignment):
        raise ConfigError(
            "only chat without native alignment can supervise the whole last turn",
            where="ce_covers_assistant_turn",
            got=f"mode={config.mode}, native_thinking_alignment={config.native_thinking_alignment}",
            expected="mode=chat, native_thinking_alignment=False",
        )
    if add_special_tokens_in_text and config.mode != "text":
        raise ConfigError(
            "chat templates bring their own special tokens",
            where="add_special_tokens_in_text",
            got=f"mode={config.mode}",
            expected="mode=text",
        )


def check_lengths(count: int, **lists: Sequence[Any]) -> None:
    """Refuse lists that have not one entry for each of ``count`` teachers.

    Raises:
        ConfigError: There is one.
    """
    for name, values in lists.items():
        if len(values) != count:
            raise ConfigError(
                "the list must have one entry for each aligner", where=name, got=len(values), expected=count
            )


def check_positive(**lists: Sequence[int]) -> None:
    """Refuse lengths and divisors below 1.

    Raises:
        ConfigError: There is one.
    """
    for name, values in lists.items():
        if any(value < 1 for value in values):
            raise ConfigError(
                "lengths and divisors must be positive", where=name, got=list(values), expected=">= 1"
            )


def check_same(tokenizer: Vocabulary, other: Vocabulary, where: str) -> None:
    """Refuse two byte tables that do not say the same.

    Raises:
        ConfigError: They do not.
    """
    match = compare(tokenizer, other)
    if not match.same:
        raise ConfigError(
            "this must be the same tokenizer",
            where=where,
            got=match.reason,
            fix="make aligners from the collator's own tokenizers; None is for the student's own",
        )
