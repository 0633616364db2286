"""The losses of the study by name: from hidden states of a micro-batch, each the mean of what it counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from atroposlib.collate.across.chunk_arrays import ChunkArrays, joined
from atroposlib.collate.across.chunk_targets import TeacherRows, chunk_arrays
from atroposlib.losses.across.chunk_likelihood import chunk_likelihood
from atroposlib.losses.across.quotient_distillation import quotient_distillation
from atroposlib.losses.across.targets import ChunkTargets
from atroposlib.losses.head import Head
from atroposlib.losses.linear import Metrics, logits_of
from study.pairs import Item, Pair

Loss = Callable[[Tensor, Head, Pair, Sequence[Item]], tuple[Tensor, Metrics]]
"""Given hidden [B, T, H], the head, both tokenizers and B items; the loss and its metrics."""


def cross_entropy(hidden: Tensor, head: Head, _pair: Pair, items: Sequence[Item]) -> tuple[Tensor, Metrics]:
    """SFT: mean surprisal of the trained tokens."""
    rows = [
        hidden[number, torch.from_numpy(np.flatnonzero(item.trained)) - 1]
        for number, item in enumerate(items)
    ]
    ids = np.concatenate([item.student_ids[item.trained] for item in items])
    return functional.cross_entropy(logits_of(torch.cat(rows), head), torch.from_numpy(ids)), {}


def quotient(
    hidden: Tensor,
    head: Head,
    pair: Pair,
    items: Sequence[Item],
    *,
    path: bool,
    residual_weight: float = 0.0,
) -> tuple[Tensor, Metrics]:
    """Nats a safe cut."""
    arrays = _arrays(pair, items, hidden.shape[1])
    return quotient_distillation(
        hidden.flatten(0, 1)[torch.from_numpy(arrays.positions)],
        head,
        ChunkTargets.of(arrays),
        path=path,
        residual_weight=residual_weight,
        global_count=arrays.cuts,
    )


def likelihood(
    hidden: Tensor, head: Head, pair: Pair, items: Sequence[Item], *, debiased: bool
) -> tuple[Tensor, Metrics]:
    """Nats a student token."""
    arrays = _arrays(pair, items, hidden.shape[1])
    return chunk_likelihood(
        hidden.flatten(0, 1)[torch.from_numpy(arrays.positions)],
        head,
        ChunkTargets.of(arrays),
        debiased=debiased,
        global_count=arrays.safe_tokens if debiased else arrays.minimal_tokens,
    )


def _arrays(pair: Pair, items: Sequence[Item], width: int) -> ChunkArrays:
    return joined([(_item_arrays(pair, item), number * width) for number, item in enumerate(items)])


def _item_arrays(pair: Pair, item: Item) -> ChunkArrays:
    return chunk_arrays(
        pair.both,
        item.student_ids,
        item.trained,
        item.teacher_ids,
        TeacherRows(1, item.ids, item.logprobs),
        item.student_chunk_id,
        item.teacher_chunk_id,
    )


LOSSES: dict[str, Loss] = {
    "ce": cross_entropy,
    "quotient+path": partial(quotient, path=True),
    "quotient": partial(quotient, path=False),
    "coarse+residual": partial(quotient, path=False, residual_weight=1.0),
    "chunk likelihood": partial(likelihood, debiased=True),
}
