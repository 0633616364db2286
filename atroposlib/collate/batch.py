"""Collates sequences into the tensors of one micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atroposlib.collate.sequences import TrainSequence
from atroposlib.collate.sources import Source
from atroposlib.types import ABSENT_ID, ABSENT_LOGPROB

_Number = TypeVar("_Number", bound=np.generic)

PADDING_ID = 0
"""Any id of the vocabulary does: padding stands on the right, where no real token can see it."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch. B sequences, T tokens of the longest.

    Attributes:
        input_ids: int64 [B, T], padded on the right.
        attention_mask: int64 [B, T], 1 at real tokens.
        sequences: The B sequences, of which losses take what they read.
    """

    input_ids: Tensor
    attention_mask: Tensor
    sequences: Sequence[TrainSequence]

    def to(self, device: torch.device) -> Batch:
        """The same batch on ``device``."""
        return replace(
            self, input_ids=self.input_ids.to(device), attention_mask=self.attention_mask.to(device)
        )

    def offsets(self) -> list[int]:
        """Where each sequence begins in the flattened [B * T]."""
        return [row * self.input_ids.shape[1] for row in range(len(self.sequences))]

    def tensor(self, arrays: Sequence[NDArray[_Number]]) -> Tensor:
        """The arrays of the sequences one after the other, on the batch's device."""
        return torch.from_numpy(np.concatenate(arrays)).to(self.input_ids.device)

    def padded(self, values: Callable[[TrainSequence], NDArray[_Number]], padding: float) -> Tensor:
        """[B, T] of what each sequence has for its tokens."""
        arrays = [values(sequence) for sequence in self.sequences]
        result = np.full(self.input_ids.shape, padding, dtype=arrays[0].dtype)
        for row, array in enumerate(arrays):
            result[row, : len(array)] = array
        return torch.from_numpy(result).to(self.input_ids.device)


@dataclass(frozen=True, slots=True)
class RowTargets:
    """What one teacher with the student's tokenizer said of a micro-batch. N positions, K columns.

    Attributes:
        positions: int64 [N] into the flattened [B * T]: the logits there predict the token after them.
        ids: int64 [N, K], ``ABSENT_ID`` where a column is absent.
        logprobs: float32 [N, K] in nats.
    """

    positions: Tensor
    ids: Tensor
    logprobs: Tensor


def collate(sequences: Sequence[TrainSequence]) -> Batch:
    """The tensors of a non-empty list of sequences."""
    length = max(map(len, sequences))
    input_ids = np.full((len(sequences), length), PADDING_ID, dtype=np.int64)
    attention_mask = np.zeros_like(input_ids)
    for row, sequence in enumerate(sequences):
        input_ids[row, : len(sequence)] = sequence.token_ids
        attention_mask[row, : len(sequence)] = 1
    return Batch(torch.from_numpy(input_ids), torch.from_numpy(attention_mask), sequences)


def row_targets(batch: Batch, source: Source) -> RowTargets | None:
    """The rows of a teacher, those of fewer columns widened with absent ones; None where it said nothing."""
    found = [
        (offset, sequence.rows[source])
        for offset, sequence in zip(batch.offsets(), batch.sequences, strict=True)
        if len(sequence.rows.get(source, ()))
    ]
    if not found:
        return None
    columns = max(rows.ids.shape[1] for _, rows in found)
    return RowTargets(
        batch.tensor([offset + rows.positions for offset, rows in found]),
        batch.tensor([_widened(rows.ids, columns, ABSENT_ID) for _, rows in found]),
        batch.tensor([_widened(rows.logprobs, columns, ABSENT_LOGPROB) for _, rows in found]),
    )


def _widened(array: NDArray[_Number], columns: int, absent: float) -> NDArray[_Number]:
    return np.pad(array, ((0, 0), (0, columns - array.shape[1])), constant_values=absent)
