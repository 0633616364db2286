"""A student's sequence as a teacher with another tokenizer reads it, and which tokens belong together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from atroposlib.align.chunks import NO_CHUNK, chunks
from atroposlib.align.runs import Runs, equal_runs
from atroposlib.align.streams import Stream, streamers
from atroposlib.align.views.contents import Messages
from atroposlib.align.views.conversation import Conversation, from_messages, from_turns
from atroposlib.align.views.encoding import TextEncoder
from atroposlib.align.views.masking import masked_chunks
from atroposlib.align.views.reasons import NO_VIEW
from atroposlib.align.views.rendering import symbols_of
from atroposlib.align.views.showing import ChatWriter, Shown, show_plainly, show_text
from atroposlib.align.views.spans import OF_NOBODY, StudentText, runs_through, teacher_markers
from atroposlib.align.views.turns import TurnReader
from atroposlib.align.vocabulary import vocabulary_of
from atroposlib.errors import AlignError

OWN_TEMPLATE = "auto"
"""Stands for the chat template that the teacher's tokenizer brings along."""


@dataclass(frozen=True, slots=True)
class TeacherView:
    """One sequence as its teacher reads it. T student tokens, U teacher tokens, C chunks.

    Attributes:
        ids: int32 [U]. What the teacher reads; none where nothing is to be scored.
        student_chunk_id: int32 [T], rising from 0 without a gap over the kept tokens; -1 elsewhere.
        teacher_chunk_id: int32 [U], likewise. Every chunk has tokens on both sides, of equal bytes.
        masked: How many kept tokens are in no chunk, by reason
            (:data:`~atroposlib.align.views.reasons.REASONS`).
        problem: Why the teacher cannot be shown the sequence; empty where it can.
    """

    ids: npt.NDArray[np.int32]
    student_chunk_id: npt.NDArray[np.int32]
    teacher_chunk_id: npt.NDArray[np.int32]
    masked: Counter[str]
    problem: str = ""


class TeacherViewer:
    """Makes the views of one teacher. Several threads may use it at once.

    Args:
        student_tokenizer: A fast tokenizer of transformers, or what else :func:`vocabulary_of` takes; turns
            are read back from ids with the former's chat template.
        teacher_tokenizer: A fast tokenizer of transformers.
        chat_template: ``auto`` for the teacher's own, a template's text, or None for plain text, which a
            teacher without a template of its own reads too.
        system_prompt: What only the teacher reads, before what the system message says.
        template_arguments: What the teacher's template is given, such as ``enable_thinking``.
        encoder: The teacher's, where it is made already.

    Raises:
        ConfigError: A tokenizer that a byte table cannot represent (``align.unsupported``).
    """

    def __init__(
        self,
        student_tokenizer: Any,
        teacher_tokenizer: Any,
        *,
        chat_template: str | None = OWN_TEMPLATE,
        system_prompt: str | None = None,
        template_arguments: Mapping[str, Any] | None = None,
        encoder: TextEncoder | None = None,
    ) -> None:
        self._turns = TurnReader(student_tokenizer, vocabulary_of(student_tokenizer))
        self.student = self._turns.vocabulary
        self.encoder = encoder or TextEncoder(teacher_tokenizer)
        self.system_prompt = system_prompt
        has_own = bool(getattr(teacher_tokenizer, "chat_template", None))
        self._is_plain = chat_template is None or (chat_template == OWN_TEMPLATE and not has_own)
        template = None if chat_template == OWN_TEMPLATE else chat_template
        self._writer = ChatWriter(teacher_tokenizer, self.encoder, template, dict(template_arguments or {}))
        self._streamers = streamers(self.student, self.encoder.vocabulary)
        self._markers = teacher_markers(self._streamers[1])
        self._bos = _leading_bos(teacher_tokenizer, self.encoder)

    def view(
        self,
        ids: Sequence[int],
        kept: npt.NDArray[np.bool_],
        *,
        messages: Messages | None = None,
        tools: Sequence[Any] | None = None,
        context: str = "",
    ) -> TeacherView:
        """The view of one sequence.

        What is said in it is taken from ``messages`` where these are what the ids say, else read back from
        the ids by the student's chat template. A sequence in which there are no turns is plain text.

        Args:
            ids: T token ids of the student.
            kept: bool [T]. Tokens that are to have a target.
            messages: The conversation, with or without its last answer.
            tools: What the teacher's template is told of tools.
            context: What only the teacher reads, behind ``system_prompt``.

        Raises:
            AlignError: ``kept`` is not as long as ``ids`` (``align.sequence``).
        """
        kept = np.asarray(kept, dtype=np.bool_)
        if kept.shape != (len(ids),):
            raise AlignError(
                "kept is not a flag for each id", where="kept", got=kept.shape, expected=f"({len(ids)},)"
            )
        if not kept.any():
            return _nothing(len(ids), Counter())
        stream = self._streamers[0].stream(ids)
        text = StudentText(stream, self._markers)
        before = "\n\n".join(one for one in (self.system_prompt, context) if one)
        try:
            shown = self._shown(text, [int(one) for one in ids], kept, messages, tools, before)
        except AlignError as error:
            return _nothing(len(ids), Counter({NO_VIEW: int(kept.sum())}), str(error))
        teacher_ids = np.array(self.encoder.encode_parts(part.value for part in shown.parts), dtype=np.int32)
        theirs = self._streamers[1].stream(teacher_ids)
        runs = self._runs(shown, theirs)
        alignment = chunks(stream, theirs, runs)
        return TeacherView(teacher_ids, *masked_chunks(stream, alignment, runs, shown, kept))

    def _shown(
        self,
        text: StudentText,
        ids: list[int],
        kept: npt.NDArray[np.bool_],
        messages: Messages | None,
        tools: Sequence[Any] | None,
        before: str,
    ) -> Shown:
        conversation = self._conversation(ids, kept, messages)
        if conversation is None:
            return show_text(text, len(ids), before, self._bos)
        if not conversation.answers:
            raise AlignError("no trained token is part of a turn", code="align.template", where="student")
        if self._is_plain:
            return show_plainly(text, conversation, before, self._bos)
        return self._writer.show(text, _with_system(conversation, before), tools)

    def _conversation(
        self, ids: list[int], kept: npt.NDArray[np.bool_], messages: Messages | None
    ) -> Conversation | None:
        turns = self._turns.read(ids)
        if messages and (said := from_messages(messages, turns, ids, kept, self.student)) is not None:
            return said
        return from_turns(turns, ids, kept, self.student) if turns else None

    def _runs(self, shown: Shown, theirs: Stream) -> Runs:
        """Where the student's stream and the teacher's are equal: only in what stands for the answers."""
        values = [part.value for part in shown.parts]
        lengths = [len(value.encode()) if isinstance(value, str) else 1 for value in values]
        firsts = np.cumsum([0, *lengths]).tolist()
        places = [
            (part.place, first, length)
            for part, first, length in zip(shown.parts, firsts, lengths, strict=False)
            if part.place != OF_NOBODY
        ]
        return runs_through(places, equal_runs(theirs.symbols, symbols_of(values, self._streamers[1])))


def _nothing(length: int, masked: Counter[str], problem: str = "") -> TeacherView:
    no_ids = np.empty(0, dtype=np.int32)
    return TeacherView(no_ids, np.full(length, NO_CHUNK, dtype=np.int32), no_ids, masked, problem)


def _leading_bos(tokenizer: Any, encoder: TextEncoder) -> int | None:
    """The marker that the tokenizer itself puts before a text."""
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    ids = backend.encode("", add_special_tokens=True).ids
    bos = encoder.vocabulary.roles.get("bos")
    return bos if ids and ids[0] == bos else None


def _with_system(conversation: Conversation, before: str) -> Conversation:
    """The conversation with ``before`` in front of what its system message says."""
    if not before:
        return conversation
    messages, answers = conversation.messages, conversation.answers
    if messages[0].get("role") != "system":
        moved = {index + 1: region for index, region in answers.items()}
        return Conversation([{"role": "system", "content": before}, *messages], moved)
    own = messages[0].get("content") or ""
    joined: Any = (
        f"{before}\n\n{own}".rstrip() if isinstance(own, str) else [{"type": "text", "text": before}, *own]
    )
    return Conversation([{**messages[0], "content": joined}, *messages[1:]], answers)
