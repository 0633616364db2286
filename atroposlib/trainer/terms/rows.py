"""Losses over the columns of teachers with the student's tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atroposlib.collate.batch import Batch, RowTargets, row_targets
from atroposlib.collate.sequences import TrainSequence
from atroposlib.collate.sources import PROJECTED, Source
from atroposlib.config.losses.base import TeacherLossSettings
from atroposlib.config.losses.compatible import GeneralizedKl, TeacherRenormalizedKl, TruncatedKl
from atroposlib.config.losses.same_tokenizer import TopKDistillation
from atroposlib.losses.generalized_kl import generalized_kl
from atroposlib.losses.head import Head
from atroposlib.losses.linear import Metrics
from atroposlib.losses.teacher_renormalized_kl import teacher_renormalized_kl
from atroposlib.losses.topk_distillation import topk_distillation
from atroposlib.losses.truncated_kl import truncated_kl
from atroposlib.trainer.terms.term import (
    READS_ROWS,
    Reads,
    StepCount,
    TermLoss,
    count_of,
    distinct,
    is_told_to_read,
    require_temperature,
    sources_in,
)

RowLoss = Callable[..., tuple[Tensor, Metrics]]
"""Of hidden states [N, H], head, ids and logprobs [N, K] of a teacher, and by name what its settings say."""


@dataclass(frozen=True, slots=True)
class RowTerm:
    """A loss that is a sum over positions, each teacher's weighted.

    Attributes:
        settings: Of the loss.
        loss: What is computed.
        arguments: Its settings, given the teacher and the device.
        projected: Whether it also reads what teachers with another tokenizer said in single student ids.
    """

    name: str
    settings: TeacherLossSettings
    loss: RowLoss
    arguments: Callable[[Source, torch.device], dict[str, Any]]
    projected: bool = True
    reads: Reads = READS_ROWS

    @property
    def weight(self) -> float:
        """See :class:`Term`."""
        return self.settings.weight

    def learns_from(self, source: Source) -> bool:
        """See :class:`Term`."""
        return is_told_to_read(self.settings, source) and (self.projected or source.name != PROJECTED)

    def learned(self, sequence: TrainSequence) -> NDArray[np.int64]:
        """Positions that some teacher speaks of."""
        return distinct(
            [sequence.rows[source].positions for source in filter(self.learns_from, sequence.rows)]
        )

    def count(self, sequences: Sequence[TrainSequence]) -> StepCount:
        """See :class:`Term`."""
        return count_of([len(self.learned(one)) for one in sequences])

    def losses(self, states: Tensor, head: Head, batch: Batch, count: StepCount) -> Iterator[TermLoss]:
        """See :class:`Term`."""
        for source in filter(self.learns_from, sources_in(batch.sequences, "rows")):
            targets = row_targets(batch, source)
            if targets is None:
                continue
            loss, metrics = self._loss(states, head, targets, source, count)
            yield TermLoss(self.name, source.name, self.settings.weight * source.weight, loss, metrics)

    def _loss(
        self, states: Tensor, head: Head, targets: RowTargets, source: Source, count: StepCount
    ) -> tuple[Tensor, Metrics]:
        return self.loss(
            states.index_select(0, targets.positions),
            head,
            targets.ids,
            targets.logprobs,
            global_count=count.units,
            **self.arguments(source, states.device),
        )


def topk_term(settings: TopKDistillation, *, projected: bool = True) -> RowTerm:
    """``topk_distillation`` with these settings."""
    given = settings.model_dump(
        include={"divergence", "support", "temperature", "mixed_weight", "beta", "recompute"}
    )

    def arguments(source: Source, device: torch.device) -> dict[str, Any]:
        masked = torch.tensor(settings.masked_ids, device=device) if settings.masked_ids else None
        return {**given, "teacher_temperature": source.temperature, "masked_ids": masked}

    return RowTerm(settings.name, settings, topk_distillation, arguments, projected)


def migrated_term(settings: TruncatedKl | GeneralizedKl | TeacherRenormalizedKl) -> RowTerm:
    """One of the objectives of other libraries, with these settings."""
    given = settings.model_dump(exclude={"name", "weight", "teachers"})
    if isinstance(settings, TeacherRenormalizedKl):

        def at_temperature(source: Source, device: torch.device) -> dict[str, Any]:
            return {**given, "teacher_temperature": source.temperature}

        return RowTerm(settings.name, settings, teacher_renormalized_kl, at_temperature)

    def arguments(source: Source, device: torch.device) -> dict[str, Any]:
        require_temperature(settings.name, source)
        return given

    loss = truncated_kl if isinstance(settings, TruncatedKl) else generalized_kl
    return RowTerm(settings.name, settings, loss, arguments)
