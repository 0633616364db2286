"""Compares how likely chunks of text are to both models (ALM): needs no more than the teacher's own tokens.

On the student's own samples it makes the student worse: its tokens are likely to it, so they are pushed
down without a word on where their probability should go.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from atroposlib.errors import ConfigError
from atroposlib.losses.across.all_rows import read_all_rows, share
from atroposlib.losses.across.paths import LEAST_SURPRISAL, student_paths, surprisal_divergence
from atroposlib.losses.across.targets import ChunkTargets
from atroposlib.losses.groups import ALONE, Groups
from atroposlib.losses.groups import share as groups_share
from atroposlib.losses.head import Head
from atroposlib.losses.linear import Metrics


def chunk_likelihood(
    hidden: Tensor,
    head: Head,
    targets: ChunkTargets,
    *,
    tau: float | None = None,
    direction: Literal["forward", "reverse"] = "forward",
    debiased: bool = True,
    global_count: int,
    groups: Groups = ALONE,
    chunk_rows: int | None = None,
) -> tuple[Tensor, Metrics]:
    """The chunk likelihood loss of one micro-batch.

    With a and s the surprisals of a chunk to teacher and student, a chunk's loss is, in nats,

        tau KL(Bernoulli(exp(-a / tau)) || Bernoulli(exp(-s / tau))), or a log(a / s) - a + s for tau = None

    Args:
        hidden: [N, H] at ``targets.positions``; with context parallelism, of the rows ``targets.own``.
        head: The student's output layer.
        targets: N rows of one teacher.
        tau: Temperature of the binary KL; None for its limit. Small ones train next to nothing: the gradient
            is weighted by the chunk's probability.
        direction: ``reverse`` exchanges a and s.
        debiased: Compare safe chunks, each with the probability that it ends where it does. Otherwise minimal
            chunks, with the bias that "the last token goes no further" has in both tokenizers.
        global_count: Student tokens in the chunks of the whole optimizer step: ``ChunkArrays.safe_tokens``,
            or ``minimal_tokens`` without debias.
        groups: Ranks that share the head's rows, and ranks that share the N rows.
        chunk_rows: Rows of logits that exist at once.

    Returns:
        The loss (scalar, nats a student token: sum over chunks / ``global_count``), and sums: ``loss``,
        ``chunks``, ``tokens`` (in them), ``teacher_surprisal`` and ``student_surprisal`` (nats).

    Raises:
        ConfigError: A tau that is not positive, or no such direction (``config.invalid``).
        LossError: ``hidden`` does not have the targets' rows.
    """
    _check(tau, direction)
    log_token, _, _, log_class = read_all_rows(hidden, head, targets, groups=groups, chunk_rows=chunk_rows)
    if debiased:
        compared = _safe_chunks(log_token, log_class, targets)
    else:
        compared = _minimal_chunks(log_token, targets)
    teacher, student = compared.teacher, compared.student
    a, s = (teacher, student) if direction == "forward" else (student, teacher)
    chunks = surprisal_divergence(a, s) if tau is None else _binary_kl(a, s, tau)
    own = targets.mine[compared.first]
    total = share(chunks, own)
    metrics = {
        "loss": total.detach(),
        "chunks": own.sum(),
        "tokens": (compared.inside & targets.mine).sum(),
        "teacher_surprisal": teacher[own].sum(),
        "student_surprisal": student.detach()[own].sum(),
    }
    return groups_share(total, global_count).to(torch.promote_types(hidden.dtype, torch.float32)), metrics


class _Compared(NamedTuple):
    """M chunks: each one's first row (whose rank's share it is) int64 [M], bool [N] rows inside of any, and
    the surprisals [M] of teacher and student in nats."""

    first: Tensor
    inside: Tensor
    teacher: Tensor
    student: Tensor


def _safe_chunks(log_token: Tensor, log_class: Tensor, targets: ChunkTargets) -> _Compared:
    first = (targets.chunk_end >= 0).nonzero().squeeze(-1)
    return _Compared(
        first,
        targets.chunk_start >= 0,
        (targets.boundary - targets.path)[first],
        (log_class - student_paths(log_token, log_class, targets))[first],
    )


def _minimal_chunks(log_token: Tensor, targets: ChunkTargets) -> _Compared:
    inside = targets.minimal_chunk >= 0
    rows = inside.nonzero().squeeze(-1)
    chunk = targets.minimal_chunk[rows]
    teacher = targets.minimal_surprisal
    first = torch.zeros(len(teacher), dtype=torch.int64, device=rows.device)
    return _Compared(
        first.scatter_reduce(0, chunk, rows, "amin", include_self=False),
        inside,
        teacher,
        torch.zeros_like(teacher).index_add(0, chunk, -log_token[rows]),
    )


def _binary_kl(a: Tensor, s: Tensor, tau: float) -> Tensor:
    a, s = a.clamp_min(LEAST_SURPRISAL) / tau, s.clamp_min(LEAST_SURPRISAL) / tau
    likely = a.neg().exp()
    return tau * (likely * (s - a) + (1.0 - likely) * (_log_unlikely(a) - _log_unlikely(s)))


def _log_unlikely(surprisal: Tensor) -> Tensor:
    """log(1 - exp(-surprisal))."""
    return torch.log(-torch.expm1(-surprisal))


def _check(tau: float | None, direction: str) -> None:
    if tau is not None and not tau > 0:
        raise ConfigError(
            "a temperature is positive",
            code="config.invalid",
            where="chunk_likelihood.tau",
            got=tau,
            expected="above 0, or null for the limit of large ones",
        )
    if direction not in ("forward", "reverse"):
        raise ConfigError(
            "no such direction",
            code="config.invalid",
            where="chunk_likelihood.direction",
            got=direction,
            expected="forward or reverse",
        )
