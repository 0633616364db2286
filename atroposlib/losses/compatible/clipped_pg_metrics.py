"""What the clipped policy gradient reports: its ratios, and how far sampler and trainer are apart."""

from __future__ import annotations

import torch
from torch import Tensor

from atroposlib.losses.compatible.kl import calculate_kl
from atroposlib.losses.compatible.masked import Mask, extrema
from atroposlib.losses.compatible.rollout_tokens import RolloutTokens


@torch.no_grad()
def ratio_metrics(plain: Tensor, clipped: Tensor, mask: Mask) -> dict[str, Tensor]:
    """Means over the step's tokens and extrema of the batch (0 over no token) of the ratios [B, T-1]."""
    least, most = extrema(plain, mask.both)
    least_clipped, most_clipped = extrema(clipped, mask.both)
    return {
        "probs_ratio": mask.token_mean(plain),
        "probs_ratio_clamped": mask.token_mean(clipped),
        "probs_ratio_min": least,
        "probs_ratio_max": most,
        "probs_ratio_clamped_min": least_clipped,
        "probs_ratio_clamped_max": most_clipped,
    }


@torch.no_grad()
def sampler_metrics(tokens: RolloutTokens, kl_type: str) -> dict[str, Tensor]:
    """Estimates from the tokens of which the sampler's logprob is known, over the step's tokens.

    Returns:
        ``token_mult_prob_error``: mean of exp|sampler - trainer|; ``gen_kl_error``, ``policy_kl_error``,
        ``js_divergence_error``: KL(sampler || trainer), KL(trainer || sampler) and their Jensen-Shannon
        divergence; ``approx_entropy``: of the policy.
    """
    mean = tokens.known_mask.token_mean
    trainer, sampler = tokens.previous, tokens.sampled
    mixture = torch.logaddexp(trainer, sampler) - torch.log(trainer.new_tensor(2.0))

    def kl(of: Tensor, to: Tensor, kind: str) -> Tensor:
        return calculate_kl(of, to, kind, None, None)

    divergence = (kl(mixture, trainer, "k3") + kl(mixture, sampler, "k3")) / 2
    return {
        "token_mult_prob_error": mean((sampler - trainer).abs().exp()),
        "gen_kl_error": mean(kl(sampler, trainer, kl_type)),
        "policy_kl_error": mean(kl(trainer, sampler, kl_type)),
        "js_divergence_error": mean(divergence),
        "approx_entropy": -mean((tokens.current - sampler).exp() * tokens.current),
    }
