"""Alignments of parts: of the same regions on both sides, and of sequences that were cut."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from atroposlib.align.aligner import TokenAligner
from atroposlib.align.chunks import NO_CHUNK, Alignment, chunks
from atroposlib.align.runs import Runs, equal_runs
from atroposlib.align.streams import Stream
from atroposlib.collate.cross_tokenizer.document import EOT, RenderedChatDocument, Span

Bools = npt.NDArray[np.bool_]


def align_regions(
    aligner: TokenAligner,
    student: RenderedChatDocument,
    teacher: RenderedChatDocument,
    *,
    only: Collection[str] | None,
    drop_first: bool,
) -> Alignment:
    """Align two documents of one conversation in their regions; everything else is in no chunk.

    Args:
        aligner: Of the two tokenizers.
        student: T tokens.
        teacher: U tokens.
        only: Names of the regions to align; None for all.
        drop_first: Leave out the first valid chunk before the end of turn.
    """
    names = [name for name in student.regions if name in teacher.regions and (only is None or name in only)]
    streams = aligner.student_streamer.stream(student.ids), aligner.teacher_streamer.stream(teacher.ids)
    runs = _joined(
        [
            _runs_within(
                streams[0].symbols,
                _symbols(streams[0], student, student.regions[name]),
                streams[1].symbols,
                _symbols(streams[1], teacher, teacher.regions[name]),
            )
            for name in names
        ]
    )
    aligned = chunks(*streams, runs)
    wanted = [document.inside([document.regions[name] for name in names]) for document in (student, teacher)]
    # Markers that only one side has are chunks wherever they stand.
    kept = _wholly(aligned.student_chunk_id, wanted[0], len(aligned)) & _wholly(
        aligned.teacher_chunk_id, wanted[1], len(aligned)
    )
    if drop_first:
        content = student.inside([student.regions[name] for name in names if name != EOT])
        own = np.unique(aligned.student_chunk_id[content])
        kept[[chunk for chunk in own.tolist() if chunk != NO_CHUNK and aligned.valid[chunk]][:1]] = False
    return _only(aligned, kept)


def cut(alignment: Alignment, student_length: int, teacher_length: int) -> Alignment:
    """The alignment of two sequences that keep only their first tokens; a chunk that was cut is none."""
    rows = alignment.student_chunk_id, alignment.teacher_chunk_id
    kept = [
        _wholly(ids, np.arange(len(ids)) < length, len(alignment))
        for ids, length in zip(rows, (student_length, teacher_length), strict=True)
    ]
    whole = _only(alignment, kept[0] & kept[1])
    return replace(
        whole,
        student_chunk_id=whole.student_chunk_id[:student_length],
        teacher_chunk_id=whole.teacher_chunk_id[:teacher_length],
    )


def _symbols(stream: Stream, document: RenderedChatDocument, span: Span) -> Span:
    """A span of bytes of the rendered text as a span of the stream's symbols."""

    def place(byte: int) -> int:
        token = int(np.searchsorted(document.ends, byte, side="right"))
        if token == len(document.ends):
            return len(stream)
        into = max(byte - int(document.begins[token]), 0)
        return min(int(stream.starts[token]) + into, int(stream.ends[token]))

    return place(span[0]), place(span[1])


def _runs_within(
    student: npt.NDArray[np.int32], ours: Span, teacher: npt.NDArray[np.int32], theirs: Span
) -> Runs:
    runs = equal_runs(student[ours[0] : ours[1]], teacher[theirs[0] : theirs[1]])
    return replace(runs, student=runs.student + ours[0], teacher=runs.teacher + theirs[0])


def _joined(parts: list[Runs]) -> Runs:
    empty = np.empty(0, dtype=np.int64)
    return Runs(
        np.concatenate([empty, *(part.student for part in parts)]),
        np.concatenate([empty, *(part.teacher for part in parts)]),
        np.concatenate([empty, *(part.lengths for part in parts)]),
    )


def _wholly(ids: npt.NDArray[np.int32], inside: Bools, count: int) -> Bools:
    """bool [C]: chunks without a token outside."""
    outside = ids[~inside & (ids != NO_CHUNK)]
    found: Bools = np.bincount(outside, minlength=count) == 0
    return found


def _only(alignment: Alignment, kept: Bools) -> Alignment:
    """The chunks that are kept, numbered anew."""
    numbers = np.append(np.where(kept, np.cumsum(kept) - 1, NO_CHUNK), NO_CHUNK).astype(np.int32)
    return Alignment(
        numbers[alignment.student_chunk_id], numbers[alignment.teacher_chunk_id], alignment.valid[kept]
    )
