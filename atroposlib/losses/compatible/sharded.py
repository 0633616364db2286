"""Logits whose vocabulary and positions are spread over ranks: normalised, looked up, put together.

Every rank goes on to compute the same loss of the same micro-batch. So where values of all ranks meet, the
backward pass gives each rank the gradient of its own part, unsummed. Shapes: B rows, T positions of the whole
row, t of this rank, V the whole vocabulary, v this rank's slice of it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from atroposlib.errors import LossError
from atroposlib.losses.groups import Group, largest, rank_in, size_of, summed_replicated


def wide(values: Tensor) -> Tensor:
    """``values`` in float32, or in float64 where they are: what losses are computed in."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def log_partition(logits: Tensor, group: Group | None) -> Tensor:
    """log sum exp over the whole vocabulary: [..., v] to [..., 1], differentiable.

    To be taken from what all ranks have. Taken from a rank's own columns it would pass on the gradient of
    those alone.
    """
    top = largest(logits.detach().amax(-1, keepdim=True), group)
    return summed_replicated((logits - top).exp().sum(-1, keepdim=True), group).log() + top


def logits_at(logits: Tensor, ids: Tensor, group: Group | None) -> Tensor:
    """The logits [B, t, K] of ids [B, t, K] over the whole vocabulary, differentiable."""
    columns = ids - rank_in(group) * logits.shape[-1]
    here = (columns >= 0) & (columns < logits.shape[-1])
    found = logits.gather(-1, torch.where(here, columns, 0))
    return summed_replicated(torch.where(here, found, 0.0), group)


def negative_entropy(logits: Tensor, group: Group | None) -> Tensor:
    """Sum of p log p over the whole vocabulary: [..., v] to [...], in nats, differentiable.

    Formed of sums that all ranks have: a rank's own log probabilities would pass on to the partition only
    the gradient of its own columns.
    """
    shifted = logits - largest(logits.detach().amax(-1, keepdim=True), group)
    exponentials = shifted.exp()
    # A token that cannot occur adds 0, where 0 * -inf would be NaN.
    terms = exponentials * torch.where(torch.isneginf(shifted), 0.0, shifted)
    total = summed_replicated(exponentials.sum(-1), group)
    return summed_replicated(terms.sum(-1), group) / total - total.log()


def whole_vocabulary(logits: Tensor, group: Group | None) -> Tensor:
    """[..., V] from every rank's [..., v], in the order of ranks."""
    return _gathered(logits, -1, group)


def positions_of(length: int, group: Group | None, device: torch.device) -> Tensor:
    """int64 [t]: the positions of a row of T that this rank has when it has an equal slice of them.

    Raises:
        LossError: T cannot be cut so.
    """
    size = size_of(group)
    if length % size:
        raise LossError(
            "a row cannot be cut into equal slices of positions",
            got=f"{length} positions on {size} ranks",
            fix="pad rows to a multiple of the number of context-parallel ranks",
        )
    width = length // size
    return torch.arange(width, device=device) + rank_in(group) * width


def whole_positions(values: Tensor, positions: Tensor, group: Group | None) -> Tensor:
    """[B, T, ...] from every rank's [B, t, ...], each value at its own of ``positions`` [t]."""
    if group is None:
        return values
    places = _gathered(positions, 0, group)
    return _gathered(values, 1, group).index_select(1, places.argsort())


def _gathered(values: Tensor, dim: int, group: Group | None) -> Tensor:
    if group is None:
        return values
    result: Tensor = _Gather.apply(values, dim, group)  # type: ignore[no-untyped-call]  # torch leaves it unannotated
    return result


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, dim: int, group: Group) -> Tensor:
        ctx.place = dim, rank_in(group), values.shape[dim]
        parts = [torch.empty_like(values) for _ in range(size_of(group))]
        dist.all_gather(parts, values.contiguous(), group=group)
        return torch.cat(parts, dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        dim, rank, width = ctx.place
        return gradients[0].narrow(dim, rank * width, width), None, None
