"""Log probabilities of safe chunks: that of their tokens, and that a chunk ends where it does."""

from __future__ import annotations

import torch
from torch import Tensor

from atroposlib.losses.across.targets import ChunkTargets

LEAST_SURPRISAL = 1e-6
"""What a surprisal is raised to, nats: the divergence below is taken at its logarithm."""


def student_paths(log_token: Tensor, log_class: Tensor, targets: ChunkTargets) -> Tensor:
    """[N] at rows where a comparable safe chunk begins: log P(its tokens, then the class behind it); else 0.

    Args:
        log_token: [N] of the token of each row.
        log_class: [N] of the class of each row.
        targets: What the rows are.
    """
    inside = targets.chunk_start >= 0
    sums = torch.zeros_like(log_token).index_add(0, targets.chunk_start[inside], log_token[inside])
    begins = targets.chunk_end >= 0
    return sums + torch.where(begins, log_class[targets.chunk_end.clamp_min(0)], 0.0)


def surprisal_divergence(teacher: Tensor, student: Tensor) -> Tensor:
    """a log(a / s) - a + s of two surprisals in nats: >= 0, and 0 exactly where they are equal.

    It is the limit of tau * KL(Bernoulli(exp(-a / tau)) || Bernoulli(exp(-s / tau))) for large tau (ALM).
    """
    a, s = teacher.clamp_min(LEAST_SURPRISAL), student.clamp_min(LEAST_SURPRISAL)
    return a * (a.log() - s.log()) - a + s
