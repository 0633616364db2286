"""What teachers with another tokenizer said of a sequence: in chunks, or as its columns came."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atroposlib.align.chunks import NO_CHUNK as IN_NO_CHUNK
from atroposlib.collate.across import ChunkArrays, TeacherRows, TokenizerPair, chunk_arrays
from atroposlib.collate.across.chunk_arrays import NO_ROW
from atroposlib.collate.reasons import NO_CHUNK, NO_TOP_K, TAUGHT, UNUSED_CHUNK, Reasons
from atroposlib.collate.sources import OtherTokens
from atroposlib.types import ABSENT_ID, ABSENT_LOGPROB


@dataclass(frozen=True, slots=True)
class Aligned:
    """A teacher's own tokens, what it said at each, and the chunks of both sides.

    Attributes:
        token_ids: int64 [U].
        ids: int64 [U, K]; ``ABSENT_ID`` where there is none; row p speaks of token p.
        logprobs: float32 [U, K] in nats; -inf where there is none.
        student_chunk_id: int64 [T], -1 in no chunk and at tokens that are not trained.
        teacher_chunk_id: int64 [U], -1 in no chunk.
    """

    token_ids: NDArray[np.int64]
    ids: NDArray[np.int64]
    logprobs: NDArray[np.float32]
    student_chunk_id: NDArray[np.int64]
    teacher_chunk_id: NDArray[np.int64]


def read_chunks(
    pair: TokenizerPair,
    teacher: OtherTokens,
    index: int,
    tokens: NDArray[np.int64],
    trained: NDArray[np.bool_],
    *,
    minimal: bool,
) -> tuple[ChunkArrays, Reasons]:
    """The chunks of one sequence, and why each token [T] is not used.

    Args:
        pair: The two tokenizers.
        teacher: What it said of the group.
        index: The sequence.
        tokens: int64 [T].
        trained: bool [T].
        minimal: Whether chunks are used that end where a token might have been longer.
    """
    theirs, rows, ours_id, theirs_id = _of_sequence(teacher, index)
    arrays = chunk_arrays(pair, tokens, trained, theirs, rows, ours_id, theirs_id)
    unused = UNUSED_CHUNK if rows.ids.shape[1] > 1 else NO_TOP_K
    reasons = np.where(ours_id == IN_NO_CHUNK, NO_CHUNK, unused).astype(np.int8)
    used = arrays.cut | (arrays.chunk_start != NO_ROW)
    if minimal:
        used = used | (arrays.minimal_chunk != NO_ROW)
    reasons[arrays.positions[used] + 1] = TAUGHT
    return arrays, reasons


def read_aligned(teacher: OtherTokens, index: int, trained: NDArray[np.bool_]) -> tuple[Aligned, Reasons]:
    """The columns of one sequence, in chunks whose student tokens are all trained, and the reasons."""
    theirs, rows, ours_id, theirs_id = _of_sequence(teacher, index)
    lost = np.unique(ours_id[~trained])
    ours_id = np.where(np.isin(ours_id, lost), IN_NO_CHUNK, ours_id)
    theirs_id = np.where(np.isin(theirs_id, lost), IN_NO_CHUNK, theirs_id)
    ids = np.full((len(theirs), rows.ids.shape[1]), ABSENT_ID, np.int64)
    logprobs = np.full(ids.shape, -np.inf, np.float32)
    at = slice(rows.start, rows.start + len(rows.ids))
    ids[at] = rows.ids
    logprobs[at] = np.where(
        (rows.ids != ABSENT_ID) & (rows.logprobs > ABSENT_LOGPROB), rows.logprobs, -np.inf
    )
    reasons = np.where(ours_id == IN_NO_CHUNK, NO_CHUNK, TAUGHT).astype(np.int8)
    return Aligned(theirs, ids, logprobs, ours_id, theirs_id), reasons


def _of_sequence(
    teacher: OtherTokens, index: int
) -> tuple[NDArray[np.int64], TeacherRows, NDArray[np.int64], NDArray[np.int64]]:
    """Teacher tokens, rows and the chunk ids of both sides."""
    targets = teacher.targets
    first_row = int(targets.counts[:index].sum())
    at = slice(first_row, first_row + int(targets.counts[index]))
    rows = TeacherRows(int(targets.starts[index]), targets.ids[at], targets.logprobs[at])
    posted = teacher.student_chunk_id[index], teacher.teacher_chunk_id[index]
    # Numbered anew, so that what is made for each chunk is no larger than the sequence, whatever was posted.
    numbers = np.unique(np.concatenate([*posted, [IN_NO_CHUNK]]))
    ours_id, theirs_id = (np.searchsorted(numbers, ids).astype(np.int64) - 1 for ids in posted)
    return teacher.tokens[index].astype(np.int64), rows, ours_id, theirs_id
