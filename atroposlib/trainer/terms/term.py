"""What a step asks of each loss of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from atroposlib.collate.batch import Batch
from atroposlib.collate.sequences import TrainSequence
from atroposlib.collate.signals import REFERENCE
from atroposlib.collate.sources import Source
from atroposlib.config.losses.base import TeacherLossSettings
from atroposlib.errors import ConfigError
from atroposlib.losses.head import Head
from atroposlib.losses.linear import Metrics


@dataclass(frozen=True, slots=True)
class StepCount:
    """What one loss reads of a whole step, and so what its sums are divided by.

    Attributes:
        units: Positions, cuts or tokens; 0 when it reads nothing.
        sequences: Sequences that have any.
        chunks: By teacher, chunks that can be compared; for the loss that asks.
    """

    units: int
    sequences: int = 0
    chunks: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TermLoss:
    """What one loss says of one micro-batch.

    Attributes:
        name: Of the loss.
        teacher: Whom it learns from; None where it reads several or none.
        weight: Of the loss, and of the teacher where it is one.
        loss: Its share of the step's mean, without the weight.
        metrics: What adds up over micro-batches.
    """

    name: str
    teacher: str | None
    weight: float
    loss: Tensor
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class Reads:
    """What a loss reads of groups.

    Attributes:
        rows: Whether teachers with the student's tokenizer.
        chunks: Whether teachers with another one, in chunks.
        aligned: Whether these as their columns came.
        minimal_chunks: Whether chunks that end where a token might have been longer.
        signals: Which signals a token must have; None for a loss that learns from teachers alone.
        with_rows: Which ones it must have beside a teacher's row.
        pairs: Whether pairs of sequences.
    """

    rows: bool = False
    chunks: bool = False
    aligned: bool = False
    minimal_chunks: bool = False
    signals: tuple[str, ...] | None = None
    with_rows: tuple[str, ...] = ()
    pairs: bool = False


READS_ROWS = Reads(rows=True)
READS_CHUNKS = Reads(chunks=True)


class Term(Protocol):
    """One loss of a run."""

    @property
    def name(self) -> str:
        """Of the loss."""

    @property
    def weight(self) -> float:
        """Of the loss; 0 only reports it."""

    @property
    def reads(self) -> Reads:
        """What it reads."""

    def learns_from(self, source: Source) -> bool:
        """Whether it reads that teacher."""

    def learned(self, sequence: TrainSequence) -> NDArray[np.int64]:
        """Where logits predict the tokens that it learns from, each once."""

    def count(self, sequences: Sequence[TrainSequence]) -> StepCount:
        """What it reads of a step."""

    def losses(self, states: Tensor, head: Head, batch: Batch, count: StepCount) -> Iterator[TermLoss]:
        """What it says of a micro-batch.

        Args:
            states: Last hidden states [B * T, H] of the batch's sequences.
            head: The student's output layer.
            batch: The sequences.
            count: :meth:`count` of the whole step, with units.
        """


def is_told_to_read(settings: TeacherLossSettings, source: Source) -> bool:
    """Whether a loss's settings name a teacher; all but the reference where they name none."""
    return source.name != REFERENCE if settings.teachers is None else source.name in settings.teachers


def distinct(arrays: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """The positions that several teachers of one sequence speak of, each once."""
    if len(arrays) == 1:
        return arrays[0]
    return np.unique(np.concatenate(arrays)) if arrays else np.zeros(0, np.int64)


def require_temperature(loss: str, source: Source, temperature: float = 1.0) -> None:
    """Refuse logprobs that were taken at another temperature than a loss compares them at.

    Raises:
        ConfigError: They were.
    """
    if source.temperature != temperature:
        raise ConfigError(
            f"{loss} compares logprobs at temperature {temperature:g}",
            where=f"teachers.{source.name}",
            got=f"logprobs at temperature {source.temperature:g}",
            fix="have the environment ask for them at that temperature, or name other teachers in the loss",
        )


def count_of(positions: Sequence[int]) -> StepCount:
    """The count, given how many positions each sequence of a step has."""
    return StepCount(sum(positions), sum(1 for one in positions if one))


def sources_in(sequences: Sequence[TrainSequence], kind: str) -> list[Source]:
    """The teachers that have ``rows``, ``chunks`` or ``aligned`` in the sequences, always in one order."""
    found = {source for sequence in sequences for source in getattr(sequence, kind)}
    return sorted(found, key=lambda source: (source.name, source.weight, source.temperature))
