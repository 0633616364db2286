"""Finds the contents of messages in what a chat template wrote of them."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Messages = Sequence[Mapping[str, Any]]
Span = tuple[int, int]

_TAG = re.compile(r"<[^<>\s]{1,60}>|\[/?[A-Z_]{1,60}\]")


@dataclass(frozen=True, slots=True)
class Content:
    """A content that is not blank.

    Attributes:
        message: Index of its message.
        part: Index in the message's list of parts; None where the content is one text.
        text: What it says.
        middle: The place in it where one more word changes the least of what it means to a template.
    """

    message: int
    part: int | None
    text: str
    middle: int

    def is_whole(self, found: str) -> bool:
        """Whether some of this content is all of it, but for white space around it."""
        return len(found.strip()) == len(self.text.strip())


def contents_of(messages: Messages) -> list[Content]:
    """The contents of messages in their order: texts, and the parts of lists that have ``text``."""
    return [
        Content(index, part, text, _middle(text))
        for index, message in enumerate(messages)
        for part, text in _texts(message.get("content"))
        if isinstance(text, str) and text.strip()
    ]


def _texts(content: Any) -> Iterator[tuple[int | None, Any]]:
    if isinstance(content, str):
        yield None, content
    elif isinstance(content, Sequence):
        for index, part in enumerate(content):
            if isinstance(part, Mapping):
                yield index, part.get("text")


def _middle(text: str) -> int:
    """A place inside a word, the last outside of what looks like a tag; else the end of the text."""
    shown = _TAG.sub(lambda tag: " " * len(tag.group()), text)
    places = range(len(shown) - 1, 0, -1)
    within_words = (at for at in places if shown[at].isalnum() and shown[at - 1].isalnum())
    return next(within_words, len(text.rstrip()))


def find_contents(
    messages: Messages, contents: Sequence[Content], write: Callable[[Messages], str]
) -> tuple[str, list[Span | None]]:
    """The rendered text, and the span of characters in which as much of each content stands as there is.

    A word that stands nowhere else is put into the middle of each content, so that the template still sees
    how the contents begin and end, and the conversation is rendered a second time. Where that makes the
    template write something else, contents that stand in the text once are found by searching.

    Args:
        messages: The conversation.
        contents: :func:`contents_of` it.
        write: Renders a conversation.
    """
    text = write(messages)
    stem = "qzx"
    while stem in text:
        stem += "qzx"
    signs = [f"{stem}{index}k" for index in range(len(contents))]
    split = re.split(f"({stem}[0-9]+k)", write(_with_signs(messages, contents, signs)))
    if "".join(split[::2]) != text:
        return text, _searched(text, contents)
    places = _places(split)
    found = [places.get(sign, []) for sign in signs]
    return text, [
        _around(text, content, at[0]) if len(at) == 1 else None
        for content, at in zip(contents, found, strict=True)
    ]


def _with_signs(messages: Messages, contents: Sequence[Content], signs: list[str]) -> Messages:
    marked = [dict(message) for message in messages]
    for content, sign in zip(contents, signs, strict=True):
        text = content.text[: content.middle] + sign + content.text[content.middle :]
        message = marked[content.message]
        if content.part is None:
            message["content"] = text
        else:
            parts = list(message["content"])
            parts[content.part] = {**parts[content.part], "text": text}
            message["content"] = parts
    return marked


def _places(split: list[str]) -> dict[str, list[int]]:
    """Where each sign stands, counted without the signs, in texts and signs by turns."""
    places: dict[str, list[int]] = {}
    at = 0
    for before, sign in zip(split[::2], split[1::2], strict=False):
        at += len(before)
        places.setdefault(sign, []).append(at)
    return places


def _around(text: str, content: Content, at: int) -> Span:
    """The span around ``at``, the middle of a content, in which the text is that of the content.

    Where the template left out some white space, what is equal to it is the template's own.
    """
    before, after = content.text[: content.middle], content.text[content.middle :]
    earlier = text[max(at - len(before), 0) : at]
    left, right = _shared(before[::-1], earlier[::-1]), _shared(after, text[at : at + len(after)])
    if left < len(before):
        left = len(before[len(before) - left :].lstrip())
    if right < len(after):
        right = len(after[:right].rstrip())
    return at - left, at + right


def _shared(one: str, other: str) -> int:
    """Length of what both begin with."""
    lengths = range(1, min(len(one), len(other)) + 1)
    return bisect_left(lengths, True, key=lambda length: one[:length] != other[:length])


def _searched(text: str, contents: Sequence[Content]) -> list[Span | None]:
    spans: list[Span | None] = []
    done = 0
    for content in contents:
        wanted = content.text if content.text in text else content.text.strip()
        at = text.find(wanted, done)
        if at < 0 or text.count(wanted) > 1:
            spans.append(None)
        else:
            done = at + len(wanted)
            spans.append((at, done))
    return spans
