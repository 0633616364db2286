"""CrossTokenizerCollator: rows of a data set to one batch for a student and its teachers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from atroposlib.align.aligner import TokenAligner
from atroposlib.align.chunks import Alignment
from atroposlib.align.views.rendering import render
from atroposlib.align.vocabulary import vocabulary_of
from atroposlib.collate.cross_tokenizer.checks import check_flags, check_lengths, check_positive, check_same
from atroposlib.collate.cross_tokenizer.config import CrossTokenizerCollatorConfig
from atroposlib.collate.cross_tokenizer.conversation import read_conversation
from atroposlib.collate.cross_tokenizer.document import RenderedChatDocument
from atroposlib.collate.cross_tokenizer.regions import align_regions, cut
from atroposlib.collate.cross_tokenizer.rows import Row, place, placed, text_of
from atroposlib.collate.cross_tokenizer.sides import Side, open_side
from atroposlib.collate.cross_tokenizer.tensors import (
    Padded,
    pad_rows,
    padded_width,
    student_tensors,
    teacher_tensors,
    unpadded,
)
from atroposlib.collate.cross_tokenizer.texts import encode_texts, refuse_overlength
from atroposlib.errors import AlignError

Ids = npt.NDArray[np.int64]


class CrossTokenizerCollator:
    """Tokenizes rows once for the student and once for each teacher with another tokenizer, and aligns them.

    Args:
        config: What is supervised.
        student_tokenizer: A fast tokenizer of transformers. Like those of the teachers, it is set to pad on
            the right, and with its end token where it has none for padding.
        teacher_tokenizers: One for each teacher; may be None where the aligner is.
        aligners: One for each teacher; None for a teacher with the student's own tokenizer, which reads the
            student's tensors and gets none of its own.
        ctx_length_student: Most tokens of a row on the student's side.
        ctx_length_teachers: Likewise for each teacher.
        drop_first_assistant_chunk_kl_by_teacher: In chat, for each teacher: whether the first valid chunk of
            the answer is left out of the alignment. What is supervised does not change.
        make_seq_div_by_student: Rows are padded to a multiple of this.
        make_seq_div_by_teachers: Likewise for each teacher; 1 when omitted.
        reject_overlength_text: In text mode, whether a row that needs more than a context length is an error;
            else each side is cut on its own. In chat such a row always is.
        ce_covers_assistant_turn: In chat: supervise all of the last turn; the supervision of content and end
            of turn comes as ``kd_token_mask``.
        add_special_tokens_in_text: In text mode: let each tokenizer put its own special tokens around a text.
        batch_factory: Makes the batch of the dict of tensors, such as NeMo RL's ``BatchedDataDict``.

    Raises:
        ConfigError: Arguments that do not fit, or a tokenizer that cannot be used.
        AlignError: A chat template that cannot be used.
    """

    def __init__(
        self,
        *,
        config: CrossTokenizerCollatorConfig,
        student_tokenizer: Any,
        teacher_tokenizers: Sequence[Any],
        aligners: Sequence[TokenAligner | None],
        ctx_length_student: int,
        ctx_length_teachers: Sequence[int],
        drop_first_assistant_chunk_kl_by_teacher: Sequence[bool],
        make_seq_div_by_student: int = 1,
        make_seq_div_by_teachers: Sequence[int] | None = None,
        reject_overlength_text: bool = False,
        ce_covers_assistant_turn: bool = False,
        add_special_tokens_in_text: bool = False,
        batch_factory: Callable[[dict[str, Any]], Any] = dict,
    ) -> None:
        divisors = [1] * len(aligners) if make_seq_div_by_teachers is None else make_seq_div_by_teachers
        check_flags(
            config,
            ce_covers_assistant_turn=ce_covers_assistant_turn,
            add_special_tokens_in_text=add_special_tokens_in_text,
        )
        check_lengths(
            len(aligners),
            teacher_tokenizers=teacher_tokenizers,
            ctx_length_teachers=ctx_length_teachers,
            drop_first_assistant_chunk_kl_by_teacher=drop_first_assistant_chunk_kl_by_teacher,
            make_seq_div_by_teachers=divisors,
        )
        check_positive(
            ctx_length_student=[ctx_length_student],
            ctx_length_teachers=ctx_length_teachers,
            make_seq_div_by_student=[make_seq_div_by_student],
            make_seq_div_by_teachers=divisors,
        )
        self.config = config
        self.aligners = list(aligners)
        self.ctx_length_teachers = list(ctx_length_teachers)
        self.make_seq_div_by_teachers = list(divisors)
        self.drop_first_assistant_chunk_kl_by_teacher = list(drop_first_assistant_chunk_kl_by_teacher)
        self.reject_overlength_text = reject_overlength_text
        self.ce_covers_assistant_turn = ce_covers_assistant_turn
        self.add_special_tokens_in_text = add_special_tokens_in_text
        self.batch_factory = batch_factory
        self._student = open_side(
            "student", student_tokenizer, ctx_length_student, make_seq_div_by_student, config
        )
        self._teachers = [self._open_teacher(i, one) for i, one in enumerate(teacher_tokenizers)]

    def _open_teacher(self, i: int, tokenizer: Any) -> Side | None:
        """The side of a teacher; None for one with the student's own tokenizer."""
        name, student, aligner = f"teacher {i}", self._student, self.aligners[i]
        if aligner is None:
            if tokenizer is not None and tokenizer is not student.tokenizer:
                check_same(student.vocabulary, vocabulary_of(tokenizer), f"{name}: no aligner")
            return None
        side = open_side(
            name, tokenizer, self.ctx_length_teachers[i], self.make_seq_div_by_teachers[i], self.config
        )
        check_same(student.vocabulary, aligner.student, f"{name}: the aligner's student")
        check_same(side.vocabulary, aligner.teacher, f"{name}: the aligner's teacher")
        return side

    def _cross_teachers(self) -> Iterator[tuple[int, TokenAligner, Side]]:
        for i, (aligner, side) in enumerate(zip(self.aligners, self._teachers, strict=True)):
            if aligner is not None and side is not None:
                yield i, aligner, side

    def __call__(self, batch: Sequence[Row]) -> Any:
        """One batch of B rows.

        Returns:
            ``batch_factory`` of a dict with ``input_ids`` int64 [B, T], ``input_lengths`` int64 [B],
            ``token_mask`` int64 [B, T], ``sample_mask`` float32 [B] and ``idx``; for each teacher i with an
            aligner ``teacher_{i}_input_ids``, ``teacher_{i}_input_lengths``, ``teacher_{i}_token_mask`` and
            ``alignment_{i}_*``, the fields of :class:`atroposlib.align.batch.AlignmentBatch`.

        Raises:
            AlignError: A row that cannot be collated, by side and sample.
        """
        return self._call_chat(batch) if self.config.mode == "chat" else self._call_text(batch)

    def _call_text(self, batch: Sequence[Row]) -> Any:
        """Texts as they are: every token is supervised, and the alignment is of the whole."""
        texts = [text_of(row) for row in batch]
        if self.reject_overlength_text:
            self._reject_texts(texts, [row["idx"] for row in batch])
        ours = self._tokenize_side(texts, self._student)
        out = student_tensors(batch, ours, ours[1])
        for i, aligner, side in self._cross_teachers():
            theirs = self._tokenize_side(texts, side)
            rows = zip(texts, unpadded(ours), unpadded(theirs), strict=True)
            alignments = [self._align_text(aligner, side, *row) for row in rows]
            out |= teacher_tensors(i, ours, theirs, theirs[1], alignments)
        return self.batch_factory(out)

    def _tokenize_side(self, texts: list[str], side: Side) -> Padded:
        special = self.add_special_tokens_in_text
        ids, mask, _ = self._tokenize_batch(
            texts, side.tokenizer, side.ctx_length, side.divisor, add_special_tokens=special
        )
        return ids, mask

    def _align_text(
        self, aligner: TokenAligner, teacher: Side, text: str, ours: Ids, theirs: Ids
    ) -> Alignment:
        """The alignment of one row; where a side may have been cut, that of the whole text, cut likewise."""
        if len(ours) < self._student.ctx_length and len(theirs) < teacher.ctx_length:
            return aligner.align_ids(ours, theirs)
        whole = [
            encode_texts([text], side.tokenizer, add_special_tokens=self.add_special_tokens_in_text)[0][0]
            for side in (self._student, teacher)
        ]
        return cut(aligner.align_ids(*whole), len(ours), len(theirs))

    def _reject_texts(self, texts: list[str], idx: list[Any]) -> None:
        student = self._student
        sides = [student, *(side for _, _, side in self._cross_teachers())]
        needs = [(side.name, side.tokenizer, side.ctx_length, side.divisor) for side in sides]
        # A teacher with the student's tokenizer reads the student's rows, which are padded for the student.
        needs += [
            (f"teacher {i}", student.tokenizer, self.ctx_length_teachers[i], divisor)
            for i, aligner in enumerate(self.aligners)
            if aligner is None
            for divisor in {student.divisor, self.make_seq_div_by_teachers[i]}
        ]
        for name, tokenizer, ctx_length, divisor in needs:
            self._reject_overlength_texts(
                texts,
                idx,
                tokenizer,
                ctx_length,
                name,
                make_seq_div_by=divisor,
                add_special_tokens=self.add_special_tokens_in_text,
            )

    def _call_chat(self, batch: Sequence[Row]) -> Any:
        """Whole conversations: content and end of the last turn are supervised and aligned, nothing else."""
        students = self._render_side(batch, self._student)
        self._reject_for_same_tokenizer(batch, students)
        ours, content = self._pad_side(students, self._student)
        out = student_tensors(batch, ours, content)
        if self.ce_covers_assistant_turn:
            turns = [self._turn_mask(row, document) for row, document in zip(batch, students, strict=True)]
            covered = pad_rows(turns, content.shape[1], 0, torch.int64)
            out |= {"token_mask": covered, "kd_token_mask": content}
        for i, aligner, side in self._cross_teachers():
            teachers = self._render_side(batch, side)
            theirs, their_content = self._pad_side(teachers, side)
            only, drop = self.config.kd_alignment_regions, self.drop_first_assistant_chunk_kl_by_teacher[i]
            alignments = [
                align_regions(aligner, student, teacher, only=only, drop_first=drop)
                for student, teacher in zip(students, teachers, strict=True)
            ]
            out |= teacher_tensors(i, ours, theirs, their_content, alignments)
        return self.batch_factory(out)

    def _render_side(self, batch: Sequence[Row], side: Side) -> list[RenderedChatDocument]:
        return [self._render_document(side.tokenizer, row, side.ctx_length, side.name) for row in batch]

    def _reject_for_same_tokenizer(self, batch: Sequence[Row], documents: list[RenderedChatDocument]) -> None:
        """A teacher with the student's tokenizer reads the student's rows, padded for the student."""
        lengths, idx = [len(document.ids) for document in documents], [row["idx"] for row in batch]
        for i, aligner in enumerate(self.aligners):
            if aligner is None:
                ctx_length = self.ctx_length_teachers[i]
                refuse_overlength(lengths, idx, ctx_length, f"teacher {i}", self._student.divisor)

    def _pad_side(self, documents: list[RenderedChatDocument], side: Side) -> tuple[Padded, Tensor]:
        ids, mask, _, supervised = self._pad_chat_batch(
            [document.ids for document in documents],
            [np.stack([document.begins, document.ends], axis=1) for document in documents],
            [document.supervised() for document in documents],
            side.tokenizer.pad_token_id,
            side.divisor,
        )
        return (ids, mask), supervised

    def _render_document(
        self, tokenizer: Any, datum: Row, ctx_length: int, side: str
    ) -> RenderedChatDocument:
        """A row in one tokenizer's ids; one longer than ``ctx_length`` is an error, by side and sample."""
        sides = [self._student, *(teacher for _, _, teacher in self._cross_teachers())]
        encoder = next(one.encoder for one in sides if one.tokenizer is tokenizer and one.encoder)
        with placed(place(side, datum["idx"])):
            document = read_conversation(tokenizer, encoder, datum, self.config)
        refuse_overlength([len(document.ids)], [datum["idx"]], ctx_length, side)
        return document

    def _final_turn_start(self, datum: Row, doc: RenderedChatDocument) -> int:
        """Index of the first student token of the last turn, which begins where all earlier ones end.

        Raises:
            AlignError: The earlier messages alone are rendered in another way (``align.template``).
        """
        earlier = datum["message_log"][:-1]
        with placed(place(self._student.name, datum["idx"])):
            text = render(self._student.tokenizer, earlier, tools=datum.get("tools")).text if earlier else ""
            if not doc.text.startswith(text):
                raise AlignError(
                    "where the last turn begins cannot be told: the chat template renders the earlier "
                    "messages in another way when they stand alone",
                    code="align.template",
                    fix="leave ce_covers_assistant_turn out for this row",
                )
        return int(np.searchsorted(doc.begins, len(text.encode())))

    def _turn_mask(self, row: Row, document: RenderedChatDocument) -> list[int]:
        count = len(document.ids)
        start = self._final_turn_start(row, document) if document.regions else count
        return [0] * start + [1] * (count - start)

    @staticmethod
    def _padded_width(length: int, make_seq_div_by: int) -> int:
        """``length`` rounded up to a multiple of ``make_seq_div_by``, and at least ``max(it, 1)``."""
        return padded_width(length, make_seq_div_by)

    @staticmethod
    def _pad_chat_batch(
        ids_list: Sequence[Any],
        off_list: Sequence[Any],
        mask_list: Sequence[Any],
        pad_token_id: int,
        make_seq_div_by: int,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Rows of ids, offsets and assistant masks as tensors, padded on the right.

        Returns:
            ids int64 [B, T], attention mask int64 [B, T], offsets int64 [B, T, 2] and assistant mask int64
            [B, T]; padding is the padding token, 0, ``(0, 0)`` and 0.
        """
        width = padded_width(max(map(len, ids_list), default=0), make_seq_div_by)
        return (
            pad_rows(ids_list, width, pad_token_id, torch.int64),
            pad_rows([[1] * len(ids) for ids in ids_list], width, 0, torch.int64),
            pad_rows(off_list, width, (0, 0), torch.int64),
            pad_rows(mask_list, width, 0, torch.int64),
        )

    @staticmethod
    def _reject_overlength_texts(
        texts: Sequence[str],
        idx: Sequence[Any],
        tokenizer: Any,
        ctx_length: int,
        side: str,
        *,
        make_seq_div_by: int,
        add_special_tokens: bool,
    ) -> None:
        """Refuse texts whose token count, rounded up to ``make_seq_div_by``, exceeds ``ctx_length``."""
        encoded = encode_texts(texts, tokenizer, add_special_tokens=add_special_tokens)
        refuse_overlength([len(ids) for ids, _ in encoded], idx, ctx_length, side, make_seq_div_by)

    @staticmethod
    def _tokenize_batch(
        texts: Sequence[str],
        tokenizer: Any,
        ctx_length: int,
        make_seq_div_by: int,
        *,
        add_special_tokens: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Texts as tensors, each cut to its first ``ctx_length`` tokens and padded on the right.

        Returns:
            ids int64 [B, T], attention mask int64 [B, T] and offsets in characters int64 [B, T, 2].
        """
        encoded = encode_texts(texts, tokenizer, add_special_tokens=add_special_tokens)
        cut_ids = [ids[:ctx_length] for ids, _ in encoded]
        width = padded_width(max(map(len, cut_ids), default=0), make_seq_div_by)
        return (
            pad_rows(cut_ids, width, tokenizer.pad_token_id, torch.int64),
            pad_rows([[1] * len(ids) for ids in cut_ids], width, 0, torch.int64),
            pad_rows([offsets[:ctx_length] for _, offsets in encoded], width, (0, 0), torch.int64),
        )
