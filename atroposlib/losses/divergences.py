"""Divergences of a teacher and a student over the events of a row, one number a row.

An event is a set of tokens; the events of a row are disjoint. Axes: n rows, E events.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Direction = Literal["forward", "reverse"]
Divergence = Literal["forward", "reverse", "mixed", "jsd"]


@dataclass(frozen=True, slots=True)
class Events:
    """What the two models give to each event; 0 in all four where a row has no such event.

    Attributes:
        q, log_q: [n, E] of the teacher, constants. Where q is 0, log_q is what its log counts as.
        p, log_p: [n, E] of the student.
    """

    q: Tensor
    log_q: Tensor
    p: Tensor
    log_p: Tensor


def divergence_of(events: Events, name: Divergence, *, mixed_weight: float, beta: float) -> Tensor:
    """[n] nats: the divergence called ``name``; see :func:`forward`, :func:`reverse`, :func:`jsd`.

    ``mixed`` is mixed_weight * forward + (1 - mixed_weight) * reverse.
    """
    if name == "forward":
        return forward(events)
    if name == "reverse":
        return reverse(events)
    if name == "jsd":
        return jsd(events, beta)
    return mixed_weight * forward(events) + (1.0 - mixed_weight) * reverse(events)


def forward(events: Events) -> Tensor:
    """KL(teacher || student) [n]: sum q (log q - log p)."""
    return (events.q * (events.log_q - events.log_p)).sum(-1)


def reverse(events: Events) -> Tensor:
    """KL(student || teacher) [n]: sum p (log p - log q)."""
    return (events.p * (events.log_p - events.log_q)).sum(-1)


def jsd(events: Events, beta: float) -> Tensor:
    """Skewed Jensen-Shannon divergence [n], scaled to be continuous in ``beta``.

    With m = beta q + (1 - beta) p,

        [beta KL(q || m) + (1 - beta) KL(p || m)] / (beta (1 - beta))

    which tends to KL(q || p) for beta -> 0 and to KL(p || q) for beta -> 1, and whose second-order term at
    q = p is that of the KL for every beta, so that one learning rate serves all. Without the division
    (TRL's generalized JSD) both limits are 0, beside the KLs that it uses at 0 and 1.
    """
    if beta == 0.0:
        return forward(events)
    if beta == 1.0:
        return reverse(events)
    log_m = torch.logaddexp(math.log(beta) + events.log_q, math.log1p(-beta) + events.log_p)
    from_teacher = (events.q * (events.log_q - log_m)).sum(-1)
    from_student = (events.p * (events.log_p - log_m)).sum(-1)
    return from_teacher / (1.0 - beta) + from_student / beta
