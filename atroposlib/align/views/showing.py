"""What a teacher is shown of a student's sequence: the parts of its own sequence, in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from atroposlib.align.views.contents import Messages, contents_of
from atroposlib.align.views.conversation import Conversation, opens_thought
from atroposlib.align.views.encoding import TextEncoder
from atroposlib.align.views.rendering import Piece, Rendering, parts_of, refuse_hidden_markers, render
from atroposlib.align.views.spans import StudentText, ViewPart
from atroposlib.align.views.templates import check_characters, write

BREAK = "\n\n"
"""Between the contents of messages that are shown as plain text."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What a teacher is shown.

    Attributes:
        parts: Its sequence.
        answers: The student's tokens that it is shown to be scored: first, and behind last.
        wholes: The student's symbol at which the last whole character of each answer ends.
    """

    parts: list[ViewPart]
    answers: list[tuple[int, int]]
    wholes: list[int]


def show_text(text: StudentText, length: int, before: str, bos: int | None) -> Shown:
    """The whole sequence as plain text.

    Args:
        text: The student's sequence.
        length: T.
        before: What only the teacher reads, in front of it.
        bos: The marker that the teacher's tokenizer puts before a text, if it does.
    """
    check_characters(before, "teacher")
    parts, whole = text.parts(*text.span(0, length))
    head = [parts.pop(0)] if parts and bos is not None and parts[0].value == bos else _begin(bos)
    if before:
        head.append(ViewPart(before + BREAK))
    return Shown([*head, *parts], [(0, length)], [whole])


def show_plainly(text: StudentText, conversation: Conversation, before: str, bos: int | None) -> Shown:
    """The contents of a conversation as plain text, one after the other.

    Args:
        text: The student's sequence.
        conversation: What was said in it.
        before: What only the teacher reads, in front of it.
        bos: The marker that the teacher's tokenizer puts before a text, if it does.
    """
    check_characters(before, "teacher")
    parts = _begin(bos)
    if before:
        parts.append(ViewPart(before + BREAK))
    answers = []
    wholes = []
    for index, message in enumerate(conversation.messages):
        if index not in conversation.answers:
            said = BREAK.join(content.text for content in contents_of([message]))
            check_characters(said, "teacher")
            parts.append(ViewPart(said + BREAK))
            continue
        answer = conversation.answers[index]
        spoken, whole = text.parts(*text.span(answer.first, answer.last))
        parts += spoken
        answers.append((answer.first, answer.last))
        wholes.append(whole)
        if index < len(conversation.messages) - 1:
            parts.append(ViewPart(BREAK))
        elif (marker := text.marker_at(answer.last)) is not None:
            parts.append(marker)
    return Shown(parts, answers, wholes)


def _begin(bos: int | None) -> list[ViewPart]:
    return [] if bos is None else [ViewPart(bos)]


@dataclass(frozen=True, slots=True)
class ChatWriter:
    """Writes conversations in a teacher's chat template.

    Attributes:
        tokenizer: The teacher's.
        encoder: Its encoder.
        template: A template's text; None for the tokenizer's own.
        arguments: What the template is given besides the messages.
    """

    tokenizer: Any
    encoder: TextEncoder
    template: str | None
    arguments: Mapping[str, Any]

    def show(self, text: StudentText, conversation: Conversation, tools: Sequence[Any] | None) -> Shown:
        """The conversation with the student's own tokens as answers, up to the last of them.

        The teacher reads before each answer what its template writes to ask for one.

        Raises:
            AlignError: The template refuses the messages (``align.template``) or leaves an answer out
                (``align.content``).
        """
        shown = Shown([], [], [])
        due: ViewPart | None = None
        before = ""
        for part in parts_of(self.encoder, self._rendered(conversation, tools)):
            if part.message in conversation.answers:
                answer = conversation.answers[part.message]
                first = answer.thought if opens_thought(before) else answer.first
                spoken, whole = text.parts(*text.span(first, answer.last))
                shown.parts.extend(spoken)
                shown.answers.append((first, answer.last))
                shown.wholes.append(whole)
                due, before = text.marker_at(answer.last), ""
                continue
            is_over = len(shown.answers) == len(conversation.answers)
            if due is not None and part.value == due.value:
                shown.parts.append(due)
            elif not is_over:
                shown.parts.append(ViewPart(part.value))
            if is_over:
                break
            due = None
            before += part.value if isinstance(part.value, str) else self.encoder.vocabulary.names[part.value]
        return shown

    def _rendered(self, conversation: Conversation, tools: Sequence[Any] | None) -> Rendering:
        """The messages, with what asks for an answer before each answer."""
        messages = conversation.messages
        rendering = render(
            self.tokenizer,
            messages,
            template=self.template,
            tools=tools,
            side="teacher",
            verbatim=conversation.answers,
            **self.arguments,
        )
        refuse_hidden_markers(self.encoder, messages, rendering, tools=tools, side="teacher")
        pieces = list(rendering.pieces)
        for index, (piece, following) in enumerate(pairwise(rendering.pieces)):
            answer = following.message
            is_asked = answer in conversation.answers and messages[answer]["role"] == "assistant"
            # A template is not asked for an answer to nothing.
            if piece.message is None and is_asked and answer:
                before = "".join(one.text for one in rendering.pieces[:index])
                pieces[index] = Piece(self._asking(messages[:answer], tools, before) or piece.text, None)
        return Rendering(tuple(pieces))

    def _asking(self, messages: Messages, tools: Sequence[Any] | None, before: str) -> str:
        """What stands between ``before`` and the answer to messages; empty where templates do not ask.

        A template writes an answer that was given in another way than it asks for one: it leaves out the
        reasoning, or puts an empty one in. What it writes to ask is what the teacher was trained on.
        """
        asked, told = (
            write(
                self.tokenizer,
                messages,
                self.template,
                "teacher",
                tools=tools,
                add_generation_prompt=prompted,
                **self.arguments,
            )
            for prompted in (True, False)
        )
        is_asking = asked != told and asked.startswith(told) and asked.startswith(before)
        return asked[len(before) :] if is_asking else ""
