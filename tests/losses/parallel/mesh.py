"""Cuts tensors over the ranks of a tensor and a context group, and puts gradients together again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from atroposlib.losses.groups import ALONE, Groups, rank_in, size_of

Case = Callable[["Mesh"], dict[str, Tensor]]
"""Computes a loss on the parts of a mesh; what it returns is whole, and so the same on every mesh."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """Rank = context rank * tensor size + tensor rank, as trainers lay them out."""

    groups: Groups = ALONE

    def own_vocabulary(self, whole: Tensor, dim: int = 0) -> Tensor:
        """This rank's slice of the vocabulary axis ``dim``, a new leaf if ``whole`` is differentiable."""
        return _leaf(whole.chunk(size_of(self.groups.tensor), dim)[rank_in(self.groups.tensor)], whole)

    def own_positions(self, whole: Tensor, sizes: Sequence[int], dim: int = 0) -> Tensor:
        """This rank's run of positions along ``dim``; ``sizes`` says how many each context rank has."""
        if self.groups.context is None:
            return _leaf(whole, whole)
        return _leaf(whole.split(list(sizes), dim)[rank_in(self.groups.context)], whole)

    def whole_vocabulary(self, part: Tensor, dim: int = 0) -> Tensor:
        """Slices of the head put together; each is the sum over context ranks first."""
        return torch.cat(_gathered(self.context_sum(part), self.groups.tensor), dim)

    def whole_positions(self, part: Tensor, dim: int = 0) -> Tensor:
        """Runs of positions put together. They are of unequal length, so each is sent as it is."""
        return torch.cat(_gathered(part, self.groups.context), dim)

    def context_sum(self, part: Tensor) -> Tensor:
        """The sum over context ranks."""
        return torch.stack(_gathered(part, self.groups.context)).sum(0)


def mesh_of(tensor: int, context: int) -> Mesh:
    """The mesh of all ranks; every rank must call this."""
    tensor_group = context_group = None
    for first in range(0, tensor * context, tensor):
        ranks = list(range(first, first + tensor))
        group = dist.new_group(ranks) if tensor > 1 else None
        tensor_group = group if dist.get_rank() in ranks else tensor_group
    for first in range(tensor):
        ranks = list(range(first, tensor * context, tensor))
        group = dist.new_group(ranks) if context > 1 else None
        context_group = group if dist.get_rank() in ranks else context_group
    return Mesh(Groups(tensor_group, context_group))


def _leaf(part: Tensor, whole: Tensor) -> Tensor:
    return part.detach().clone().requires_grad_(whole.requires_grad)


def _gathered(part: Tensor, group: dist.ProcessGroup | None) -> list[Tensor]:
    if group is None:
        return [part.detach()]
    parts: list[Tensor] = [part] * size_of(group)
    dist.all_gather_object(parts, part.detach().clone(), group=group)
    return parts
