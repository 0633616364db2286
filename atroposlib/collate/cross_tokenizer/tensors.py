"""The tensors of a batch, by the names that NeMo RL's losses know: rows padded on the right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from atroposlib.align.batch import collated, read_rows
from atroposlib.align.chunks import Alignment
from atroposlib.collate.cross_tokenizer.rows import Row

Padded = tuple[Tensor, Tensor]
"""Ids and attention mask, int64 [B, T] each."""


def padded_width(length: int, divisor: int) -> int:
    """``length`` rounded up to a multiple of ``divisor``, and at least one such multiple."""
    divisor = max(divisor, 1)
    return max(-(-length // divisor), 1) * divisor


def pad_rows(rows: Sequence[Any], width: int, fill: Any, dtype: torch.dtype) -> Tensor:
    """B rows of at most ``width`` values each, as a tensor [B, width, ...]; ``fill`` is one value."""
    shape = torch.as_tensor(fill).shape
    dense = torch.empty((len(rows), width, *shape), dtype=dtype)
    dense[:] = torch.as_tensor(fill, dtype=dtype)
    for number, row in enumerate(rows):
        if len(row):
            dense[number, : len(row)] = torch.as_tensor(row, dtype=dtype)
    return dense


def student_tensors(batch: Sequence[Row], rows: Padded, supervised: Tensor) -> dict[str, Any]:
    """What the student reads, and the teachers with its tokenizer.

    Args:
        batch: B rows.
        rows: The student's ids of them.
        supervised: int64 [B, T], 1 at the tokens of the loss.
    """
    return {
        "input_ids": rows[0],
        "input_lengths": rows[1].sum(dim=1),
        "token_mask": supervised,
        "sample_mask": torch.tensor([row["loss_multiplier"] for row in batch], dtype=torch.float32),
        "idx": [row["idx"] for row in batch],
    }


def teacher_tensors(
    i: int, student: Padded, teacher: Padded, supervised: Tensor, alignments: list[Alignment]
) -> dict[str, Tensor]:
    """What teacher ``i`` reads, and how its tokens are paired with the student's.

    Args:
        i: Its place among the teachers.
        student: The student's ids, B rows.
        teacher: The teacher's.
        supervised: int64 [B, U], 1 at the teacher's tokens that are scored.
        alignments: One for each row.
    """
    rows = read_rows("student", *student, None), read_rows("teacher", *teacher, None)
    aligned = collated(alignments, *rows, like=student[0])
    return {
        f"teacher_{i}_input_ids": teacher[0],
        f"teacher_{i}_input_lengths": teacher[1].sum(dim=1),
        f"teacher_{i}_token_mask": supervised,
    } | {f"alignment_{i}_{field.name}": getattr(aligned, field.name) for field in fields(aligned)}


def unpadded(rows: Padded) -> list[npt.NDArray[np.int64]]:
    """The ids of each row without its padding."""
    lengths = rows[1].sum(dim=1).tolist()
    return [row[:length] for row, length in zip(rows[0].numpy(), lengths, strict=True)]
