"""How well each teacher knows a batch's text: scores that weigh teachers, or choose one of them.

A score is a mean over the teacher's own tokenization, at temperature 1 and over all of its columns, padding
columns included: ``ce`` over the rows that predict trained tokens, the two others, as NeMo RL has it, over
the rows *at* trained tokens. It must be alike on every rank, since ranks that chose differently would wait
for each other in the next collective: sums and counts are over all ranks, and nothing flows back.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from atroposlib.losses.compatible.sharded import wide
from atroposlib.losses.compatible.sparse_columns import SparseColumns, Teacher
from atroposlib.losses.compatible.terms import View
from atroposlib.losses.groups import Group, largest, summed

SILENT = -1e9
"""Score of a teacher that said nothing of trained tokens: a mean over none would be the best of all."""

Known = tuple[Tensor, Tensor]
"""Values [B, u], and whether they are known there."""


def scores(view: View, metric: str, dp_group: Group | None, *, by_row: bool) -> Tensor:
    """One teacher's score, higher is better: of the batch (a scalar), or [B] of each row.

    Args:
        view: The teacher.
        metric: ``ce`` (-CE of its tokens, nats), ``entropy`` (-entropy, nats) or ``max_prob``.
        dp_group: Ranks with other rows; read unless ``by_row``.
        by_row: Each row's own score, 0 for a row without trained tokens.

    Returns:
        The score; :data:`SILENT` where none of the trained tokens is known.
    """
    with torch.no_grad():
        values, known = _READ[metric](view.teacher, view)
        asked = (view.align.teacher_label_mask if metric == "ce" else view.align.teacher_mask) > 0
        mask = known & asked
        sums = torch.stack(
            [torch.where(mask, values, 0.0).sum(1), *(each.sum(1).to(values.dtype) for each in (mask, asked))]
        )
        sums = summed(sums, view.groups.context)
        if not by_row:
            sums = summed(sums.sum(1), dp_group)
        silent = (sums[1] == 0) & (sums[2] > 0)
        score = torch.where(silent, SILENT, sums[0] / sums[1].clamp_min(1))
        # Tensor ranks computed the same, but for the order in which a device adds.
        return largest(score, view.groups.tensor)


def _token_logprobs(teacher: Teacher, view: View) -> Known:
    """log p of the token that stands next; not known where it was not shipped."""
    labels = view.align.teacher_labels[..., None]
    if isinstance(teacher, SparseColumns):
        hit = (teacher.ids == labels) & (labels >= 0)
        return torch.where(hit, teacher.logprobs, 0.0).sum(-1), hit.any(-1)
    logprobs = wide(teacher).log_softmax(-1)
    found = logprobs.gather(-1, labels).squeeze(-1)
    return found, torch.ones_like(found, dtype=torch.bool)


def _negative_entropy(teacher: Teacher, view: View) -> Known:
    """Sum of p log p; of shipped columns, and of all other tokens as one event."""
    if isinstance(teacher, SparseColumns):
        p = teacher.logprobs.exp()
        tail = (1.0 - p.sum(-1)).clamp_min(0.0)
        return torch.xlogy(p, p).sum(-1) + torch.xlogy(tail, tail), (teacher.ids >= 0).any(-1)
    p = wide(teacher).softmax(-1)
    value = torch.xlogy(p, p).sum(-1)
    return value, torch.ones_like(value, dtype=torch.bool)


def _most_probable(teacher: Teacher, view: View) -> Known:
    """The largest probability."""
    if isinstance(teacher, SparseColumns):
        return teacher.logprobs.exp().amax(-1), (teacher.ids >= 0).any(-1)
    value = wide(teacher).softmax(-1).amax(-1)
    return value, torch.ones_like(value, dtype=torch.bool)


_READ: dict[str, Callable[[Teacher, View], Known]] = {
    "ce": _token_logprobs,
    "entropy": _negative_entropy,
    "max_prob": _most_probable,
}
