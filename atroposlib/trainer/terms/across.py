"""Losses of what teachers with another tokenizer said."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atroposlib.collate.across import ChunkArrays, joined
from atroposlib.collate.across.chunk_arrays import NO_ROW, Flags
from atroposlib.collate.batch import Batch
from atroposlib.collate.sequences import TrainSequence
from atroposlib.collate.sources import Source
from atroposlib.config.losses.across import ChunkLikelihood, QuotientDistillation
from atroposlib.config.losses.base import TeacherLossSettings
from atroposlib.losses.across.chunk_likelihood import chunk_likelihood
from atroposlib.losses.across.quotient_distillation import quotient_distillation
from atroposlib.losses.across.targets import ChunkTargets
from atroposlib.losses.head import Head
from atroposlib.losses.linear import Metrics
from atroposlib.trainer.terms.term import (
    READS_CHUNKS,
    Reads,
    StepCount,
    TermLoss,
    count_of,
    distinct,
    is_told_to_read,
    require_temperature,
    sources_in,
)

AcrossLoss = Callable[[Tensor, Head, ChunkTargets, int], tuple[Tensor, Metrics]]
"""Of hidden states [N, H], head, what the teacher said, and the global count."""


@dataclass(frozen=True, slots=True)
class AcrossTerm:
    """A loss over the chunks of two tokenizers, each teacher's weighted.

    Attributes:
        settings: Of the loss.
        loss: What is computed.
        units: bool [N] of some arrays: the rows that the loss is a mean over.
        read: bool [N], likewise: the rows whose tokens it learns from.
    """

    name: str
    settings: TeacherLossSettings
    loss: AcrossLoss
    units: Callable[[ChunkArrays], Flags]
    read: Callable[[ChunkArrays], Flags]
    reads: Reads = READS_CHUNKS

    @property
    def weight(self) -> float:
        """See :class:`Term`."""
        return self.settings.weight

    def learns_from(self, source: Source) -> bool:
        """See :class:`Term`."""
        return is_told_to_read(self.settings, source)

    def learned(self, sequence: TrainSequence) -> NDArray[np.int64]:
        """See :class:`Term`."""
        return self._positions(sequence, self.read)

    def count(self, sequences: Sequence[TrainSequence]) -> StepCount:
        """Positions that some teacher speaks of."""
        return count_of([len(self._positions(one, self.units)) for one in sequences])

    def _positions(self, sequence: TrainSequence, which: Callable[[ChunkArrays], Flags]) -> NDArray[np.int64]:
        told = (sequence.chunks[source] for source in filter(self.learns_from, sequence.chunks))
        return distinct([arrays.positions[which(arrays)] for arrays in told])

    def losses(self, states: Tensor, head: Head, batch: Batch, count: StepCount) -> Iterator[TermLoss]:
        """See :class:`Term`."""
        for source in filter(self.learns_from, sources_in(batch.sequences, "chunks")):
            arrays = joined(
                [
                    (sequence.chunks[source], offset)
                    for sequence, offset in zip(batch.sequences, batch.offsets(), strict=True)
                    if source in sequence.chunks
                ]
            )
            if not len(arrays.positions):
                continue
            require_temperature(self.name, source)
            targets = ChunkTargets.of(arrays, states.device)
            loss, metrics = self.loss(states.index_select(0, targets.positions), head, targets, count.units)
            metrics = {name: torch.tensor(number) for name, number in arrays.counts.items()} | metrics
            yield TermLoss(self.name, source.name, self.settings.weight * source.weight, loss, metrics)


def quotient_term(settings: QuotientDistillation) -> AcrossTerm:
    """``quotient_distillation`` with these settings."""

    def loss(hidden: Tensor, head: Head, targets: ChunkTargets, count: int) -> tuple[Tensor, Metrics]:
        return quotient_distillation(
            hidden,
            head,
            targets,
            path=settings.path,
            residual_weight=settings.residual_weight,
            divergence=settings.divergence,
            beta=settings.beta,
            global_count=count,
        )

    def read(arrays: ChunkArrays) -> Flags:
        if not settings.path and not settings.residual_weight:
            return arrays.cut
        begins = arrays.chunk_start
        # Another cell's path is not compared.
        on_path: Flags = (begins != NO_ROW) & arrays.same_cell[begins]
        return arrays.cut | on_path

    return AcrossTerm(settings.name, settings, loss, lambda arrays: arrays.cut, read)


def likelihood_term(settings: ChunkLikelihood) -> AcrossTerm:
    """``chunk_likelihood`` with these settings."""

    def loss(hidden: Tensor, head: Head, targets: ChunkTargets, count: int) -> tuple[Tensor, Metrics]:
        return chunk_likelihood(
            hidden,
            head,
            targets,
            tau=settings.tau,
            direction=settings.direction,
            debiased=settings.debiased,
            global_count=count,
        )

    def units(arrays: ChunkArrays) -> Flags:
        in_chunk: Flags = np.not_equal(
            arrays.chunk_start if settings.debiased else arrays.minimal_chunk, NO_ROW
        )
        return in_chunk

    reads = Reads(chunks=True, minimal_chunks=not settings.debiased)
    return AcrossTerm(settings.name, settings, loss, units, units, reads)
