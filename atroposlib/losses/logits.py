"""Reads rows of logits that exist already as :mod:`atroposlib.losses.linear` reads those that do not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from atroposlib.losses.groups import ALONE, Groups, largest, rank_in, summed
from atroposlib.losses.linear import Figures, Readout, Rows, rows_of_a_chunk


def read_logits(
    logits: Tensor,
    rows: Tensor,
    readout: Readout,
    *,
    temperature: float = 1.0,
    groups: Groups = ALONE,
    chunk_rows: int | None = None,
) -> Figures:
    """The figures of some rows of logits; differentiable.

    Args:
        logits: [N, V] of any float dtype, read in at least float32; with tensor parallelism this rank's
            columns.
        rows: int64 [n], which rows.
        readout: What to read; its rows are these n.
        temperature: Divides the logits.
        groups: Ranks that share the vocabulary.
        chunk_rows: Rows that exist in float32 at once; None for as many as ``linear.CHUNK_BYTES`` allows.
    """
    work = _Work(rows, readout, temperature, groups, chunk_rows or rows_of_a_chunk(logits.t(), logits))
    sums: Tensor = _ReadLogits.apply(logits, work)  # type: ignore[no-untyped-call]  # torch leaves it unannotated
    return readout.finish(sums, slice(0, rows.shape[0]))


@dataclass(frozen=True, slots=True)
class _Work:
    rows: Tensor
    readout: Readout
    temperature: float
    groups: Groups
    chunk_rows: int

    def chunks(self, logits: Tensor) -> Iterator[tuple[Rows, Tensor]]:
        """Each chunk, and its logits less their row's maximum."""
        first_id = rank_in(self.groups.tensor) * logits.shape[-1]
        count = self.rows.shape[0]
        for start in range(0, max(1, count), self.chunk_rows):
            at = slice(start, min(start + self.chunk_rows, count))
            chunk = logits.index_select(0, self.rows[at])
            chunk = chunk.to(torch.promote_types(logits.dtype, torch.float32))
            if self.temperature != 1.0:
                chunk /= self.temperature
            highest = largest(chunk.amax(-1, keepdim=True), self.groups.tensor)
            yield Rows(at, first_id), chunk.sub_(highest)


class _ReadLogits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, work: _Work) -> Tensor:
        ctx.work = work
        ctx.save_for_backward(logits)
        parts = [work.readout.measure(shifted, rows)[0] for rows, shifted in work.chunks(logits)]
        return summed(torch.cat(parts), work.groups.tensor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        work: _Work = ctx.work
        (logits,) = ctx.saved_tensors
        result = torch.zeros_like(logits)
        for rows, shifted in work.chunks(logits):
            _, kept = work.readout.measure(shifted, rows)
            spread = work.readout.spread(kept, gradient[rows.at], rows)
            result[work.rows[rows.at]] = spread.div_(work.temperature).to(result.dtype)
        return result, None
