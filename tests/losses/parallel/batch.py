"""One micro-batch of hidden states, a head and teacher columns, and each rank's part of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from atroposlib.losses.groups import global_count
from atroposlib.losses.head import Head
from tests.losses.parallel.mesh import Mesh

ROWS, WIDTH, VOCABULARY, COLUMNS = 11, 5, 24, 4
SIZES = (4, 7)
"""Rows of the first and the second context rank."""
FACTOR = 3.0
"""What the loss is multiplied by before the backward pass: a gradient formed early must take it in."""

Loss = Callable[["Part", int], tuple[Tensor, dict[str, Tensor]]]
"""Loss and metrics of one rank's part, given the global count."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one rank has of the batch.

    Attributes:
        mesh: The ranks.
        hidden: [n, H] leaf.
        head: This rank's rows of it, leaves.
        ids: int64 [n, K] teacher columns, some absent, row 5 of the whole without any.
        logprobs: [n, K] of the teacher, nats.
        extra_ids: int64 [n, 2] ids the student chose.
        extra_logprobs: [n, 2] of the teacher.
        next_ids: int64 [n], -1 in row 5.
        values: [n] of any sign; advantages, weights.
    """

    mesh: Mesh
    hidden: Tensor
    head: Head
    ids: Tensor
    logprobs: Tensor
    extra_ids: Tensor
    extra_logprobs: Tensor
    next_ids: Tensor
    values: Tensor


def part_of(
    mesh: Mesh, sizes: tuple[int, ...] = SIZES, dtype: torch.dtype = torch.float64, bias: bool = False
) -> Part:
    """The batch, the same in every process, cut for one rank."""
    draw = torch.Generator().manual_seed(11)
    hidden = torch.randn(ROWS, WIDTH, generator=draw, dtype=dtype).requires_grad_()
    weight = torch.randn(VOCABULARY, WIDTH, generator=draw, dtype=dtype).requires_grad_()
    offsets = torch.randn(VOCABULARY, generator=draw, dtype=dtype).requires_grad_()
    teacher = (2 * torch.randn(ROWS, VOCABULARY, generator=draw, dtype=dtype)).log_softmax(-1)
    chosen = torch.stack([torch.randperm(VOCABULARY, generator=draw)[: COLUMNS + 2] for _ in range(ROWS)])
    ids, extra_ids = chosen[:, :COLUMNS].clone(), chosen[:, COLUMNS:]
    logprobs, extra_logprobs = teacher.gather(-1, ids), teacher.gather(-1, extra_ids)
    ids[2, 1] = ids[5] = -1
    extra_logprobs[3, 0] = extra_logprobs[5] = torch.nan
    next_ids = chosen[:, 0].clone()
    next_ids[5] = -1
    values = torch.randn(ROWS, generator=draw, dtype=dtype)

    def own(whole: Tensor) -> Tensor:
        return mesh.own_positions(whole, sizes)

    head = Head(mesh.own_vocabulary(weight), mesh.own_vocabulary(offsets) if bias else None)
    rows = (ids, logprobs, extra_ids, extra_logprobs, next_ids, values)
    return Part(mesh, own(hidden), head, *(own(whole) for whole in rows))


def case_of(loss: Loss, mesh: Mesh, sizes: tuple[int, ...] = SIZES) -> dict[str, Tensor]:
    """Loss, metrics and gradients of a loss that is a sum over rows; every rank's, put together."""
    part = part_of(mesh, sizes)
    # The count must not be this rank's own: no test could tell the two apart.
    count = global_count((part.next_ids >= 0).sum(), mesh.groups.context)
    value, metrics = loss(part, count)
    (FACTOR * value).backward()
    return whole_results(part, mesh.context_sum(value)) | {
        f"metric {name}": mesh.context_sum(torch.as_tensor(metric)) for name, metric in metrics.items()
    }


def whole_results(part: Part, loss: Tensor) -> dict[str, Tensor]:
    """The loss and the gradients of the whole hidden states and head."""
    whole = {
        "loss": loss.detach(),
        "hidden": part.mesh.whole_positions(gradient_of(part.hidden)),
        "weight": part.mesh.whole_vocabulary(gradient_of(part.head.weight)),
    }
    if part.head.bias is not None:
        whole["bias"] = part.mesh.whole_vocabulary(gradient_of(part.head.bias))
    return whole


def gradient_of(leaf: Tensor) -> Tensor:
    """The gradient, which a rank without rows must have too."""
    assert leaf.grad is not None
    return leaf.grad
