"""Reads a row of the data set: its text or its conversation, checked, with its place in errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from atroposlib.align.views.templates import check_characters
from atroposlib.errors import AlignError

Row = Mapping[str, Any]
"""``message_log``, ``idx``, ``loss_multiplier``; in chat mode perhaps ``tools`` and ``message_loss_mask``."""


def place(side: str, number: Any) -> str:
    """How errors name a row on one side."""
    return f"{side}, sample idx={number}"


@contextmanager
def placed(where: str) -> Iterator[None]:
    """Let an :class:`AlignError` from within say that it happened here."""
    try:
        yield
    except AlignError as error:
        error.where = f"{where}: {error.where}" if error.where else where
        raise


def text_of(row: Row) -> str:
    """The text of a row in text mode: the content of its first message.

    Raises:
        AlignError: There is none, or one that is no text (``align.content``).
    """
    messages = row["message_log"]
    content = messages[0].get("content") if messages else None
    where = f"sample idx={row['idx']}: message_log[0].content"
    if not isinstance(content, str):
        raise AlignError(
            "a row without a text",
            code="align.content",
            where=where,
            got=type(content).__name__,
            expected="str",
        )
    check_characters(content, where)
    return content


def messages_of(row: Row, *, reasoning_apart: bool) -> list[dict[str, Any]]:
    """The conversation of a row in chat mode, which ends with the answer to supervise.

    Args:
        row: The row.
        reasoning_apart: Whether ``reasoning_content`` may stand in a message.

    Raises:
        AlignError: A conversation that cannot be supervised (``align.content``).
    """
    messages = [dict(message) for message in row["message_log"]]
    if not messages or messages[-1].get("role") != "assistant":
        raise AlignError(
            "the conversation must end with the answer to supervise",
            code="align.content",
            where="message_log",
            got=messages[-1].get("role") if messages else "no message",
            expected="assistant",
        )
    if not isinstance(messages[-1].get("content"), str | None):
        raise AlignError(
            "the last answer must be a text",
            code="align.content",
            where=f"message_log[{len(messages) - 1}].content",
            got=type(messages[-1]["content"]).__name__,
            expected="str",
        )
    for number, message in enumerate(messages):
        if message.get("reasoning_content") and not reasoning_apart:
            raise AlignError(
                "a separate reasoning can only be supervised with native alignment",
                code="align.content",
                where=f"message_log[{number}].reasoning_content",
                fix="set native_thinking_alignment, or write the reasoning into the content",
            )
    return messages


def is_supervised(row: Row, messages: Sequence[Any]) -> bool:
    """Whether ``message_loss_mask`` leaves the last answer in; earlier messages are context in any case.

    Raises:
        AlignError: The mask has not one entry a message (``align.sequence``).
    """
    mask = row.get("message_loss_mask")
    if mask is None:
        return True
    if len(mask) != len(messages):
        raise AlignError(
            "the loss mask must have one entry for each message",
            where="message_loss_mask",
            got=len(mask),
            expected=len(messages),
        )
    return bool(mask[-1])
