"""The truncated KL that verl trains on: the sum over the listed tokens alone, clamped. Not a divergence.

Per row, with q the teacher's and p the student's probabilities (neither renormalised, no tail),

    forward  sum_k q_k (log q_k - log p_k)        reverse  sum_k p_k (log p_k - log q_k)

It is no KL and no bound of one: it is negative where the student gives the listed tokens more than the
teacher does, and verl then clamps it to 0, where there is no gradient. In reverse, a student lowers it by
leaving the listed tokens altogether. :func:`topk_distillation` is the sound form.
"""

from __future__ import annotations

from functools import partial
from typing import get_args

import torch
from torch import Tensor

from atroposlib.losses.checks import require_choice
from atroposlib.losses.divergences import Direction
from atroposlib.losses.groups import ALONE, Groups
from atroposlib.losses.head import Head, vocabulary_of
from atroposlib.losses.linear import Metrics
from atroposlib.losses.sparse import Pair, SparseLoss
from atroposlib.losses.teacher_columns import teacher_columns
from atroposlib.losses.topk_readout import TopKReadout


def truncated_kl(
    hidden: Tensor,
    head: Head,
    ids: Tensor,
    logprobs: Tensor,
    *,
    direction: Direction = "forward",
    min_logprob: float = -10.0,
    max_loss: float = 10.0,
    global_count: int,
    recompute: bool = False,
    groups: Groups = ALONE,
    chunk_rows: int | None = None,
) -> tuple[Tensor, Metrics]:
    """The clamped truncated KL of one micro-batch.

    Args:
        hidden, head, ids, logprobs, global_count, recompute, groups, chunk_rows: As for
            :func:`atroposlib.losses.topk_distillation.topk_distillation`.
        direction: See above.
        min_logprob: Both sides' logprobs (nats) are clamped to no less; a student below gets no gradient.
        max_loss: A row's loss (nats) is clamped to 0 .. ``max_loss``.

    Returns:
        The loss, and the metrics of ``topk_distillation`` with ``negative_rows`` and ``huge_rows``, whose
        sum was clamped, which leaves them no gradient.
    """
    require_choice("direction", direction, get_args(Direction))
    vocabulary = vocabulary_of(head, groups)
    columns = teacher_columns(ids, logprobs, vocabulary)
    readout = TopKReadout(columns.ids, vocabulary)
    rows = partial(_rows, direction, min_logprob, max_loss)
    return SparseLoss(columns, rows, readout, global_count).from_hidden(
        hidden, head, groups=groups, chunk_rows=chunk_rows, recompute=recompute
    )


def _rows(direction: Direction, min_logprob: float, max_loss: float, pair: Pair) -> tuple[Tensor, Metrics]:
    log_q, log_p = pair.log_q.clamp_min(min_logprob), pair.log_p.clamp_min(min_logprob)
    first, second = (log_q, log_p) if direction == "forward" else (log_p, log_q)
    rows = torch.where(pair.present, first.exp() * (first - second), 0.0).sum(-1)
    metrics = {"negative_rows": (rows < 0).sum(), "huge_rows": (rows > max_loss).sum()}
    return rows.clamp(0.0, max_loss), metrics
