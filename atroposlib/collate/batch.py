"""Collates sequences into the tensors of one micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atroposlib.collate.sequences import TrainSequence
from atroposlib.types import ABSENT_ID, ABSENT_LOGPROB

_Number = TypeVar("_Number", np.int64, np.float32)

PADDING_ID = 0
"""Any id of the vocabulary does: padding stands on the right, where no real token can see it."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch. B sequences, T tokens of the longest, N positions with a target, K columns.

    Attributes:
        input_ids: int64 [B, T], padded on the right.
        attention_mask: int64 [B, T], 1 at real tokens.
        positions: int64 [N] into the flattened [B * T]: the logits there predict the token after them.
        target_ids: int64 [N, K], ``ABSENT_ID`` where a column is absent.
        target_logprobs: float32 [N, K] in nats.
    """

    input_ids: Tensor
    attention_mask: Tensor
    positions: Tensor
    target_ids: Tensor
    target_logprobs: Tensor

    def to(self, device: torch.device) -> Batch:
        """The same batch on ``device``."""
        return Batch(
            self.input_ids.to(device),
            self.attention_mask.to(device),
            self.positions.to(device),
            self.target_ids.to(device),
            self.target_logprobs.to(device),
        )


def collate(sequences: Sequence[TrainSequence]) -> Batch:
    """The tensors of a non-empty list of sequences. Rows of fewer columns are widened with absent ones."""
    length = max(len(sequence.token_ids) for sequence in sequences)
    columns = max(sequence.target_ids.shape[1] for sequence in sequences)
    input_ids = np.full((len(sequences), length), PADDING_ID, dtype=np.int64)
    attention_mask = np.zeros_like(input_ids)
    for row, sequence in enumerate(sequences):
        input_ids[row, : len(sequence.token_ids)] = sequence.token_ids
        attention_mask[row, : len(sequence.token_ids)] = 1
    positions = np.concatenate([row * length + sequence.positions for row, sequence in enumerate(sequences)])
    ids = np.concatenate([_widened(sequence.target_ids, columns, ABSENT_ID) for sequence in sequences])
    logprobs = np.concatenate(
        [_widened(sequence.target_logprobs, columns, ABSENT_LOGPROB) for sequence in sequences]
    )
    return Batch(
        input_ids=torch.from_numpy(input_ids),
        attention_mask=torch.from_numpy(attention_mask),
        positions=torch.from_numpy(positions),
        target_ids=torch.from_numpy(ids),
        target_logprobs=torch.from_numpy(logprobs),
    )


def _widened(array: NDArray[_Number], columns: int, absent: float) -> NDArray[_Number]:
    return np.pad(array, ((0, 0), (0, columns - array.shape[1])), constant_values=absent)
