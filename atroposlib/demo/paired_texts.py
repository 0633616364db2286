"""Texts that a teacher with another tokenizer writes, as it and the student read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from atroposlib.align.chunks import NO_CHUNK
from atroposlib.align.views.reasons import CUT_CHARACTER, CUT_END
from atroposlib.demo.heldout import Text, continue_prompts, encode, end_ids

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

ANY_ANSWER = "A few words."
"""Stands for an answer where only what the teacher reads before it is wanted."""

UNFINISHED = "\ufffd"
"""What a decoder writes for bytes that are no character yet."""

Messages = Sequence[dict[str, str]]


@dataclass(frozen=True, slots=True)
class PairedText:
    """One text in the tokens of both models, each behind its own prompt.

    Attributes:
        student: The student's tokens.
        teacher: The teacher's.
        student_chunk_id: int32 [T] of the student's continuation; -1 where a token is in no chunk.
        teacher_chunk_id: int32 [U] of the teacher's.
        masked: Tokens of the student's continuation in no chunk, by reason
            (:data:`~atroposlib.align.views.reasons.REASONS`).
    """

    student: Text
    teacher: Text
    student_chunk_id: NDArray[np.int32]
    teacher_chunk_id: NDArray[np.int32]
    masked: Counter[str]


class PairedReader:
    """Makes paired texts behind prompts; the teacher reads them as it does in training.

    Args:
        student: The student's tokenizer.
        teacher: The teacher's.
        prompts: Chat messages of each prompt.
    """

    def __init__(
        self,
        student: PreTrainedTokenizerBase,
        teacher: PreTrainedTokenizerBase,
        prompts: Sequence[Messages],
    ) -> None:
        from atroposlib.align.views.viewer import TeacherViewer

        self._student, self._teacher, self._prompts = student, teacher, prompts
        self._viewer = TeacherViewer(student, teacher)
        self.student_prompts = [encode(student, messages) for messages in prompts]
        answer = self._ids(ANY_ANSWER)
        self.teacher_prompts = [self._read(index, answer).teacher.prompt for index in range(len(prompts))]

    def written_by(self, teacher: PreTrainedModel, max_new_tokens: int, *, seed: int) -> list[PairedText]:
        """What the teacher writes behind every prompt, sampled at temperature 1."""
        ends = end_ids(teacher)
        continuations = continue_prompts(teacher, self.teacher_prompts, max_new_tokens, seed=seed)
        return [
            self.paired(index, self.text(ids), ended=ids[-1] in ends)
            for index, ids in enumerate(continuations)
        ]

    def text(self, teacher_ids: list[int]) -> str:
        """What the teacher's tokens say, without bytes at the end that are no character yet."""
        written = self._teacher.decode(teacher_ids, skip_special_tokens=True)
        return cast("str", written).rstrip(UNFINISHED)

    def paired(self, index: int, text: str, *, ended: bool) -> PairedText:
        """A text behind a prompt in the tokens of both.

        Args:
            index: Which prompt.
            text: What stands behind it.
            ended: Whether it is over; the last word of a text that is cut off may go on and is masked.
        """
        end = self._student.eos_token_id
        return self._read(index, self._ids(text) + ([int(end)] if ended and end is not None else []))

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._student.encode(text, add_special_tokens=False)
        return ids

    def _read(self, index: int, answer: list[int]) -> PairedText:
        prompt = self.student_prompts[index]
        kept = np.arange(len(prompt) + len(answer)) >= len(prompt)
        view = self._viewer.view([*prompt, *answer], kept, messages=self._prompts[index])
        in_chunks = np.flatnonzero(view.teacher_chunk_id != NO_CHUNK)
        # The teacher's prompt ends where its first chunk begins.
        first = int(in_chunks[0]) if len(in_chunks) else len(view.ids)
        return PairedText(
            student=Text(prompt, answer),
            teacher=Text(view.ids[:first].tolist(), view.ids[first:].tolist()),
            student_chunk_id=view.student_chunk_id[len(prompt) :],
            teacher_chunk_id=view.teacher_chunk_id[first:],
            masked=view.masked,
        )


def coverage(texts: Sequence[PairedText]) -> dict[str, Any]:
    """How much of the student's tokens is in chunks.

    Returns:
        ``text_tokens``; ``masked``, those in no chunk by reason; and ``chunk_coverage``, the share of those
        in chunks among all that are not masked on purpose: a word or a character that was cut off says
        nothing of how it goes on.
    """
    masked = sum((text.masked for text in texts), Counter[str]())
    tokens = sum(len(text.student.continuation) for text in texts)
    wanted = tokens - masked[CUT_END] - masked[CUT_CHARACTER]
    share = (tokens - masked.total()) / wanted if wanted else None
    return {"text_tokens": tokens, "masked": dict(masked), "chunk_coverage": share}
