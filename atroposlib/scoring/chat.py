"""Rows of text as token ids and masks: where a reply stands is told by the text, or it is not trained."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal

from atroposlib.types import IGNORED

TRAINED_ROLE = "assistant"

Reason = Literal[
    "json",
    "line_length",
    "members",
    "masks",
    "group",
    "overrides",
    "messages",
    "images",
    "template",
    "turns",
    "boundary",
    "no_reply",
]

REASONS: dict[Reason, str] = {
    "json": "The line is no JSON object.",
    "line_length": "The line is longer than 64 MiB.",
    "members": "The row has neither tokens, nor prompt and completion, nor messages, or one of another type.",
    "masks": "A mask is neither -100 nor the token that it stands at.",
    "group": "Tokens, masks or scores break the contract of a group (docs/wire.md).",
    "overrides": "Overrides name a teacher that does not exist, or are of another type.",
    "messages": "The messages are no list of objects with a role and a text.",
    "images": "The row has images, and tokens alone do not say what they show.",
    "template": "The chat template fails on the messages, or on the first of them.",
    "turns": "The template shows the first messages otherwise than within all of them (some drop earlier "
    "reasoning), so where a reply stands cannot be told.",
    "boundary": "One token holds the begin or the end of a reply and text beside it.",
    "no_reply": "No message is the assistant's.",
}
"""Why a row is refused, or a reply in it not trained."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A text as tokens.

    Attributes:
        tokens: T ids.
        masks: T values, ``IGNORED`` where the token is not trained, else the token.
        untold: Replies that are not trained since where they stand cannot be told, by reason.
    """

    tokens: list[int]
    masks: list[int]
    untold: Counter[Reason]


class RowError(Exception):
    """A row that cannot be scored."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail or REASONS[reason]


@dataclass(frozen=True, slots=True)
class _Span:
    """Characters ``start`` .. ``end - 1`` of a text."""

    start: int
    end: int


class Chat:
    """Makes tokens of text with the student's tokenizer.

    Args:
        tokenizer: A fast Hugging Face tokenizer: it tells the characters of each token.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = _telling_spaces(tokenizer)
        added = tokenizer.added_tokens_decoder.items()
        self._special = {number for number, token in added if token.special} | set(tokenizer.all_special_ids)

    def of_completion(self, prompt: object, completion: object) -> Encoded:
        """A prompt and what follows it; the tokenizer's end token is added where the text has none.

        Raises:
            RowError: The two are no texts, or one token holds the end of one and the begin of the other.
        """
        if not isinstance(prompt, str) or not isinstance(completion, str):
            raise RowError("members", "prompt and completion are no two texts")
        reply = _Span(len(prompt), len(prompt) + len(completion))
        encoded = self._encode(prompt + completion, [reply], add_special_tokens=True)
        end = self._tokenizer.eos_token_id
        if end is not None and encoded.tokens[-1:] != [end]:
            encoded.tokens.append(end)
            encoded.masks.append(end)
        elif end is not None and completion:
            # It is the completion's own, or the tokenizer's behind it.
            encoded.masks[-1] = end
        return encoded

    def of_messages(self, messages: object, tools: object = None) -> Encoded:
        """A chat under the tokenizer's template; every reply is trained through the token that ends it.

        Raises:
            RowError: The messages are none, or where the replies stand can be told of none of them.
        """
        chat = _checked(messages)
        text = self._render(chat, tools, reply_follows=False)
        replies = [index for index, message in enumerate(chat) if message["role"] == TRAINED_ROLE]
        if not replies:
            raise RowError("no_reply")
        return self._encode(text, [self._span(chat, index, tools, text) for index in replies])

    def _span(self, chat: Sequence[dict[str, Any]], index: int, tools: object, text: str) -> _Span | RowError:
        """Where the reply ``index`` stands in the rendered chat."""
        try:
            before = self._render(chat[:index], tools, reply_follows=True)
            after = self._render(chat[: index + 1], tools, reply_follows=False)
        except RowError as error:
            return error
        if not after.startswith(before) or not text.startswith(after):
            return RowError("turns", f"messages[{index}]: {REASONS['turns']}")
        return _Span(len(before), len(after))

    def _render(self, chat: Sequence[dict[str, Any]], tools: object, *, reply_follows: bool) -> str:
        try:
            text: str = self._tokenizer.apply_chat_template(
                list(chat), tools=tools, tokenize=False, add_generation_prompt=reply_follows
            )
        # A template is a program that has not seen these messages: it may fail in any way.
        except Exception as error:
            raise RowError("template", f"{type(error).__name__}: {error}"[:200]) from error
        return text

    def _encode(
        self, text: str, replies: Sequence[_Span | RowError], *, add_special_tokens: bool = False
    ) -> Encoded:
        """The text with those of the replies trained that can be told. Raises RowError when none can."""
        encoded = self._tokenizer(
            text, add_special_tokens=add_special_tokens, return_offsets_mapping=True, verbose=False
        )
        tokens: list[int] = encoded["input_ids"]
        places: list[tuple[int, int]] = encoded["offset_mapping"]
        masks = [IGNORED] * len(tokens)
        untold: list[RowError] = []
        for reply in replies:
            told = reply if isinstance(reply, RowError) else self._tokens_of(reply, tokens, places, text)
            if isinstance(told, RowError):
                untold.append(told)
                continue
            for index in told:
                masks[index] = tokens[index]
        if len(untold) == len(replies):
            raise untold[0]
        return Encoded(tokens, masks, Counter(error.reason for error in untold))

    def _tokens_of(
        self, reply: _Span, tokens: Sequence[int], places: Sequence[tuple[int, int]], text: str
    ) -> list[int] | RowError:
        """The tokens of a reply, without the space that a template writes after the token that ends it."""
        inside = [
            index
            for index, (start, end) in enumerate(places)
            if start < end and end > reply.start and start < reply.end
        ]
        if any(places[index][0] < reply.start or places[index][1] > reply.end for index in inside):
            return RowError("boundary")
        ends = [place for place, index in enumerate(inside) if tokens[index] in self._special]
        if ends and not text[places[inside[ends[-1]]][1] : reply.end].strip():
            return inside[: ends[-1] + 1]
        return inside


def _telling_spaces(tokenizer: Any) -> Any:
    """The tokenizer, or a copy whose tokens' characters include the spaces that GPT-2's and Llama 3's omit.

    Without them a token that begins with the prompt's last space would pass for one of the reply alone, and
    tokens of spaces would stand nowhere.
    """
    from tokenizers import Tokenizer
    from tokenizers.models import BPE

    processor = json.dumps(json.loads(tokenizer.backend_tokenizer.to_str())["post_processor"])
    telling = processor.replace('"trim_offsets": true', '"trim_offsets": false')
    if telling == processor:
        return tokenizer
    # Only a whole tokenizer is read from text.
    bare = json.loads(Tokenizer(BPE()).to_str()) | {"post_processor": json.loads(telling)}
    copy = deepcopy(tokenizer)
    copy.backend_tokenizer.post_processor = Tokenizer.from_str(json.dumps(bare)).post_processor
    return copy


def _checked(messages: object) -> list[dict[str, Any]]:
    if not isinstance(messages, list) or not messages:
        raise RowError("messages", "messages is no list, or empty")
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise RowError("messages", f"messages[{index}] is no object with a role")
        if not isinstance(message.get("content"), str | None):
            raise RowError("messages", f"messages[{index}].content is no text")
    # Parquet has null for what one message has and another lacks, and templates ask for what is there.
    return [
        {name: value for name, value in message.items() if value is not None or name == "content"}
        for message in messages
    ]
