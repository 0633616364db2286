"""Means over the tokens of a chunk, and which chunks have tokens on both sides.

B rows, t and u positions of this rank, C pairs of chunks, N values a position.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from atroposlib.losses.groups import Group, summed, summed_replicated

EPSILON = 1e-10
"""Added to a chunk's size, as NeMo RL does."""


@dataclass(frozen=True, slots=True)
class Chunks:
    """Pairs of chunks of the student's and a teacher's tokens.

    Attributes:
        student_id: int64 [B, t] pair of the token after each position, -1 for none.
        teacher_id: int64 [B, u], likewise.
        pair_valid: bool [B, C].
        pair_is_correct: bool [B, C]; whether the two sides of the pair are the same text.
    """

    student_id: Tensor
    teacher_id: Tensor
    pair_valid: Tensor
    pair_is_correct: Tensor

    @property
    def count(self) -> int:
        """C."""
        return self.pair_valid.shape[1]

    def student_means(self, values: Tensor, group: Group | None) -> Tensor:
        """[B, C, N] of values [B, t, N]; see :func:`chunk_means`."""
        return chunk_means(values, self.student_id, self.count, group)

    def teacher_means(self, values: Tensor, group: Group | None) -> Tensor:
        """[B, C, N] of values [B, u, N]; see :func:`chunk_means`."""
        return chunk_means(values, self.teacher_id, self.count, group)

    def compared(self, group: Group | None, *, correct_only: bool = False) -> Tensor:
        """bool [B, C]: valid pairs with tokens on both sides after the shift.

        Args:
            group: Ranks that hold other positions.
            correct_only: Whether both sides must be the same text, too.
        """
        sizes = [chunk_sizes(ids, self.count, group) for ids in (self.student_id, self.teacher_id)]
        found = self.pair_valid & (sizes[0] > 0) & (sizes[1] > 0)
        return found & self.pair_is_correct if correct_only else found


def chunk_sizes(chunk_id: Tensor, chunks: int, group: Group | None = None) -> Tensor:
    """int64 [B, C]: tokens of each chunk, over all ranks of ``group``; ids [B, t], others for none."""
    counts = torch.zeros(chunk_id.shape[0], chunks + 1, dtype=torch.int64, device=chunk_id.device)
    counts.scatter_add_(
        1, torch.where(_in_a_chunk(chunk_id, chunks), chunk_id, chunks), torch.ones_like(chunk_id)
    )
    return summed(counts[:, :chunks], group)


def chunk_means(values: Tensor, chunk_id: Tensor, chunks: int, group: Group | None = None) -> Tensor:
    """[B, C, N]: the mean of values [B, t, N] over each chunk, on all ranks of ``group``; differentiable.

    An empty chunk has zeros. A value of -inf (an absent column) anywhere in a chunk makes its mean -inf: a
    product with an unknown factor is unknown.
    """
    rows = torch.arange(len(chunk_id), device=chunk_id.device)[:, None] * chunks + chunk_id
    kept = _in_a_chunk(chunk_id, chunks).flatten().nonzero().squeeze(-1)
    total = values.new_zeros(len(chunk_id) * chunks, values.shape[-1])
    total = total.index_add(0, rows.flatten()[kept], values.flatten(0, 1).index_select(0, kept))
    total = summed_replicated(total, group).view(len(chunk_id), chunks, -1)
    return total / (chunk_sizes(chunk_id, chunks, group)[..., None].to(values.dtype) + EPSILON)


def _in_a_chunk(chunk_id: Tensor, chunks: int) -> Tensor:
    """bool: an id from C on would reach into the next row's chunks."""
    return (chunk_id >= 0) & (chunk_id < chunks)
