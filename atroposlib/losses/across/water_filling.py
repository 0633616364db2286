"""The teacher that is nearest to the student among all that fit what was shipped of it."""

from __future__ import annotations

import torch
from torch import Tensor


def water_filled(mass: Tensor, is_open: Tensor, student: Tensor) -> Tensor:
    """Complete distributions [n, E] of the teacher over the events of each row.

    A closed event has its mass. An open one has at least its mass, since some of its tokens were not shipped.
    Of all distributions that fit, max(mass, level * student) has the least f-divergence from the student, for
    forward KL, reverse KL and JSD alike, at the level with which the row sums to 1. What a loss makes of it
    is therefore a lower bound of the true divergence, with equality at equal models.

    The sum is convex and piecewise linear in the level, the maximum over all sets of filled events, so the
    level is the least solution over the sets of lowest mass / student: a sort, no iteration.

    Args:
        mass: [n, E] float64, 0 where a row has no such event.
        is_open: bool [n, E].
        student: [n, E] float64 probabilities, detached.
    """
    left = (1.0 - mass.sum(-1, keepdim=True)).clamp_min(0.0)
    filled = is_open & (student > 0.0)
    ratio = torch.where(filled, mass / torch.where(filled, student, 1.0), torch.inf)
    order = ratio.argsort(-1)
    water = torch.where(filled, student, 0.0).gather(-1, order).cumsum(-1)
    volume = left + torch.where(filled, mass, 0.0).gather(-1, order).cumsum(-1)
    level = torch.where(water > 0.0, volume / torch.where(water > 0.0, water, 1.0), torch.inf)
    lowest = level.amin(-1, keepdim=True)
    return torch.where(filled, torch.maximum(mass, lowest * student), mass)
