"""The KL that axolotl and tinker's recipes train on: only the teacher is renormalised over the listed tokens.

Per row, with q the teacher's and p the student's probabilities,

    sum_k q~_k (log q~_k - log p_k)        q~ = q / sum q

It is the forward KL to a teacher that gives nothing to unlisted tokens. Its minimum is that teacher: a
student is pushed to give the tail nothing, however much the true teacher gives it.
"""

from __future__ import annotations

from torch import Tensor

from atroposlib.losses.groups import ALONE, Groups
from atroposlib.losses.head import Head
from atroposlib.losses.linear import Metrics
from atroposlib.losses.topk_distillation import topk_distillation


def teacher_renormalized_kl(
    hidden: Tensor,
    head: Head,
    ids: Tensor,
    logprobs: Tensor,
    *,
    temperature: float = 1.0,
    teacher_temperature: float = 1.0,
    global_count: int,
    recompute: bool = False,
    groups: Groups = ALONE,
    chunk_rows: int | None = None,
) -> tuple[Tensor, Metrics]:
    """The KL above of one micro-batch: ``topk_distillation`` with support ``zero_outside_topk``, forward.

    Args and returns: those of :func:`atroposlib.losses.topk_distillation.topk_distillation`.
    """
    return topk_distillation(
        hidden,
        head,
        ids,
        logprobs,
        support="zero_outside_topk",
        temperature=temperature,
        teacher_temperature=teacher_temperature,
        global_count=global_count,
        recompute=recompute,
        groups=groups,
        chunk_rows=chunk_rows,
    )
