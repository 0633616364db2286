"""Sums over ranks, with the gradient that a loss computed alike on every rank needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import FunctionCtx

Group = dist.ProcessGroup


@dataclass(frozen=True, slots=True)
class Groups:
    """The ranks that share one micro-batch; data parallelism is the caller's.

    Attributes:
        tensor: Ranks that hold consecutive, equal slices of the head's rows, in rank order; each has all
            positions. None for one process.
        context: Ranks that hold different positions of the same sequences. None for one process.
    """

    tensor: Group | None = None
    context: Group | None = None


ALONE = Groups()


def rank_in(group: Group | None) -> int:
    """This process's place in ``group``; 0 without one."""
    return 0 if group is None else dist.get_rank(group)


def size_of(group: Group | None) -> int:
    """How many ranks ``group`` has; 1 without one."""
    return 1 if group is None else dist.get_world_size(group)


def summed(values: Tensor, group: Group | None) -> Tensor:
    """The sum over ranks, for values that no gradient flows through; ``values`` itself without a group."""
    return _reduced(values, group, dist.ReduceOp.SUM)


def largest(values: Tensor, group: Group | None) -> Tensor:
    """The element-wise maximum over ranks, likewise."""
    return _reduced(values, group, dist.ReduceOp.MAX)


def _reduced(values: Tensor, group: Group | None, operation: Any) -> Tensor:
    if group is None:
        return values
    result = values.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(result, op=operation, group=group)
    return result


def summed_replicated(values: Tensor, group: Group | None) -> Tensor:
    """The sum over ranks where every rank goes on to compute the same loss of it.

    Each rank's gradient of that one loss with respect to its own term is the gradient with respect to the
    sum, so the backward pass is the identity. ``torch.distributed.nn.all_reduce`` would sum the equal
    gradients once more.
    """
    result: Tensor = _SumReplicated.apply(values, group)  # type: ignore[no-untyped-call]  # torch leaves it unannotated
    return result


def shared_input(values: Tensor, group: Group | None) -> Tensor:
    """``values`` that every rank multiplies with its own slice of the head: their gradients are summed."""
    if group is None:
        return values
    result: Tensor = _SharedInput.apply(values, group)  # type: ignore[no-untyped-call]  # torch leaves it unannotated
    return result


def global_count(local: Tensor | int, *groups: Group | None, device: torch.device | None = None) -> int:
    """The sum of a count over the ranks of every group in turn; what losses divide by.

    Give the groups whose ranks hold *different* rows (context, data), never the tensor group, whose ranks
    hold the same ones.
    """
    count = torch.as_tensor(local, dtype=torch.int64, device=device)
    for group in groups:
        count = summed(count, group)
    return int(count)


def share(total: Tensor, global_count: int) -> Tensor:
    """A sum of this rank's rows as its share of the step's mean; 0 where the whole step trains none."""
    return total / max(global_count, 1)


class _SumReplicated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, values: Tensor, group: Group | None) -> Tensor:
        return summed(values, group)

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


class _SharedInput(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return summed(gradients[0], ctx.group), None
