"""Estimates of a KL divergence from the logprobs of the tokens that were sampled."""

from __future__ import annotations

import torch
from torch import Tensor

from atroposlib.errors import ConfigError


def calculate_kl(
    logprobs: Tensor,
    logprobs_reference: Tensor,
    kl_type: str = "k3",
    input_clamp_value: float | None = 20.0,
    output_clamp_value: float | None = 10.0,
    importance_sampling_weights: Tensor | None = None,
) -> Tensor:
    """KL(policy || reference) at each token, estimated from a token that the policy sampled.

    With r = log reference - log policy: k1 = -r (unbiased, of either sign), k2 = r^2 / 2 (biased, its
    gradient is that of the KL), k3 = e^r - 1 - r (unbiased, never negative). Source: J. Schulman,
    http://joschu.net/blog/kl-approx.html.

    Args:
        logprobs: Of the policy, in nats.
        logprobs_reference: Of the reference, of the same shape.
        kl_type: k1, k2 or k3.
        input_clamp_value: Bound of the size of r; None for none.
        output_clamp_value: Bound of the size of the estimate; None for none.
        importance_sampling_weights: policy / sampler, where the tokens come from another policy. Where r is
            clamped, no gradient flows through them either.

    Raises:
        ConfigError: ``config.invalid``: another ``kl_type``.
    """
    ratio = logprobs_reference - logprobs
    weights = importance_sampling_weights
    if input_clamp_value is not None:
        if weights is not None:
            weights = torch.where(ratio.abs() <= input_clamp_value, weights, weights.detach())
        ratio = ratio.clamp(-input_clamp_value, input_clamp_value)
    estimate = _estimate(ratio, kl_type)
    if weights is not None:
        estimate = weights * estimate
    if output_clamp_value is not None:
        estimate = estimate.clamp(-output_clamp_value, output_clamp_value)
    return estimate


def _estimate(ratio: Tensor, kl_type: str) -> Tensor:
    if kl_type == "k1":
        return -ratio
    if kl_type == "k2":
        return ratio.square() / 2
    if kl_type == "k3":
        return ratio.exp() - 1 - ratio
    raise ConfigError("no such estimate of a KL", where="kl_type", got=kl_type, expected="k1, k2 or k3")
