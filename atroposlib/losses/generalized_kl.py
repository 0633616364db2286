"""The generalized KL of unnormalised measures on the listed tokens, as MOPD and ms-swift train on.

Per row, with q the teacher's and p the student's probabilities (neither renormalised, no tail),

    reverse  sum_k p_k (log p_k - log q_k) - p_k + q_k
    forward  sum_k q_k (log q_k - log p_k) - q_k + p_k

Each term is at least 0, and 0 where p_k = q_k, so it does not collapse as the truncated KL does. It is no
KL over the vocabulary and no bound of one: where the rest of the mass goes is not seen.
"""

from __future__ import annotations

from functools import partial
from typing import get_args

from torch import Tensor

from atroposlib.losses.checks import require_choice
from atroposlib.losses.divergences import Direction
from atroposlib.losses.groups import ALONE, Groups
from atroposlib.losses.head import Head, vocabulary_of
from atroposlib.losses.linear import Metrics
from atroposlib.losses.sparse import Pair, SparseLoss
from atroposlib.losses.teacher_columns import teacher_columns
from atroposlib.losses.topk_readout import TopKReadout


def generalized_kl(
    hidden: Tensor,
    head: Head,
    ids: Tensor,
    logprobs: Tensor,
    *,
    direction: Direction = "reverse",
    global_count: int,
    recompute: bool = False,
    groups: Groups = ALONE,
    chunk_rows: int | None = None,
) -> tuple[Tensor, Metrics]:
    """The generalized KL of one micro-batch.

    Args:
        hidden, head, ids, logprobs, global_count, recompute, groups, chunk_rows: As for
            :func:`atroposlib.losses.topk_distillation.topk_distillation`.
        direction: See above.

    Returns:
        The loss, and the metrics of ``topk_distillation``.
    """
    require_choice("direction", direction, get_args(Direction))
    vocabulary = vocabulary_of(head, groups)
    columns = teacher_columns(ids, logprobs, vocabulary)
    readout = TopKReadout(columns.ids, vocabulary)
    return SparseLoss(columns, partial(_rows, direction), readout, global_count).from_hidden(
        hidden, head, groups=groups, chunk_rows=chunk_rows, recompute=recompute
    )


def _rows(direction: Direction, pair: Pair) -> tuple[Tensor, Metrics]:
    difference = pair.log_p - pair.log_q
    if direction == "reverse":
        return (pair.p * difference - pair.p + pair.q).sum(-1), {}
    return (-pair.q * difference - pair.q + pair.p).sum(-1), {}
