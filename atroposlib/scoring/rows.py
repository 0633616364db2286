"""One row of the input as the sequences of a group, or the reason why it is none.

Axes: G sequences of a row, T tokens of a sequence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from atroposlib.envs.teacher_reading import has_images
from atroposlib.errors import UsageError, WireError
from atroposlib.scoring.chat import Chat, Encoded, Reason, RowError
from atroposlib.types import IGNORED, Group, ScoredDataGroup
from atroposlib.wire.arrays import to_arrays
from atroposlib.wire.checks import check_group

CARRIED = ("group_id", "overrides", "group_overrides")
MEMBERS = ("tokens", "masks", "scores", "prompt", "completion", "messages", "tools", *CARRIED)
"""What is read of a row; everything else in it is left alone."""

Messages = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Row:
    """A row that can be scored.

    Attributes:
        number: From 0.
        group: Its G sequences without targets; masks are ``IGNORED`` or the token.
        messages: The chat of each sequence; empty where the row tells none.
        untold: Replies of the chat that are not trained since where they stand cannot be told, by reason.
    """

    number: int
    group: Group
    messages: list[Messages]
    untold: Counter[Reason]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A row that cannot be.

    Attributes:
        number: From 0; in a file of lines it is line ``number + 1``.
        reason: Key of :data:`atroposlib.scoring.chat.REASONS`.
        detail: What exactly is wrong, for people.
    """

    number: int
    reason: Reason
    detail: str


def read_row(number: int, row: object, chat: Chat | None) -> Row:
    """The sequences of a row.

    Args:
        number: Of the row, from 0.
        row: Its members.
        chat: Makes tokens of text.

    Raises:
        RowError: It cannot be scored.
        UsageError: The row is text, and there is no tokenizer.
    """
    if not isinstance(row, Mapping):
        raise RowError("json", f"a {type(row).__name__} in place of an object")
    if has_images(row.get("images")):
        raise RowError("images")
    # A Parquet file of several kinds of rows has null where a row lacks a column.
    members = {name: row[name] for name in MEMBERS if row.get(name) is not None}
    untold: Counter[Reason] = Counter()
    if "tokens" in members:
        listed, messages = _listed(members)
    elif "messages" in members or "prompt" in members:
        encoded = _encoded(number, members, chat)
        listed, messages = {"tokens": [encoded.tokens], "masks": [encoded.masks]}, []
        listed["scores"] = [members.get("scores", 0.0)]
        if "messages" in members:
            messages = [members["messages"]]
        untold = encoded.untold
    else:
        raise RowError("members", f"it has {', '.join(map(str, row)) or 'none'}"[:200])
    carried = {name: members[name] for name in CARRIED if name in members}
    try:
        group = to_arrays(
            cast(ScoredDataGroup, {"group_id": f"row-{number}", **listed, **carried}), strict=True
        )
        check_group(group)
    except WireError as error:
        raise RowError("group", str(error)) from error
    _check_masks(group)
    return Row(number, group, messages, untold)


def _listed(members: Mapping[str, Any]) -> tuple[dict[str, Any], list[Messages]]:
    """A row of token ids as the lists of a group; one without masks is trained as a whole."""
    tokens, messages = members["tokens"], members.get("messages", [])
    if not isinstance(tokens, list) or not tokens:
        raise RowError("members", "tokens is no list of ids, or empty")
    if isinstance(tokens[0], list):
        scores = members.get("scores", [0.0] * len(tokens))
        masks = members.get("masks", tokens)
    else:
        scores, masks = [members.get("scores", 0.0)], [members.get("masks", tokens)]
        tokens, messages = [tokens], [messages] if messages else []
    if messages and not (isinstance(messages, list) and len(messages) == len(tokens)):
        raise RowError("messages", "messages is no list of one chat for each sequence")
    return {"tokens": tokens, "masks": masks, "scores": scores}, messages


def _encoded(number: int, members: Mapping[str, Any], chat: Chat | None) -> Encoded:
    if chat is None:
        raise UsageError(
            "rows of text need the student's tokenizer",
            code="usage.missing_value",
            where=f"row {number + 1} of the input",
            fix="give --tokenizer_name",
        )
    if "messages" in members:
        return chat.of_messages(members["messages"], members.get("tools"))
    return chat.of_completion(members["prompt"], members.get("completion"))


def _check_masks(group: Group) -> None:
    for index, (tokens, mask) in enumerate(zip(group.tokens, group.masks, strict=True)):
        wrong = np.flatnonzero((mask != IGNORED) & (mask != tokens))
        if len(wrong):
            # Anything but -100 would be trained, so a mask of 0 and 1 would train the prompt.
            at = int(wrong[0])
            got = f"masks[{index}][{at}] is {mask[at]}, the token {tokens[at]}"
            raise RowError("masks", f"{got}; a mask is {IGNORED} or the token")
