"""Estimators of KL(student || teacher) from the token that stands in the text, trained on directly.

With d = log p - log q of that token (p the student, q the teacher), per token, in nats,

    k1 = d        k2 = d^2 / 2        k3 = exp(-d) - 1 + d

As *values* over tokens that the student itself samples, k1 and k3 are unbiased and k2 is biased. As *losses*
it is otherwise: the gradient of k2 is that of the reverse KL in expectation, that of k3 is the forward KL's,
and that of k1 is 0 in expectation: pure noise. On text that the student did not sample none of them
estimates a KL. Source: J. Schulman, http://joschu.net/blog/kl-approx.html.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from atroposlib.losses.checks import require_choice, require_rows
from atroposlib.losses.groups import ALONE, Groups, share
from atroposlib.losses.head import Head, vocabulary_of
from atroposlib.losses.linear import Metrics
from atroposlib.losses.next_token import sum_over_tokens, token_counts
from atroposlib.types import ABSENT_LOGPROB

Kind = Literal["k1", "k2", "k3"]

MAX_GAP = 20.0
"""k3's exp(-d) is held at exp(this): beyond, one token would outweigh all others of a step."""


def kl_estimator(
    hidden: Tensor,
    head: Head,
    ids: Tensor,
    logprobs: Tensor,
    *,
    kind: Kind = "k2",
    temperature: float = 1.0,
    global_count: int,
    recompute: bool = False,
    groups: Groups = ALONE,
    chunk_rows: int | None = None,
) -> tuple[Tensor, Metrics]:
    """The mean estimate of one micro-batch, as its share of the step's.

    Args:
        hidden: [N, H] of the student at the positions that predict each token.
        head: The student's output layer.
        ids: integer [N], the tokens that stand in the text; negative where there is none.
        logprobs: [N] of the teacher in nats; NaN, -inf and everything from -9999 down is absent.
        kind: Which estimator is trained on.
        temperature: Divides the student's logits.
        global_count: Tokens with a teacher logprob in the whole optimizer step.
        recompute, groups, chunk_rows: As for ``topk_distillation``.

    Returns:
        The loss, and sums: ``loss``, ``rows``, ``untrained_rows``, ``out_of_vocabulary`` (tokens beyond the
        student's head, untrained), ``k1``, ``k2``, ``k3`` (nats), ``bounded_rows`` (where d < -20 and k3 is
        held).

    Raises:
        ConfigError: Another ``kind``.
        LossError: Not one id and one logprob a row.
    """
    require_choice("kind", kind, get_args(Kind))
    require_rows(len(ids), logprobs=logprobs)
    listed = (ids >= 0) & (logprobs > ABSENT_LOGPROB)
    present = listed & (ids < vocabulary_of(head, groups))
    log_q = torch.where(present, logprobs.double(), 0.0)

    def estimate(log_p: Tensor, rows: Tensor) -> tuple[Tensor, Metrics]:
        gap = log_p - log_q[rows]
        held = gap.clamp_min(-MAX_GAP)
        kinds = {"k1": gap, "k2": gap.square() / 2, "k3": torch.expm1(-held) + gap}
        sums = {name: values.sum() for name, values in kinds.items()}
        return kinds[kind], sums | {"bounded_rows": (gap < -MAX_GAP).sum()}

    loss, metrics = sum_over_tokens(
        hidden,
        head,
        torch.where(present, ids, -1),
        estimate,
        temperature=temperature,
        groups=groups,
        chunk_rows=chunk_rows,
        recompute=recompute,
    )
    return share(loss, global_count), metrics | token_counts(listed, present)
