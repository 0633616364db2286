"""One text, or one conversation, in the tokens of a student and of a teacher."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from atroposlib.align.aligner import TokenAligner
from atroposlib.align.chunks import Alignment
from atroposlib.align.explanation import Coverage, ExplainedChunk, Token, coverage, explain
from atroposlib.align.sameness import VocabularyMatch, compare
from atroposlib.align.tables.table import SPECIAL, Vocabulary
from atroposlib.align.views.encoding import TextEncoder
from atroposlib.align.views.rendering import NO_MESSAGE, encode_rendering, render
from atroposlib.align.views.viewer import TeacherViewer

State = Literal["one", "several", "alone", "masked", "context"]


@dataclass(frozen=True, slots=True)
class Shown:
    """Tokens of both sides that are shown beside each other.

    Attributes:
        student: Its tokens: bytes as they are, markers by their name.
        teacher: Likewise.
        state: ``one`` for a valid chunk of one token on each side, ``several`` for any other valid chunk,
            ``alone`` and ``masked`` as in :class:`ExplainedChunk`, ``context`` for what has no target because
            it is not an answer.
        reason: Why there is no pair; empty where there is one, and where none is wanted.
    """

    student: tuple[Token, ...]
    teacher: tuple[Token, ...]
    state: State
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two tokenizations side by side.

    Attributes:
        shown: All tokens of both sides, in order.
        coverage: Its figures. Of a conversation, the student's bytes are those of the answers alone.
        masked: Student tokens without a partner that should have one, by reason.
        match: How the two vocabularies agree.
        lossy: What a text can lose on its way into the student's ids, and into the teacher's.
        answers_only: Whether it is a conversation, of which only the answers need a partner.
        problem: Why the teacher cannot be shown the conversation; empty where it can.
    """

    shown: list[Shown]
    coverage: Coverage
    masked: Counter[str]
    match: VocabularyMatch
    lossy: tuple[tuple[str, ...], tuple[str, ...]]
    answers_only: bool = False
    problem: str = ""


def compare_text(student: Any, teacher: Any, text: str) -> Comparison:
    """A text as both tokenizers encode it, without the special tokens that they would put around it.

    Args:
        student: A loaded fast tokenizer.
        teacher: Likewise.
        text: Markers that are spelled in it are text.

    Raises:
        ConfigError: A tokenizer that a byte table cannot represent (``align.unsupported``).
    """
    encoders = TextEncoder(student), TextEncoder(teacher)
    ours, theirs = (encoder.encode(text) for encoder in encoders)
    aligner = TokenAligner(encoders[0].vocabulary, encoders[1].vocabulary)
    shown = [_shown(chunk) for chunk in aligner.explain(ours, theirs)]
    masked: Counter[str] = Counter()
    for one in shown:
        masked[one.reason] += len(one.student) if one.reason else 0
    return Comparison(
        shown=shown,
        coverage=aligner.coverage(ours, theirs),
        masked=+masked,
        match=compare(aligner.student, aligner.teacher),
        lossy=(aligner.student.lossy, aligner.teacher.lossy),
    )


def compare_messages(
    student: Any, teacher: Any, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None = None
) -> Comparison:
    """A conversation as the student's chat template writes it, beside what its teacher is shown of it.

    What the assistant says and the marker behind it stand for the sampled tokens.

    Args:
        student: A loaded fast tokenizer with a chat template.
        teacher: A loaded fast tokenizer; without a chat template it is shown plain text.
        messages: As chat templates take them.
        tools: The tools that the templates describe.

    Raises:
        AlignError: A template that cannot write the conversation (``align.template``, ``align.content``).
        ConfigError: A tokenizer that a byte table cannot represent (``align.unsupported``).
    """
    encoder = TextEncoder(student)
    rendered = encode_rendering(encoder, render(student, messages, tools=tools, side="student"))
    kept = _answers(encoder.vocabulary, rendered.ids, rendered.message, messages)
    template = "auto" if getattr(teacher, "chat_template", None) else None
    viewer = TeacherViewer(student, teacher, chat_template=template)
    view = viewer.view(rendered.ids.tolist(), kept, messages=messages, tools=tools)
    aligner = TokenAligner(encoder.vocabulary, teacher)
    valid = np.ones(int(view.student_chunk_id.max(initial=-1)) + 1, dtype=np.bool_)
    alignment = Alignment(view.student_chunk_id, view.teacher_chunk_id, valid)
    chunks = explain(alignment, (aligner.student, rendered.ids), (aligner.teacher, view.ids))
    # The view counts reasons and does not say which token has which, so several are named together.
    reason = ", ".join(sorted(view.masked))
    shown = list(_within_answers(chunks, kept, reason))
    lengths = np.where(kept, aligner.student.lengths(rendered.ids), 0)
    return Comparison(
        shown=shown,
        coverage=coverage(alignment, lengths, aligner.teacher.lengths(view.ids)),
        masked=view.masked,
        match=compare(aligner.student, aligner.teacher),
        lossy=(aligner.student.lossy, aligner.teacher.lossy),
        answers_only=True,
        problem=view.problem,
    )


def _answers(
    vocabulary: Vocabulary,
    ids: npt.NDArray[np.int32],
    message: npt.NDArray[np.int32],
    messages: Sequence[Mapping[str, Any]],
) -> npt.NDArray[np.bool_]:
    """bool [T]: what the assistant says, and the marker behind it."""
    said = [index for index, one in enumerate(messages) if one.get("role") == "assistant"]
    kept: npt.NDArray[np.bool_] = np.isin(message, said)
    behind = np.flatnonzero(kept[:-1] & (message[1:] == NO_MESSAGE)) + 1
    kept[behind[vocabulary.kinds[ids[behind]] == SPECIAL]] = True
    return kept


def _shown(chunk: ExplainedChunk) -> Shown:
    state: State = "alone" if chunk.state == "alone" else "masked"
    if chunk.state == "paired":
        state = "one" if len(chunk.student) == len(chunk.teacher) == 1 else "several"
    return Shown(chunk.student, chunk.teacher, state, chunk.reason)


def _within_answers(
    chunks: Sequence[ExplainedChunk], kept: npt.NDArray[np.bool_], reason: str
) -> Iterator[Shown]:
    """The chunks of a view, where what is no answer is context and lacks nothing."""
    place = 0
    for chunk in chunks:
        end = place + len(chunk.student)
        wanted = kept[place:end]
        place = end
        if chunk.state == "paired":
            yield _shown(chunk)
            continue
        # What the teacher has there belongs to the context, where there is some.
        parts = [(wanted_here, len(list(group))) for wanted_here, group in groupby(wanted.tolist())]
        beside = next((index for index, part in enumerate(parts) if not part[0]), 0)
        done = 0
        for index, (wanted_here, length) in enumerate(parts or [(False, 0)]):
            ours, theirs = chunk.student[done : done + length], chunk.teacher if index == beside else ()
            done += length
            yield Shown(ours, theirs, "masked", reason) if wanted_here else Shown(ours, theirs, "context")
