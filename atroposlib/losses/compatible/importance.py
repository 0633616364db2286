"""Importance weights from the sampler to the policy before the update, and their truncation."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from atroposlib.losses.compatible.clipped_pg_config import ClippedPGLossConfig
from atroposlib.losses.compatible.masked import Mask, masked_mean
from atroposlib.losses.compatible.rollout_tokens import RolloutTokens


class Importance(NamedTuple):
    """Weights without gradient, [B, T-1], or [B, 1] for whole sequences; and metrics of them."""

    weights: Tensor
    metrics: dict[str, Tensor]


@torch.no_grad()
def importance_weights(cfg: ClippedPGLossConfig, tokens: RolloutTokens) -> Importance:
    """exp(previous - sampled), 0 where the sampler's logprob is not known or the weight overflows.

    Metrics: ``sampling_importance_ratio``, the mean weight (with weights of whole sequences too large by a
    factor of the batch size, as recorded; ``sequence_importance_ratio`` is their mean); with a truncation
    ``is_oob_ratio``, the share of tokens (sequences for seq-mask-tis) outside the bounds;
    ``importance_overflows``, tokens whose weight is too large for a float.

    Sources: tis, Yao et al. 2025, https://fengyao.notion.site/off-policy-rl; icepop, Ling team 2025,
    https://arxiv.org/abs/2510.18855.
    """
    mask = tokens.mask
    difference = tokens.previous - tokens.sampled
    if cfg.sequence_level_importance_ratios:
        whole = (mask.both != 0).sum(-1) == (tokens.known_mask.both != 0).sum(-1)
        weights = torch.where(whole, (difference * mask.both).sum(-1).exp(), 0.0)[:, None]
    else:
        weights = torch.where(tokens.is_sampled_known, difference.exp(), 0.0)
    overflows = ~weights.isfinite()
    weights, metrics = _truncated(cfg, torch.where(overflows, 0.0, weights), difference, mask)
    metrics["importance_overflows"] = (overflows & (mask.both != 0)).sum()
    if not cfg.sequence_level_importance_ratios:
        return Importance(weights, {"sampling_importance_ratio": mask.token_mean(weights), **metrics})
    mean = mask.sequence_mean(weights[:, 0])
    # The recorded library multiplies every weight [B, 1] with every sequence's mask [B].
    crossed = mask.sequence_mean(weights.sum().expand_as(mask.sequences))
    return Importance(
        weights, {"sampling_importance_ratio": crossed, "sequence_importance_ratio": mean, **metrics}
    )


def _truncated(
    cfg: ClippedPGLossConfig, weights: Tensor, difference: Tensor, mask: Mask
) -> tuple[Tensor, dict[str, Tensor]]:
    kind, most = cfg.truncated_importance_sampling_type, cfg.truncated_importance_sampling_ratio
    least = cfg.truncated_importance_sampling_ratio_min or 0.0
    if kind is None or most is None:
        return weights, {}
    if kind == "seq-mask-tis":
        mean = masked_mean(difference, mask.tokens, -1).exp()
        inside = (mean >= least) & (mean <= most)
        outside = mask.sequence_mean((~inside).to(weights.dtype))
        return weights * inside[:, None], {"is_oob_ratio": outside}
    inside = (weights >= least) & (weights <= most)
    outside = mask.token_mean((~inside).to(weights.dtype))
    kept = weights.clamp(least, most) if kind == "tis" else torch.where(inside, weights, 0.0)
    return kept, {"is_oob_ratio": outside}
