"""TokenAligner: pairs the tokens of a student with those of a teacher, byte for byte."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from atroposlib.align.batch import AlignmentBatch, check_pair, collated, read_rows
from atroposlib.align.chunks import Alignment, chunks
from atroposlib.align.explanation import Coverage, ExplainedChunk, coverage, explain
from atroposlib.align.runs import equal_runs
from atroposlib.align.streams import streamers
from atroposlib.align.vocabulary import vocabulary_of
from atroposlib.errors import ConfigError

if TYPE_CHECKING:
    from atroposlib.align.views.viewer import TeacherView, TeacherViewer


class TokenAligner:
    """Aligns sequences of two tokenizers. It can be pickled, and used by several threads at once.

    Args:
        student_tokenizer: Whatever :func:`vocabulary_of` takes: a byte table, a directory, a hub id, or a
            loaded fast tokenizer.
        teacher_tokenizer: Likewise.
        projection_matrix_path: Kept for the losses, which read it.
        max_comb_len: Accepted for NeMo RL's callers, at least 1; bytes need no limit on how many tokens
            combine, so it has no effect.

    Attributes:
        student: The student's byte table.
        teacher: The teacher's.

    Raises:
        ConfigError: A tokenizer that a byte table cannot represent (``align.unsupported``), or a
            ``max_comb_len`` that is no number of tokens (``usage.bad_value``).
    """

    def __init__(
        self,
        student_tokenizer: Any,
        teacher_tokenizer: Any,
        projection_matrix_path: str | None = None,
        max_comb_len: int = 4,
    ) -> None:
        if isinstance(max_comb_len, bool) or not isinstance(max_comb_len, int) or max_comb_len < 1:
            raise ConfigError(
                "not a number of tokens",
                code="usage.bad_value",
                where="max_comb_len",
                got=max_comb_len,
                expected="an integer of at least 1",
            )
        self._tokenizers = student_tokenizer, teacher_tokenizer
        self._viewer: TeacherViewer | None = None
        self.student = vocabulary_of(student_tokenizer)
        self.teacher = vocabulary_of(teacher_tokenizer)
        self.projection_matrix_path = projection_matrix_path
        self.max_comb_len = max_comb_len
        self.student_streamer, self.teacher_streamer = streamers(self.student, self.teacher)

    def align_ids(self, student_ids: npt.ArrayLike, teacher_ids: npt.ArrayLike) -> Alignment:
        """Align one sequence of ids [T] with another [U], both from the begin of a text."""
        ours, theirs = self.student_streamer.stream(student_ids), self.teacher_streamer.stream(teacher_ids)
        return chunks(ours, theirs, equal_runs(ours.symbols, theirs.symbols))

    def align(
        self,
        student_ids: Any,
        teacher_ids: Any,
        *,
        student_attention_mask: Any = None,
        teacher_attention_mask: Any = None,
        student_offsets: Any = None,
        teacher_offsets: Any = None,
    ) -> AlignmentBatch:
        """Align a batch, row by row; padding, order and company of a row change nothing of its result.

        Args:
            student_ids: Integers [B, T], of numpy or torch.
            teacher_ids: Integers [B, U].
            student_attention_mask: [B, T], nonzero on tokens; padding may stand at either end. All are tokens
                when omitted.
            teacher_attention_mask: [B, U], likewise.
            student_offsets: Integers [B, T, 2]. Accepted for NeMo RL's callers and checked for their shape;
                places in characters have no effect on bytes.
            teacher_offsets: Integers [B, U, 2], likewise.

        Raises:
            AlignError: Arrays that do not fit each other, or padding between tokens (``align.sequence``).
        """
        student = read_rows("student", student_ids, student_attention_mask, student_offsets)
        teacher = read_rows("teacher", teacher_ids, teacher_attention_mask, teacher_offsets)
        check_pair(student, teacher)
        rows = [self.align_ids(student.row(index), teacher.row(index)) for index in range(len(student))]
        return collated(rows, student, teacher, student_ids)

    def explain(self, student_ids: npt.ArrayLike, teacher_ids: npt.ArrayLike) -> list[ExplainedChunk]:
        """The chunks of two sequences side by side, in order, for people to read.

        Args:
            student_ids: Integers [T], from the begin of a text.
            teacher_ids: Integers [U], likewise.
        """
        alignment = self.align_ids(student_ids, teacher_ids)
        return explain(alignment, (self.student, student_ids), (self.teacher, teacher_ids))

    def coverage(self, student_ids: npt.ArrayLike, teacher_ids: npt.ArrayLike) -> Coverage:
        """How much of two sequences is in valid chunks.

        Args:
            student_ids: Integers [T], from the begin of a text.
            teacher_ids: Integers [U], likewise.
        """
        alignment = self.align_ids(student_ids, teacher_ids)
        return coverage(alignment, self.student.lengths(student_ids), self.teacher.lengths(teacher_ids))

    def teacher_view(self, ids: Sequence[int], kept: npt.NDArray[np.bool_], **said: Any) -> TeacherView:
        """What the teacher reads of the student's sequence, which needs the loaded tokenizers of both.

        Arguments and errors are those of :meth:`~atroposlib.align.views.viewer.TeacherViewer.view`; that
        class has settings besides, such as another chat template.
        """
        from atroposlib.align.views.viewer import TeacherViewer

        self._viewer = self._viewer or TeacherViewer(*self._tokenizers)
        return self._viewer.view(ids, kept, **said)
