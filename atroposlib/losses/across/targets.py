"""What the losses across tokenizers read of a micro-batch, as tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

_ARRAYS = (
    "positions",
    "tokens",
    "before",
    "cut",
    "cells",
    "cell_mass",
    "cell_open",
    "tail_mass",
    "observed_cell",
    "sampled_cell",
    "same_cell",
    "boundary",
    "chunk_start",
    "chunk_end",
    "path",
    "minimal_chunk",
    "minimal_surprisal",
)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The student's ids as the losses see them. V ids of its tokenizer, C components.

    Attributes:
        first: int64 [V]. First byte of each id, 256 where it stands for none.
        safe: bool [257, 257]. Whether a cut between two symbols is safe.
        member_offsets: int64 [C + 1]. Where the ids of each component begin in ``members``.
        members: int64 [*].
    """

    first: Tensor
    safe: Tensor
    member_offsets: Tensor
    members: Tensor


@dataclass(frozen=True, slots=True)
class ChunkTargets:
    """N rows, K cells a row, M minimal chunks; ``collate.across.ChunkArrays`` tells every field.

    Indices are int64, masses and logprobs float64 (nats), the others bool.

    Attributes:
        own: int64 [n]. With context parallelism, which rows this rank's hidden states are of; each row is
            one rank's. None for all.
    """

    vocabulary: Vocabulary
    positions: Tensor
    tokens: Tensor
    before: Tensor
    cut: Tensor
    cells: Tensor
    cell_mass: Tensor
    cell_open: Tensor
    tail_mass: Tensor
    observed_cell: Tensor
    sampled_cell: Tensor
    same_cell: Tensor
    boundary: Tensor
    chunk_start: Tensor
    chunk_end: Tensor
    path: Tensor
    minimal_chunk: Tensor
    minimal_surprisal: Tensor
    own: Tensor | None = None

    @classmethod
    def of(cls, arrays: Any, device: torch.device | str = "cpu") -> ChunkTargets:
        """The tensors of a ``ChunkArrays`` on a device."""
        pair = arrays.pair
        tables = (pair.student.first[:-1].astype("int64"), pair.safe, pair.member_offsets, pair.members)
        return cls(
            Vocabulary(*(torch.from_numpy(table).to(device) for table in tables)),
            *(torch.from_numpy(getattr(arrays, name)).to(device) for name in _ARRAYS),
        )

    @property
    def mine(self) -> Tensor:
        """bool [N]: whether a row is this rank's."""
        if self.own is None:
            return torch.ones_like(self.cut)
        return torch.zeros_like(self.cut).index_fill(0, self.own, True)

    def read_at(self, rows: Tensor) -> ChunkTargets:
        """What is read of the logits of some rows; the other fields stay those of all N."""
        return replace(self, tokens=self.tokens[rows], before=self.before[rows], cells=self.cells[rows])
