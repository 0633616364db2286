"""Policy gradient on the tokens that stand in the text: importance-weighted, clipped, weighted by staleness.

Per token, with ratio = p / p_sampled, advantage A and weight w,

    - w min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A)

With A from :func:`reverse_kl_advantages` it is the gradient of KL(student || teacher) at sampled tokens
(on-policy distillation), with the task's reward mixed in where there is one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from atroposlib.errors import ConfigError
from atroposlib.losses.checks import require_rows
from atroposlib.losses.groups import ALONE, Groups, share
from atroposlib.losses.head import Head, vocabulary_of
from atroposlib.losses.linear import Metrics
from atroposlib.losses.next_token import sum_over_tokens, token_counts
from atroposlib.types import ABSENT_LOGPROB

MAX_LOG_RATIO = 20.0
"""A log ratio is held within this, so that a token the student has left cannot make the step infinite."""


def policy_gradient(
    hidden: Tensor,
    head: Head,
    ids: Tensor,
    advantages: Tensor,
    sampled_logprobs: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    row_weights: Tensor | None = None,
    temperature: float = 1.0,
    global_count: int,
    recompute: bool = False,
    groups: Groups = ALONE,
    chunk_rows: int | None = None,
) -> tuple[Tensor, Metrics]:
    """The clipped objective of one micro-batch, as its share of the step's mean.

    Args:
        hidden: [N, H] of the student at the positions that predict each token.
        head: The student's output layer.
        ids: integer [N], the sampled tokens; negative where there is none.
        advantages: [N]; NaN where there is none.
        sampled_logprobs: [N] nats, of the policy that sampled; NaN, from -9999 down and above 0 is absent.
        clip_low, clip_high: How far below and above 1 the ratio has a gradient; ``inf`` for everywhere.
        row_weights: [N] factors, such as a decay by the age of the policy that sampled.
        temperature: Of the sampling; divides the student's logits.
        global_count: Tokens that are trained in the whole optimizer step.
        recompute, groups, chunk_rows: As for ``topk_distillation``.

    Returns:
        The loss, and sums: ``loss``, ``rows``, ``untrained_rows``, ``out_of_vocabulary`` (untrained),
        ``advantage``, ``ratio``, ``clipped_rows`` (without gradient), ``k1`` (log p_sampled - log p, nats).

    Raises:
        ConfigError: A negative clip. LossError: Not one number of each kind a row.
    """
    _require_clips(clip_low, clip_high)
    require_rows(len(ids), advantages=advantages, sampled_logprobs=sampled_logprobs, row_weights=row_weights)
    listed = (ids >= 0) & _sampled(sampled_logprobs) & ~advantages.isnan()
    present = listed & (ids < vocabulary_of(head, groups))
    gain = torch.where(present, advantages.double(), 0.0)
    log_sampled = torch.where(present, sampled_logprobs.double(), 0.0)

    weights = torch.ones_like(gain) if row_weights is None else row_weights

    def objective(log_p: Tensor, rows: Tensor) -> tuple[Tensor, Metrics]:
        return _clipped(log_p - log_sampled[rows], gain[rows], (1 - clip_low, 1 + clip_high), weights[rows])

    loss, metrics = sum_over_tokens(
        hidden,
        head,
        torch.where(present, ids, -1),
        objective,
        temperature=temperature,
        groups=groups,
        chunk_rows=chunk_rows,
        recompute=recompute,
    )
    return share(loss, global_count), metrics | token_counts(listed, present)


def _require_clips(low: float, high: float) -> None:
    if low < 0 or high < 0:
        raise ConfigError("a clip below 0", where="clip_low, clip_high", got=(low, high))


def _sampled(logprobs: Tensor) -> Tensor:
    """bool [N]: which logprobs are some; 1.0 is the sentinel of tokens that were not sampled."""
    return (logprobs > ABSENT_LOGPROB) & (logprobs <= 0)


def _clipped(
    log_ratio: Tensor, gain: Tensor, bounds: tuple[float, float], weights: Tensor
) -> tuple[Tensor, Metrics]:
    """The clipped objective of n tokens, to be made small, and its sums."""
    ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    free, held = ratio * gain, ratio.clamp(*bounds) * gain
    losses = -torch.minimum(free, held)
    sums = {
        "advantage": gain.sum(),
        "ratio": ratio.sum(),
        "clipped_rows": (held < free).sum(),
        "k1": -log_ratio.sum(),
    }
    return losses * weights, sums


def reverse_kl_advantages(
    teacher_logprobs: Tensor,
    sampled_logprobs: Tensor,
    *,
    limit: float = float("inf"),
    reward: Tensor | None = None,
    reward_weight: float = 1.0,
) -> Tensor:
    """Advantages whose policy gradient is that of KL(student || teacher) at the sampled tokens.

    Args:
        teacher_logprobs: [N] of the teacher at the sampled tokens, nats; NaN and everything from -9999 down
            is absent.
        sampled_logprobs: [N] of the policy that sampled, nats.
        limit: log q - log p_sampled is held within +- this.
        reward: [N] advantages of the task, or None.
        reward_weight: Their factor.

    Returns:
        float64 [N]: log q - log p_sampled (+ reward_weight * reward); NaN where the teacher said nothing.
    """
    present = teacher_logprobs > ABSENT_LOGPROB
    advantages = (teacher_logprobs.double() - sampled_logprobs.double()).clamp(-limit, limit)
    if reward is not None:
        advantages = advantages + reward_weight * reward.double()
    return torch.where(present, advantages, torch.nan)
