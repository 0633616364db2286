"""What a teacher's divergence is computed from, and what it comes to. B rows, t positions, V ids."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from atroposlib.losses.compatible.localized import LocalizedAlignment
from atroposlib.losses.compatible.sparse_columns import Teacher
from atroposlib.losses.groups import Groups, summed, summed_replicated


@dataclass(frozen=True, slots=True)
class View:
    """One teacher beside the student.

    Attributes:
        student: [B, t, V_s] logits of the whole vocabulary at this rank's positions.
        teacher: Its distribution at this rank's positions of it.
        align: How the two stand to each other.
        width: Ids of the teacher that are read.
        groups: Ranks that share the rows.
    """

    student: Tensor
    teacher: Teacher
    align: LocalizedAlignment
    width: int
    groups: Groups


@dataclass(frozen=True, slots=True)
class Term:
    """One teacher's divergence.

    Attributes:
        by_row: [B] sums over each row's chunks or tokens, times T^2.
        count: What their sum is divided by.
        metrics: Of this teacher, without its number.
    """

    by_row: Tensor
    count: Tensor
    metrics: dict[str, Tensor] = field(default_factory=dict)

    def value(self, weights: Tensor | float = 1.0) -> Tensor:
        """The mean, with a weight [B] or one for all on its rows."""
        return (self.by_row * weights).sum() / self.count


def divergence(student: Tensor, teacher: Tensor, present: Tensor, *, reverse: bool, proper: bool) -> Tensor:
    """[...]: sum over the present columns of q log(q / p), in nats.

    Args:
        student: [..., k] log p.
        teacher: [..., k] log q; -inf or any where not present.
        present: bool [..., k].
        reverse: p log(p / q) instead.
        proper: Add p - q (or q - p), which is 0 in sum where both sum to 1, and makes each column's term at
            least 0 where they do not.
    """
    p = torch.where(present, student, 0.0)
    q = torch.where(present, teacher, 0.0)
    first, second = (p, q) if reverse else (q, p)
    terms = first.exp() * (first - second)
    if proper:
        terms = terms - first.exp() + second.exp()
    return torch.where(present, terms, 0.0).sum(-1)


def over_positions(values: Tensor, align: LocalizedAlignment, groups: Groups) -> Tensor:
    """[B]: values [B, t] summed over each row's trained tokens, on all context ranks; differentiable."""
    mask = align.student_label_mask
    kept = torch.where(mask > 0, values * mask.to(values.dtype), 0.0)
    return summed_replicated(kept.sum(1), groups.context)


def chunk_metrics(view: View, valid: Tensor, present: Tensor) -> dict[str, Tensor]:
    """:func:`shipped_metrics`, and how many valid chunks [B, C] have no present column [B, C, k]."""
    metrics = shipped_metrics(view)
    if metrics:
        metrics["chunks_without_columns"] = (valid & ~present.any(-1)).sum()
    return metrics


def shipped_metrics(view: View) -> dict[str, Tensor]:
    """Counts of what shipped columns leave out; nothing for full logits."""
    if isinstance(view.teacher, Tensor):
        return {}
    known = (view.teacher.ids >= 0) & (view.teacher.ids < view.width)
    mass = torch.where(known, view.teacher.logprobs, -torch.inf).exp().sum(-1)
    rows = (view.align.teacher_label_mask > 0) & known.any(-1)
    sums = {
        "captured_mass": torch.where(rows, mass, 0.0).sum(),
        "rows_with_columns": rows.sum(),
        "out_of_vocabulary": (view.teacher.ids >= view.width).sum(),
    }
    return {name: summed(value, view.groups.context) for name, value in sums.items()}
