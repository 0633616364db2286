"""One rollout as the losses read it, and what of a batch is not trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from atroposlib.collate.across import ChunkArrays
from atroposlib.collate.other_tokens import Aligned
from atroposlib.collate.pairs import Place
from atroposlib.collate.reasons import TAUGHT
from atroposlib.collate.signals import Signals, missing_signal
from atroposlib.collate.sources import Source
from atroposlib.collate.targets import ColumnCounts, Rows


@dataclass(frozen=True, slots=True)
class TrainSequence:
    """One rollout with what the losses read of it.

    Attributes:
        token_ids: int64 [T].
        trained: bool [T], the tokens that the environment marked; never the first, which nothing predicts.
        signals: Advantages and logprobs of other policies.
        group: Index of its group in the batch.
        rows: By teacher, what those with the student's tokenizer said.
        chunks: By teacher, what those with another tokenizer said, in chunks.
        aligned: The same as its columns came.
        score: The environment's.
        own: Whether the student itself sampled it.
        age: Steps that the student has taken since.
        place: Its place in a pair of its group; None where pairs are not wanted, and where it is in none.
    """

    token_ids: NDArray[np.int64]
    trained: NDArray[np.bool_]
    signals: Signals
    group: int
    rows: dict[Source, Rows] = field(default_factory=dict)
    chunks: dict[Source, ChunkArrays] = field(default_factory=dict)
    aligned: dict[Source, Aligned] = field(default_factory=dict)
    score: float = 0.0
    own: bool = False
    age: int = 0
    place: Place | None = None

    def __len__(self) -> int:
        """T."""
        return len(self.token_ids)

    def positions(self, needed: Sequence[str]) -> NDArray[np.int64]:
        """int64: where logits predict a trained token that has these signals, by their names."""
        there = self.trained & (missing_signal(self.signals, needed) == TAUGHT)
        return np.flatnonzero(there) - 1


@dataclass(slots=True)
class CollateCounts:
    """What a batch held and what of it is not trained on.

    Attributes:
        sequences: Sequences received.
        trained_tokens: Tokens that the environment marked for training, in sequences that can be read.
        target_tokens: Those of them that a loss learns from.
        dropped_sequences: Whole sequences left out, by reason.
        dropped_groups: Groups of which no sequence is left, by the reason of the last one.
        untrained_rows: Marked tokens that no loss learns from, by reason; with ``target_tokens`` they make
            up ``trained_tokens``.
        columns: Ids listed twice, and ids that the student has no row for.
        tied_groups: Groups without a pair, since all scores are equal.
    """

    sequences: int = 0
    trained_tokens: int = 0
    target_tokens: int = 0
    dropped_sequences: Counter[str] = field(default_factory=Counter)
    dropped_groups: Counter[str] = field(default_factory=Counter)
    untrained_rows: Counter[str] = field(default_factory=Counter)
    columns: ColumnCounts = field(default_factory=ColumnCounts)
    tied_groups: int = 0
