"""Losses over the tokens that stand in the text: estimators of a KL, and the native policy gradient."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atroposlib.collate.batch import Batch
from atroposlib.collate.sequences import TrainSequence
from atroposlib.collate.sources import Source
from atroposlib.config.losses.policy import KlEstimator, PolicyGradient
from atroposlib.losses.head import Head
from atroposlib.losses.kl_estimator import kl_estimator
from atroposlib.losses.policy_gradient import policy_gradient, reverse_kl_advantages
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

GENERATION, ADVANTAGES = "generation", "advantages"


class _Said(NamedTuple):
    """Logprobs float32 [R] of tokens under a teacher, and where logits predict them, int64 [R]."""

    positions: NDArray[np.int64]
    logprobs: NDArray[np.float32]


def _said(sequence: TrainSequence, source: Source) -> _Said:
    """What a teacher said of the tokens that stand in the sequence."""
    rows = sequence.rows[source]
    logprobs = rows.of_tokens(sequence.token_ids)
    there = ~np.isnan(logprobs)
    return _Said(rows.positions[there], logprobs[there])


@dataclass(frozen=True, slots=True)
class EstimatorTerm:
    """``kl_estimator``, each teacher's weighted."""

    settings: KlEstimator
    name: str = "kl_estimator"
    reads: Reads = READS_ROWS

    @property
    def weight(self) -> float:
        """See :class:`Term`."""
        return self.settings.weight

    def learns_from(self, source: Source) -> bool:
        """See :class:`Term`."""
        return is_told_to_read(self.settings, source)

    def learned(self, sequence: TrainSequence) -> NDArray[np.int64]:
        """Positions of tokens that some teacher speaks of."""
        return distinct([_said(sequence, one).positions for one in filter(self.learns_from, sequence.rows)])

    def count(self, sequences: Sequence[TrainSequence]) -> StepCount:
        """See :class:`Term`."""
        return count_of([len(self.learned(one)) for one in sequences])

    def losses(self, states: Tensor, head: Head, batch: Batch, count: StepCount) -> Iterator[TermLoss]:
        """See :class:`Term`."""
        for source in filter(self.learns_from, sources_in(batch.sequences, "rows")):
            require_temperature(self.name, source, self.settings.temperature)
            said = [
                (offset, _said(sequence, source))
                for offset, sequence in zip(batch.offsets(), batch.sequences, strict=True)
                if source in sequence.rows
            ]
            at = batch.tensor([offset + one.positions for offset, one in said])
            loss, metrics = kl_estimator(
                states.index_select(0, at),
                head,
                batch.input_ids.flatten()[at + 1],
                batch.tensor([one.logprobs for _, one in said]),
                kind=self.settings.kind,
                temperature=self.settings.temperature,
                global_count=count.units,
            )
            yield TermLoss(self.name, source.name, self.settings.weight * source.weight, loss, metrics)


@dataclass(frozen=True, slots=True)
class PolicyTerm:
    """``policy_gradient`` with advantages of the group, of teachers, or both."""

    settings: PolicyGradient
    name: str = "policy_gradient"

    @property
    def weight(self) -> float:
        """See :class:`Term`."""
        return self.settings.weight

    @property
    def reads(self) -> Reads:
        """See :class:`Term`."""
        if self.settings.advantages == "reward":
            return Reads(signals=(ADVANTAGES, GENERATION))
        return Reads(rows=True, with_rows=(GENERATION,))

    def learns_from(self, source: Source) -> bool:
        """See :class:`Term`."""
        return self.settings.advantages != "reward" and is_told_to_read(self.settings, source)

    def learned(self, sequence: TrainSequence) -> NDArray[np.int64]:
        """Positions of tokens that have an advantage."""
        return self._tokens(sequence)[0]

    def count(self, sequences: Sequence[TrainSequence]) -> StepCount:
        """See :class:`Term`."""
        return count_of([len(self.learned(one)) for one in sequences])

    def losses(self, states: Tensor, head: Head, batch: Batch, count: StepCount) -> Iterator[TermLoss]:
        """See :class:`Term`."""
        found = [self._tokens(sequence) for sequence in batch.sequences]
        at = batch.tensor(
            [offset + positions for offset, (positions, _) in zip(batch.offsets(), found, strict=True)]
        )
        if not len(at):
            return
        sampled = batch.tensor(
            [
                sequence.signals.generation[positions + 1]
                for sequence, (positions, _) in zip(batch.sequences, found, strict=True)
            ]
        )
        ages = [
            np.full(len(positions), self.settings.staleness_decay**sequence.age)
            for sequence, (positions, _) in zip(batch.sequences, found, strict=True)
        ]
        loss, metrics = policy_gradient(
            states.index_select(0, at),
            head,
            batch.input_ids.flatten()[at + 1],
            batch.tensor([advantages for _, advantages in found]),
            sampled,
            clip_low=self.settings.clip_low,
            clip_high=self.settings.clip_high,
            temperature=self.settings.temperature,
            row_weights=batch.tensor(ages) if self.settings.staleness_decay < 1 else None,
            global_count=count.units,
        )
        yield TermLoss(self.name, None, self.settings.weight, loss, metrics)

    def _tokens(self, sequence: TrainSequence) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Where logits predict the tokens that have an advantage [R], and these [R]."""
        settings = self.settings
        mixed = settings.advantages != "teacher"
        positions = sequence.positions((ADVANTAGES, GENERATION) if mixed else (GENERATION,))
        reward = sequence.signals.advantages[positions + 1].astype(np.float64)
        if settings.advantages == "reward":
            return positions, reward
        advantages = np.full(len(sequence), np.nan)
        for source in filter(self.learns_from, sequence.rows):
            require_temperature(self.name, source, settings.temperature)
            said = _said(sequence, source)
            gap = reverse_kl_advantages(
                torch.from_numpy(said.logprobs),
                torch.from_numpy(sequence.signals.generation[said.positions + 1]),
                limit=settings.limit or float("inf"),
            )
            before = np.nan_to_num(advantages[said.positions])
            advantages[said.positions] = before + source.weight * gap.numpy()
        positions = positions[~np.isnan(advantages[positions])]
        if mixed:
            reward = sequence.signals.advantages[positions + 1].astype(np.float64)
            return positions, advantages[positions] + settings.reward_weight * reward
        return positions, advantages[positions]
