"""A row becomes the sequences it holds, or is refused with its reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atroposlib.errors import UsageError
from atroposlib.scoring.chat import Chat, RowError
from atroposlib.scoring.rows import read_row


def listed(row: Any, chat: Chat | None = None) -> tuple[list[list[int]], list[list[int]]]:
    group = read_row(3, row, chat).group
    return [tokens.tolist() for tokens in group.tokens], [mask.tolist() for mask in group.masks]


@pytest.mark.parametrize(
    ("row", "tokens", "masks"),
    [
        ({"tokens": [1, 2], "masks": [-100, 2]}, [[1, 2]], [[-100, 2]]),
        ({"tokens": [1, 2]}, [[1, 2]], [[1, 2]]),
        ({"tokens": [1, 2], "masks": None, "messages": None, "other": object()}, [[1, 2]], [[1, 2]]),
        ({"tokens": [1, 2], "images": [None]}, [[1, 2]], [[1, 2]]),
        ({"tokens": [[1, 2], [3]], "masks": [[-100, 2], [-100]]}, [[1, 2], [3]], [[-100, 2], [-100]]),
        ({"tokens": [[1, 2], [3, 4]], "scores": [0.5, 1]}, [[1, 2], [3, 4]], [[1, 2], [3, 4]]),
    ],
)
def test_rows_of_ids_are_taken_as_they_are(row: Any, tokens: Any, masks: Any) -> None:
    assert listed(row) == (tokens, masks)


def test_what_a_row_carries_is_kept_and_the_rest_is_not() -> None:
    group = read_row(
        3, {"tokens": [[1], [2]], "scores": [0.5, 2], "group_overrides": {"teacher": "a"}, "env_id": 4}, None
    ).group
    assert group.scores == [0.5, 2.0]
    assert group.rest == {"group_id": "row-3", "group_overrides": {"teacher": "a"}}
    assert read_row(3, {"tokens": [1], "group_id": "own"}, None).group.rest == {"group_id": "own"}


def test_rows_of_text_need_a_tokenizer(tokenizer: Any) -> None:
    row = {"prompt": "Q", "completion": "a"}
    with pytest.raises(UsageError, match="row 4 of the input: rows of text need the student's tokenizer"):
        read_row(3, row, None)
    assert listed(row, Chat(tokenizer)) == ([[*b"Qa", 258]], [[-100, *b"a", 258]])


def test_a_chat_stays_with_its_row(tokenizer: Any) -> None:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    assert read_row(0, {"messages": messages}, Chat(tokenizer)).messages == [messages]
    assert read_row(0, {"tokens": [1, 2], "messages": messages}, None).messages == [messages]
    assert read_row(0, {"tokens": [[1], [2]], "messages": [messages] * 2}, None).messages == [messages] * 2


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ([1, 2], "json"),
        (None, "json"),
        ({}, "members"),
        ({"completion": "a"}, "members"),
        ({"prompt": "a"}, "members"),
        ({"prompt": 1, "completion": "a"}, "members"),
        ({"tokens": []}, "members"),
        ({"tokens": "text"}, "members"),
        ({"tokens": ["a"]}, "group"),
        ({"tokens": [1.5]}, "group"),
        ({"tokens": [-1, 2]}, "group"),
        ({"tokens": [2**40]}, "group"),
        ({"tokens": [[]]}, "group"),
        ({"tokens": [1, 2], "masks": [1]}, "group"),
        ({"tokens": [1, 2], "masks": [-100, 1]}, "masks"),
        ({"tokens": [1, 2], "masks": [0, 1]}, "masks"),
        ({"tokens": [1, 2], "images": ["picture"]}, "images"),
        ({"tokens": [[1, 2], [3]], "images": [None, "picture"]}, "images"),
        ({"tokens": [[1, 2]], "scores": [1.0, 2.0]}, "group"),
        ({"tokens": [1, 2], "scores": float("inf")}, "group"),
        ({"tokens": [1, 2], "scores": "high"}, "group"),
        ({"tokens": [1, 2], "group_id": ""}, "group"),
        ({"tokens": [1, 2], "group_overrides": [1]}, "group"),
        ({"tokens": [[1], [2]], "messages": [[]]}, "messages"),
        ({"messages": [{"role": "user", "content": "q"}]}, "no_reply"),
    ],
)
def test_what_is_no_row_is_refused(row: Any, reason: str, tokenizer: Any) -> None:
    with pytest.raises(RowError) as caught:
        read_row(0, row, Chat(tokenizer))
    assert caught.value.reason == reason
    assert caught.value.detail


def test_arrays_of_ids_are_int32() -> None:
    group = read_row(0, {"tokens": [1, 2]}, None).group
    assert group.tokens[0].dtype == group.masks[0].dtype == np.int32
