"""Turns messages or text into prompt ids, on top of what was sampled earlier in the conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atroposlib.types import IGNORED, PROMPT_LOGPROB

Messages = Sequence[Mapping[str, Any]]


@dataclass
class SequenceNode:
    """One conversation or text with everything that was sampled in it.

    Attributes:
        full_text: Prompt and completion as text.
        tokens: Their ids [T]: prompt ids as sent, then the ids that were sampled.
        masked_tokens: -100 at prompt tokens, the id itself at sampled ones [T].
        logprobs: 1.0 at prompt tokens, the logprob (nats) at sampled ones [T].
        metadata: ``finish_reason`` of the last sample.
    """

    full_text: str
    tokens: list[int]
    masked_tokens: list[int]
    logprobs: list[float]
    metadata: dict[str, Any] | None = None


@dataclass(frozen=True)
class Turn:
    """One sampled reply and what led to it; ``messages`` is None for a text prompt."""

    node: SequenceNode
    prompt_text: str
    reply: str
    finish_reason: str
    messages: list[dict[str, Any]] | None = None


@dataclass(frozen=True)
class Prompt:
    """A prompt of T ids; where it extends ``parent``, its first ids, masks and logprobs are the parent's."""

    text: str
    ids: list[int]
    masks: list[int]
    logprobs: list[float]
    parent: Turn | None = None


def fresh(text: str, ids: Sequence[int]) -> Prompt:
    """A prompt in which nothing was sampled."""
    return Prompt(text, list(ids), [IGNORED] * len(ids), [PROMPT_LOGPROB] * len(ids))


def extended(turn: Turn, text: str, tail_ids: Sequence[int]) -> Prompt:
    """``turn``'s sequence, followed by ``tail_ids``; ``text`` is the text of both.

    A model that ended its turn sampled the id by which the template ends a turn, so the tail's first id is
    left out where it would repeat that one.
    """
    node, tail = turn.node, list(tail_ids)
    if turn.finish_reason == "stop" and tail and tail[0] == node.tokens[-1]:
        tail = tail[1:]
    rest = fresh("", tail)
    return Prompt(
        text, node.tokens + tail, node.masked_tokens + rest.masks, node.logprobs + rest.logprobs, parent=turn
    )


def chat_prompt(tokenizer: Any, messages: Messages, turns: Sequence[Turn], **template: Any) -> Prompt:
    """The chat template applied to ``messages``, on top of the longest earlier turn that they continue.

    A final assistant message is continued, not answered. Where the template shows an earlier reply otherwise
    than it was sampled (some drop earlier reasoning), the model is given that, and the prompt is fresh.
    """
    last_is_assistant = bool(messages) and messages[-1].get("role") == "assistant"
    if last_is_assistant:
        template["continue_final_message"] = True
    text = tokenizer.apply_chat_template(
        list(messages), tokenize=False, add_generation_prompt=not last_is_assistant, **template
    )
    for turn in _longest_first(turns):
        tail = _tail_after(turn, messages, text)
        if tail is not None:
            return extended(turn, text, tokenizer.encode(tail, add_special_tokens=False))
    # The template has written the special tokens already.
    return fresh(text, tokenizer.encode(text, add_special_tokens=False))


def text_prompt(tokenizer: Any, text: str, turns: Sequence[Turn]) -> Prompt:
    """``text`` on top of the longest earlier turn that it continues, else tokenized as a server would."""
    for turn in _longest_first(turns):
        if text.startswith(turn.node.full_text):
            tail = text[len(turn.node.full_text) :]
            if not tail and turn.finish_reason == "stop":
                # The reply was empty: this is its prompt once more, not a text that goes on after its end.
                continue
            return extended(turn, text, tokenizer.encode(tail, add_special_tokens=False))
    return fresh(text, tokenizer.encode(text, add_special_tokens=True))


def ids_prompt(tokenizer: Any, ids: Sequence[int], turns: Sequence[Turn]) -> Prompt:
    """``ids`` as they are; where they begin with an earlier turn's, that turn's masks and logprobs stay."""
    ids, text = list(ids), tokenizer.decode(ids)
    for turn in _longest_first(turns):
        node = turn.node
        if ids[: len(node.tokens)] == node.tokens:
            rest = fresh("", ids[len(node.tokens) :])
            return Prompt(text, ids, node.masked_tokens + rest.masks, node.logprobs + rest.logprobs, turn)
    return fresh(text, ids)


def _longest_first(turns: Sequence[Turn]) -> list[Turn]:
    return sorted(turns, key=lambda turn: len(turn.node.tokens), reverse=True)


def _tail_after(turn: Turn, messages: Messages, text: str) -> str | None:
    """What the rendered ``messages`` say after ``turn``'s reply; None where they do not continue it."""
    known = turn.messages
    if known is None or len(messages) <= len(known):
        return None
    reply = messages[len(known)]
    if reply.get("role") != "assistant" or reply.get("content") != turn.reply:
        return None
    if [dict(message) for message in messages[: len(known)]] != known:
        return None
    # Many templates trim what they show.
    for shown in (turn.reply, turn.reply.rstrip(), turn.reply.lstrip(), turn.reply.strip()):
        if text.startswith(turn.prompt_text + shown):
            tail = text[len(turn.prompt_text + shown) :]
            # A reply that ended its turn cannot be written on: its ids hold the end of the turn.
            return tail if tail or turn.finish_reason != "stop" else None
    return None
