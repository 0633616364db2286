"""What was said in a student's sequence, and which tokens are the answers that a teacher is to score."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from atroposlib.align.tables.roles import THINKING
from atroposlib.align.tables.table import SPECIAL, Vocabulary
from atroposlib.align.views.contents import Messages, contents_of
from atroposlib.align.views.turns import Turn

Kept = npt.NDArray[np.bool_]

_LONGEST_OPENER = max(len(opener) for opener, _ in THINKING)
_MOST_TOKENS = 32
_OPENED = re.compile("\\s*(" + "|".join(re.escape(opener) for opener, _ in THINKING) + ")\\s*$")
_NO_THOUGHT = re.compile(
    "\\s*(" + "|".join(f"{re.escape(opener)}\\s*{re.escape(closer)}" for opener, closer in THINKING) + ")\\s*"
)


@dataclass(frozen=True, slots=True)
class Answer:
    """The tokens of an answer's content in the sequence.

    Attributes:
        first: The first.
        last: The one behind the last.
        thought: The first behind the marker that begins the reasoning and white space behind that, where the
            answer begins with it; else ``first``.
    """

    first: int
    last: int
    thought: int


@dataclass(frozen=True, slots=True)
class Conversation:
    """The messages up to the last answer.

    Attributes:
        messages: As a chat template takes them. The contents of answers are words that stand for them.
        answers: By index of the message.
    """

    messages: list[dict[str, Any]]
    answers: dict[int, Answer]


def opens_thought(text: str) -> bool:
    """Whether a text ends with the marker that begins the reasoning."""
    return _OPENED.search(text) is not None


def from_turns(turns: Sequence[Turn], ids: Sequence[int], kept: Kept, vocabulary: Vocabulary) -> Conversation:
    """The conversation of turns that were read from a sequence [T].

    Args:
        turns: In their order.
        ids: T token ids.
        kept: bool [T]. Tokens that are to have a target.
        vocabulary: The student's.
    """
    messages: list[dict[str, Any]] = []
    answers: dict[int, Answer] = {}
    for turn in turns:
        trained = _first_trained(turn, ids, kept, vocabulary)
        content = turn.content.decode(errors="replace")
        if trained is not None:
            answers[len(messages)] = _answer(turn, trained, ids, vocabulary)
            content = _word_for(len(messages))
        elif turn.role == "assistant":
            content = _NO_THOUGHT.sub("", content, count=1) if _NO_THOUGHT.match(content) else content
        elif turn.role == "system" and not content.strip():
            # The begin of the text, with nothing behind it.
            continue
        messages.append({"role": turn.role, "content": content})
    return Conversation(messages[: max(answers, default=-1) + 1], answers)


def from_messages(
    messages: Messages, turns: Sequence[Turn], ids: Sequence[int], kept: Kept, vocabulary: Vocabulary
) -> Conversation | None:
    """The conversation of these messages; None where they are not what the sequence [T] says.

    Each turn with kept tokens is an answer; without turns, each stretch of kept tokens is the content of one,
    behind which markers and white space may follow. The contents of the other messages stand in the sequence
    in their order, but for white space around them, and each turn says something of them.

    Args:
        messages: All of them, or those before the only answer.
        turns: Those that were read from the sequence.
        ids: T token ids.
        kept: bool [T]. Tokens that are to have a target.
        vocabulary: The student's.
    """
    turns = turns or list(_stretches(ids, kept, vocabulary))
    trained = {
        at: first
        for at, turn in enumerate(turns)
        if (first := _first_trained(turn, ids, kept, vocabulary)) is not None
    }
    chosen = _answers_among(messages, [turns[at].content.decode(errors="replace") for at in trained])
    if chosen is None:
        return None
    message = done = 0
    for index, at in zip(chosen, trained, strict=True):
        if not _say(messages[message:index], turns[done:at]):
            return None
        message, done = index + 1, at + 1
    shown = [dict(message) for message in messages[: chosen[-1] + 1]]
    for index in chosen:
        shown[index : index + 1] = [{"role": "assistant", "content": _word_for(index)}]
    answers = {
        index: _answer(turns[at], first, ids, vocabulary)
        for index, (at, first) in zip(chosen, trained.items(), strict=True)
    }
    return Conversation(shown, answers)


def _first_trained(turn: Turn, ids: Sequence[int], kept: Kept, vocabulary: Vocabulary) -> int | None:
    """The first kept token of a turn, of which the marker behind it is one; None where there is none.

    What is put in front of a system message is of the same content, so that is no answer.
    """
    end = turn.end + (turn.end < len(ids) and _is_marker(ids[turn.end], vocabulary))
    trained = np.flatnonzero(kept[turn.begin : end])
    return turn.begin + int(trained[0]) if len(trained) and turn.role != "system" else None


def _word_for(index: int) -> str:
    return f"zqxanswer{index}"


def _answer(turn: Turn, trained: int, ids: Sequence[int], vocabulary: Vocabulary) -> Answer:
    """The answer of a turn that was begun for the student, who went on from token ``trained``.

    The begin of a thought is part of it. An empty thought is not: it is how a template turns thinking off.
    """
    first, last = turn.begin, turn.end
    opened, written = trained, b""
    while opened > max(0, trained - _MOST_TOKENS) and len(written.rstrip()) <= _LONGEST_OPENER:
        opened -= 1
        written = _written(ids[opened], vocabulary) + written
        if opens_thought(written.decode(errors="replace")):
            is_first = all(_is_blank(number, vocabulary) for number in ids[first:opened])
            return Answer(opened, last, trained) if is_first else Answer(first, last, first)
    begun = b"".join(_written(number, vocabulary) for number in ids[first:trained]).decode(errors="replace")
    begin = first if begun.strip() and not _NO_THOUGHT.fullmatch(begun) else trained
    return Answer(begin, last, _behind_opener(ids, begin, last, vocabulary))


def _behind_opener(ids: Sequence[int], begin: int, last: int, vocabulary: Vocabulary) -> int:
    """The first token behind the marker that begins a thought, and behind white space; else ``begin``."""
    at, written = begin, b""
    while at < min(last, begin + _MOST_TOKENS) and len(written.lstrip()) <= _LONGEST_OPENER:
        written += _written(ids[at], vocabulary)
        at += 1
        if _OPENED.fullmatch(written.decode(errors="replace")):
            while at < last and _is_blank(ids[at], vocabulary):
                at += 1
            return at
    return begin


def _written(number: int, vocabulary: Vocabulary) -> bytes:
    """A token's bytes, or its name where it is special."""
    return vocabulary.names.get(number, "").encode() or vocabulary.bytes_of(number)


def _is_blank(number: int, vocabulary: Vocabulary) -> bool:
    text = vocabulary.bytes_of(number)
    return bool(text) and not text.strip()


def _is_marker(number: int, vocabulary: Vocabulary) -> bool:
    return 0 <= number < len(vocabulary) and bool(vocabulary.kinds[number] == SPECIAL)


def _stretches(ids: Sequence[int], kept: Kept, vocabulary: Vocabulary) -> Iterator[Turn]:
    """Each stretch of kept tokens as an answer, and what stands between them as turns of nobody."""
    done = 0
    changes = np.flatnonzero(np.diff(kept, prepend=False, append=False)).tolist()
    for first, last in zip(changes[::2], changes[1::2], strict=True):
        # Markers, and the white space between them, are no content.
        end = at = last
        while at > first:
            at -= 1
            if _is_marker(ids[at], vocabulary):
                end = at
            elif not _is_blank(ids[at], vocabulary):
                break
        if first == end:
            # Nobody can tell what such a marker ends.
            continue
        if done < first:
            yield Turn("", _bytes(ids[done:first], vocabulary), done, done)
        yield Turn("assistant", _bytes(ids[first:end], vocabulary), first, end)
        done = last


def _bytes(ids: Sequence[int], vocabulary: Vocabulary) -> bytes:
    return b"".join(vocabulary.bytes_of(number) for number in ids)


def _answers_among(messages: Messages, texts: list[str]) -> list[int] | None:
    """The message of each text, from the last on: what comes later is the longer context."""
    chosen: list[int] = []
    before = len(messages)
    for text in reversed(texts):
        fitting = (at for at in range(before - 1, -1, -1) if _may_say(messages[at], text))
        index = next(fitting, None)
        if index is None:
            if chosen or not messages or messages[-1].get("role") == "assistant":
                return None
            index = len(messages)
        chosen.append(index)
        before = index
    return chosen[::-1] or None


def _may_say(message: Mapping[str, Any], text: str) -> bool:
    if message.get("role") != "assistant":
        return False
    said = [content.text.strip() for content in contents_of([message])]
    return all(one in text for one in said) and bool(said or message.get("tool_calls"))


def _say(messages: Messages, turns: Sequence[Turn]) -> bool:
    """Whether what messages say stands in these turns, in order, and each of these says something of it."""
    waiting = [content.text.strip() for content in contents_of(messages)]
    # Calls are written in the template's own way.
    calls = sum(bool(message.get("tool_calls")) for message in messages)
    for turn in turns:
        text, done = turn.content.decode(errors="replace"), 0
        is_said = not text.strip()
        while waiting and (at := text.find(waiting[0], done)) >= 0:
            done, is_said = at + len(waiting.pop(0)), True
        if not is_said and not calls:
            return False
        calls -= not is_said
    return not waiting
