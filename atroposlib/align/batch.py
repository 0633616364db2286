"""Batches for the aligner: padded ids and masks in, padded chunk ids out, as numpy or torch has them."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from atroposlib.align.chunks import NO_CHUNK, Alignment
from atroposlib.errors import AlignError


@dataclass(frozen=True, slots=True)
class AlignmentBatch:
    """B alignments, padded. T student tokens, U teacher tokens, P >= 1 the most chunks of a row.

    Arrays of numpy, or tensors of torch on the device of the student's ids. The id of a chunk is its place
    among the pairs.

    Attributes:
        pair_valid: bool [B, P]. Chunks with tokens on both sides; False on padding.
        pair_is_correct: bool [B, P]. Whether both sides are the same bytes, which is so for all valid ones.
        student_chunk_id: int64 [B, T]. -1 on padding and at tokens in no chunk.
        teacher_chunk_id: int64 [B, U]. Likewise.
        student_exact_partition_mask: bool [B, T]. Tokens of valid chunks of one token on each side.
        teacher_exact_partition_mask: bool [B, U]. Likewise.
        num_chunks: int64 [B].
    """

    pair_valid: Any
    pair_is_correct: Any
    student_chunk_id: Any
    teacher_chunk_id: Any
    student_exact_partition_mask: Any
    teacher_exact_partition_mask: Any
    num_chunks: Any


@dataclass(frozen=True, slots=True)
class Rows:
    """One side of a batch.

    Attributes:
        ids: int64 [B, T].
        begins, ends: int64 [B]. The tokens of each row that are no padding.
    """

    ids: npt.NDArray[np.int64]
    begins: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]

    def __len__(self) -> int:
        """B."""
        return len(self.ids)

    def row(self, index: int) -> npt.NDArray[np.int64]:
        """The ids of one row without its padding."""
        return self.ids[index, self.begins[index] : self.ends[index]]


def read_rows(side: str, ids: Any, mask: Any, offsets: Any) -> Rows:
    """One side of a batch, checked.

    Args:
        side: ``student`` or ``teacher``, for errors.
        ids: Integers [B, T].
        mask: [B, T], nonzero on tokens that are no padding; all of them when None.
        offsets: Integers [B, T, 2], or None. Nothing but their shape and type is looked at.

    Raises:
        AlignError: Shapes or types that do not fit, or padding between two tokens (``align.sequence``).
    """
    tokens = _integers(side, "ids", ids)
    if tokens.ndim != 2:
        raise AlignError(
            "ids of a batch have two axes", where=f"{side}_ids", got=tokens.shape, expected="[B, T]"
        )
    if offsets is not None:
        _check_shape(side, "offsets", _integers(side, "offsets", offsets), (*tokens.shape, 2))
    if mask is None:
        zeros = np.zeros(len(tokens), dtype=np.int64)
        return Rows(tokens, zeros, zeros + tokens.shape[1])
    kept = _array(mask) != 0
    _check_shape(side, "attention_mask", kept, tokens.shape)
    begins = kept.argmax(axis=1) if tokens.shape[1] else np.zeros(len(tokens), dtype=np.int64)
    ends = begins + kept.sum(axis=1)
    place = np.arange(tokens.shape[1])
    whole = (kept == ((place >= begins[:, None]) & (place < ends[:, None]))).all(axis=1)
    if not whole.all():
        raise AlignError(
            "there is padding between tokens",
            where=f"{side}_attention_mask[{int(np.flatnonzero(~whole)[0])}]",
            expected="padding at the ends alone",
            fix="align sequences that are packed into one row each by themselves",
        )
    return Rows(tokens, begins, ends)


def check_pair(student: Rows, teacher: Rows) -> None:
    """Raise AlignError unless both sides have as many rows."""
    if len(student) != len(teacher):
        raise AlignError(
            "both sides of a batch have as many rows",
            where="teacher_ids",
            got=len(teacher),
            expected=len(student),
        )


def collated(rows: list[Alignment], student: Rows, teacher: Rows, like: Any) -> AlignmentBatch:
    """The alignments of a batch's rows, padded.

    Args:
        rows: B alignments of what :meth:`Rows.row` gives.
        student: That side of the batch.
        teacher: The other.
        like: Whatever the student's ids came as: a tensor of torch makes tensors of torch.
    """
    counts = np.array([len(row) for row in rows], dtype=np.int64)
    valid = np.zeros((len(rows), max(1, int(counts.max(initial=0)))), dtype=np.bool_)
    ours, ours_exact = _sided(student)
    theirs, theirs_exact = _sided(teacher)
    for index, row in enumerate(rows):
        valid[index, : len(row)] = row.valid
        # The last entry is that of NO_CHUNK.
        exact = np.append(row.exact(), False)
        here = slice(student.begins[index], student.ends[index])
        ours[index, here], ours_exact[index, here] = row.student_chunk_id, exact[row.student_chunk_id]
        there = slice(teacher.begins[index], teacher.ends[index])
        theirs[index, there], theirs_exact[index, there] = row.teacher_chunk_id, exact[row.teacher_chunk_id]
    return _as(like, AlignmentBatch(valid, valid.copy(), ours, theirs, ours_exact, theirs_exact, counts))


def _sided(rows: Rows) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    return np.full(rows.ids.shape, NO_CHUNK, dtype=np.int64), np.zeros(rows.ids.shape, dtype=np.bool_)


def _is_tensor(value: Any) -> bool:
    # Whoever has a tensor has imported torch; nobody else shall pay for it.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _array(value: Any) -> npt.NDArray[Any]:
    return value.detach().cpu().numpy() if _is_tensor(value) else np.asarray(value)


def _as(like: Any, batch: AlignmentBatch) -> AlignmentBatch:
    if not _is_tensor(like):
        return batch
    torch = sys.modules["torch"]
    tensors = {
        field.name: torch.from_numpy(getattr(batch, field.name)).to(like.device) for field in fields(batch)
    }
    return AlignmentBatch(**tensors)


def _integers(side: str, name: str, value: Any) -> npt.NDArray[np.int64]:
    array = _array(value)
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise AlignError(
            "integers are needed", where=f"{side}_{name}", got=array.dtype, expected="an integer type"
        )
    return array.astype(np.int64)


def _check_shape(side: str, name: str, array: npt.NDArray[Any], expected: tuple[int, ...]) -> None:
    if array.shape != expected:
        raise AlignError(
            "shapes do not fit", where=f"{side}_{name}", got=list(array.shape), expected=list(expected)
        )
