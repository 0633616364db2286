"""The seed page's distillation classes on what the groups of the API carry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atroposlib.collate.batch import Batch, row_targets
from atroposlib.collate.sequences import TrainSequence
from atroposlib.collate.sources import Source
from atroposlib.config.losses.compatible import Distillation
from atroposlib.losses.compatible.distillation import DistillationLossConfig, DistillationLossFn
from atroposlib.losses.head import Head
from atroposlib.trainer.terms.seed import called, token_data
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
from atroposlib.types import ABSENT_ID


@dataclass(frozen=True, slots=True)
class DistillationTerm:
    """``distillation``, each teacher's weighted."""

    settings: Distillation
    loss_fn: DistillationLossFn
    name: str = "distillation"
    reads: Reads = READS_ROWS

    @property
    def weight(self) -> float:
        """See :class:`Term`."""
        return self.settings.weight

    def learns_from(self, source: Source) -> bool:
        """See :class:`Term`."""
        return is_told_to_read(self.settings, source)

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
            require_temperature(self.name, source)
            nowhere = np.zeros(0, np.int64)
            positions = [
                one.rows[source].positions if source in one.rows else nowhere for one in batch.sequences
            ]
            data = token_data(batch, positions)
            shape = (batch.input_ids.numel(), targets.ids.shape[1])
            ids = torch.full(shape, ABSENT_ID, device=states.device)
            logprobs = torch.full(shape, -torch.inf, device=states.device)
            ids[targets.positions] = targets.ids
            logprobs[targets.positions] = targets.logprobs
            data["teacher_topk_indices"] = ids.view(*batch.input_ids.shape, -1)
            data["teacher_topk_logits"] = logprobs.view(*batch.input_ids.shape, -1)
            loss, metrics = called(self.loss_fn, states, head, data, count)
            yield TermLoss(self.name, source.name, self.settings.weight * source.weight, loss, metrics)


def distillation_term(settings: Distillation) -> DistillationTerm:
    """``distillation`` with these settings."""
    given: dict[str, Any] = settings.model_dump(include={"kl_type", "mixed_kl_weight", "zero_outside_topk"})
    config = DistillationLossConfig.of(given | {"require_masks": True})
    return DistillationTerm(settings, DistillationLossFn(config))
