"""How one teacher's tokens stand to the student's, on this rank's positions and shifted to the logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from atroposlib.losses.compatible.chunk_average import Chunks
from atroposlib.losses.compatible.interfaces import Data


@dataclass(frozen=True, slots=True)
class LocalizedAlignment:
    """One teacher's alignment; B rows, t and u positions of this rank.

    Every per-position field but ``teacher_mask`` speaks of the token *after* its position, as the logits
    there do. A teacher with the student's tokenizer has no chunks, and its labels are the student's.

    Attributes:
        sample_mask: [B], 1 where the row is trained.
        student_labels: int64 [B, t].
        student_label_mask: [B, t], 1 where that token and its row are trained.
        teacher_labels: int64 [B, u].
        teacher_label_mask: [B, u], likewise.
        teacher_mask: [B, u], 1 where the token *at* the position and its row are trained.
        chunks: How the teacher's tokens are paired with the student's; None where they are the same.
    """

    sample_mask: Tensor
    student_labels: Tensor
    student_label_mask: Tensor
    teacher_labels: Tensor
    teacher_label_mask: Tensor
    teacher_mask: Tensor
    chunks: Chunks | None = None


def next_of(values: Tensor, fill: float) -> Tensor:
    """[B, T, ...] of the next position; ``fill`` at the last."""
    return torch.cat([values[:, 1:], torch.full_like(values[:, :1], fill)], dim=1)


def teacher_count(data: Data) -> int:
    """How many teachers a batch carries."""
    count = 0
    while f"teacher_{count}_full_logits_ipc" in data or f"teacher_{count}_topk_ids" in data:
        count += 1
    return count


def localize(data: Data, i: int, student_at: Tensor, teacher_at: Tensor) -> LocalizedAlignment:
    """The alignment of teacher ``i``, from a batch of whole rows.

    Args:
        data: A :class:`CrossTokenizerDistillationLossDataDict`.
        i: The teacher's number.
        student_at: int64 [t], this rank's positions.
        teacher_at: int64 [u], this rank's positions of the teacher; ``student_at`` with one tokenizer.
    """
    labels, label_mask, mask = _labels(data, "", student_at)
    if f"alignment_{i}_student_chunk_id" not in data:
        return LocalizedAlignment(data["sample_mask"], labels, label_mask, labels, label_mask, mask)
    chunks = Chunks(
        next_of(data[f"alignment_{i}_student_chunk_id"], -1).index_select(1, student_at),
        next_of(data[f"alignment_{i}_teacher_chunk_id"], -1).index_select(1, teacher_at),
        data[f"alignment_{i}_pair_valid"],
        data[f"alignment_{i}_pair_is_correct"],
    )
    teacher = _labels(data, f"teacher_{i}_", teacher_at)
    return LocalizedAlignment(data["sample_mask"], labels, label_mask, *teacher, chunks)


def _labels(data: Data, prefix: str, at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Next tokens int64 [B, t], whether they are trained, and whether the positions' own are."""
    mask = data[f"{prefix}token_mask"] * data["sample_mask"][:, None]
    labels = next_of(data[f"{prefix}input_ids"], 0)
    return labels.index_select(1, at), next_of(mask, 0).index_select(1, at), mask.index_select(1, at)
