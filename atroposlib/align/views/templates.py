"""What a chat template writes: the text of a conversation, and what it puts between the contents."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from atroposlib.align.tables.roles import THINKING
from atroposlib.align.tables.table import Vocabulary
from atroposlib.align.views.contents import Messages
from atroposlib.errors import AlignError

BEGIN, END = "begin", "end"

PROBES: tuple[tuple[str, ...], ...] = (
    ("system", "user", "assistant", "user", "assistant"),
    ("user", "assistant", "user", "assistant"),
    ("system", "user", "user", "assistant"),
    ("user", "assistant", "tool", "assistant", "user"),
    ("user", "assistant", "tool", "tool", "assistant", "tool"),
    ("system", "user"),
    ("user",),
    ("system",),
)
"""Conversations that a template is asked to write; those that it refuses teach nothing."""

_WORD = "qzxword"


@dataclass(frozen=True, slots=True)
class Frame:
    """What a template writes between the contents of two turns, of which either may be missing.

    Attributes:
        before: Who spoke; ``BEGIN`` at the begin.
        after: Who speaks next; ``END`` at the end.
        text: What stands between.
    """

    before: str
    after: str
    text: str


def write(tokenizer: Any, messages: Messages, template: str | None, side: str, **arguments: Any) -> str:
    """The text that a chat template makes of messages.

    Args:
        tokenizer: What has ``apply_chat_template``.
        messages: The conversation.
        template: A template's text; the tokenizer's own when None.
        side: Whose text this is, for errors.
        arguments: What ``apply_chat_template`` is given besides.

    Raises:
        AlignError: There is no template, or it refuses the messages (``align.template``); the text is none
            that can be written as bytes (``align.content``).
    """
    from jinja2 import TemplateError

    if template is None and not getattr(tokenizer, "chat_template", None):
        raise AlignError(
            "the tokenizer has no chat template",
            code="align.template",
            where=side or None,
            fix="name a template, or take the conversation as plain text",
        )
    chosen = {} if template is None else {"chat_template": template}
    try:
        text: str = tokenizer.apply_chat_template(
            [dict(message) for message in messages], tokenize=False, **chosen, **arguments
        )
    except (TemplateError, TypeError, ValueError) as error:
        # What a template raises for messages it was not written for.
        raise AlignError(
            f"the chat template refuses the messages: {error}", code="align.template", where=side or None
        ) from error
    check_characters(text, side)
    return text


def check_characters(text: str, side: str) -> None:
    """Refuse half of a surrogate pair, which JSON can hold but no text in bytes.

    Raises:
        AlignError: There is one (``align.content``).
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise AlignError(
            "what is said holds half of a surrogate pair, which is no character",
            code="align.content",
            where=side or None,
            got=repr(text[error.start : error.end]),
            fix="take it out",
        ) from error


def frames_of(tokenizer: Any) -> set[Frame]:
    """What a tokenizer's chat template writes between the roles; nothing without a template."""
    if not getattr(tokenizer, "chat_template", None):
        return set()
    frames: set[Frame] = set()
    for roles in PROBES:
        messages = [
            {"role": role, "content": f"{_WORD}{index}k"} | ({"name": "f"} if role == "tool" else {})
            for index, role in enumerate(roles)
        ]
        for prompted in (False, True):
            try:
                text = write(tokenizer, messages, None, "", tools=None, add_generation_prompt=prompted)
            except AlignError:
                break
            frames |= set(_between(text, roles, prompted=prompted))
    return frames


def _between(text: str, roles: Sequence[str], *, prompted: bool) -> Iterator[Frame]:
    split = re.split(f"{_WORD}([0-9]+)k", text)
    if split[1::2] != [str(index) for index in range(len(roles))]:
        # The template leaves out, repeats or moves contents.
        return
    named = [BEGIN, *roles, "assistant" if prompted else END]
    between = split[::2]
    if prompted:
        # Of a longer conversation only the last is new, and it is the begin of an answer.
        if roles[-1] != "assistant" and between[-1]:
            yield Frame(roles[-1], "assistant", between[-1])
        return
    for before, after, text_between in zip(named[:-1], named[1:], between, strict=True):
        if text_between:
            yield Frame(before, after, text_between)


def names_pattern(names: Iterable[str]) -> re.Pattern[str]:
    """Splits a text at these names, of which it takes the longest that stands somewhere."""
    longest_first = sorted(names, key=len, reverse=True)
    # Without names the pattern would match everywhere.
    return re.compile(f"({'|'.join(map(re.escape, longest_first))})" if longest_first else "((?!))")


def written_tokens(tokenizer: Any, frames: Iterable[Frame]) -> dict[int, str]:
    """The added tokens, special or not, that a template writes between contents, by id.

    Blanks are none of them: Gemma's runs of line breaks are text.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    added = {} if backend is None else backend.get_added_tokens_decoder()
    text = "\0".join(frame.text for frame in frames)
    names = {
        token.content: number
        for number, token in added.items()
        if token.content in text and token.content.strip("\u2581 \t\r\n")
    }
    return {names[name]: name for name in names_pattern(names).split(text)[1::2]}


def with_turn_markers(tokenizer: Any, vocabulary: Vocabulary, frames: Iterable[Frame]) -> Vocabulary:
    """The byte table in which what marks turns is special, as DeepSeek's ``<｜User｜>`` is not by its files.

    Else a content in which such a name stands would be read as a turn. Thinking and tool markers, which
    answers hold, stay text.

    Args:
        tokenizer: Whose byte table it is.
        vocabulary: The table.
        frames: Of its chat template.
    """
    talk = {BEGIN, "system", "user", "assistant", END}
    names = written_tokens(tokenizer, (one for one in frames if {one.before, one.after} <= talk))
    thinking = {name for pair in THINKING for name in pair}
    return vocabulary.with_markers({number: name for number, name in names.items() if name not in thinking})
