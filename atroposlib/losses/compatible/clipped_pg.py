"""Clipped policy gradient: PPO, GRPO, RLOO, GSPO, CISPO, dual clip, with a KL to a reference."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from atroposlib.losses.compatible.clipped_pg_config import ClippedPGLossConfig
from atroposlib.losses.compatible.clipped_pg_metrics import ratio_metrics, sampler_metrics
from atroposlib.losses.compatible.importance import importance_weights
from atroposlib.losses.compatible.interfaces import Batch, Data, LossFunction, LossInputType, LossType
from atroposlib.losses.compatible.kl import calculate_kl
from atroposlib.losses.compatible.masked import Counts, absent, masked_mean
from atroposlib.losses.compatible.rollout_tokens import RolloutTokens, read_tokens, unknown
from atroposlib.losses.compatible.sharded import wide

logger = logging.getLogger(__name__)

MAX_LOG_RATIO = 80.0
"""Beyond, e^x leaves float32, and the gradient of a clipped ratio would be 0 * inf."""


class Ratios(NamedTuple):
    """Policy / previous policy at each token [B, T-1], and within its bounds; logprobs with REINFORCE."""

    plain: Tensor
    clipped: Tensor


class ClippedPGLossFn(LossFunction):
    """-mean of min(r A, clip(r) A) + penalty * KL(policy || reference).

    With r = policy / previous policy at the sampled token and A its advantage. The settings make of it:

    - PPO (https://arxiv.org/abs/1707.06347) and GRPO (https://arxiv.org/abs/2402.03300): the defaults;
    - DAPO's two bounds (https://arxiv.org/abs/2503.14476): ``ratio_clip_min`` and ``ratio_clip_max``;
    - dual clip (https://arxiv.org/abs/1912.09729): ``ratio_clip_c``;
    - REINFORCE, RLOO (https://arxiv.org/abs/2402.14740): ``disable_ppo_ratio``;
    - GSPO (https://arxiv.org/abs/2507.18071): ``sequence_level_importance_ratios``;
    - CISPO (https://arxiv.org/abs/2506.13585): ``use_cispo``;
    - strictly on policy: ``force_on_policy_ratio``.

    Args:
        cfg: Settings, or a mapping of them.
        use_fused_linear_logprobs: As for :class:`atroposlib.losses.compatible.nll.NLLLossFn`.

    Raises:
        ConfigError: Settings that are wrong or contradict each other.
    """

    input_type = LossInputType.LOGPROB

    def __init__(
        self, cfg: ClippedPGLossConfig | Mapping[str, Any], use_fused_linear_logprobs: bool = False
    ) -> None:
        self.cfg = ClippedPGLossConfig.of(cfg)
        self.use_fused_linear_logprobs = use_fused_linear_logprobs
        self.loss_type = LossType.TOKEN_LEVEL if self.cfg.token_level_loss else LossType.SEQUENCE_LEVEL
        if self.cfg.positive_example_nll_weight and not self.cfg.positive_example_nll_over_global_tokens:
            logger.warning(
                "positive_example_nll_weight: the NLL is divided by the positive tokens of each batch, so a "
                "step's gradient depends on its batches; positive_example_nll_over_global_tokens mends that"
            )

    def __call__(
        self,
        next_token_logprobs: Tensor,
        data: Data,
        global_valid_seqs: Tensor,
        global_valid_toks: Tensor,
    ) -> tuple[Tensor, dict[str, Any]]:
        """The loss and its metrics.

        Args:
            next_token_logprobs: [B, T-1] nats; row t speaks of token t + 1.
            data: See :class:`atroposlib.losses.compatible.clipped_pg_config.ClippedPGLossDataDict`.
            global_valid_seqs: Trained sequences of the whole step, over all ranks.
            global_valid_toks: Trained tokens of the whole step, over all ranks.

        Returns:
            A scalar; metrics as docs/losses-policy-gradient.md lists them, detached.

        Raises:
            LossError: The batch lacks a key that the settings need.
        """
        data, counts = Batch(data), Counts(global_valid_seqs, global_valid_toks)
        tokens = read_tokens(next_token_logprobs, data, counts, on_policy=self.cfg.force_on_policy_ratio)
        ratios = self._ratios(tokens)
        importance = importance_weights(self.cfg, tokens)
        weights = importance.weights if self.cfg.use_importance_sampling_correction else 1.0
        policy = self._mean(weights * self._per_token(tokens, ratios), tokens)
        kl, kl_metrics = self._kl(next_token_logprobs, tokens, data)
        nll, nll_metrics = self._positive_nll(tokens, data)
        loss = policy + self.cfg.reference_policy_kl_penalty * kl + self.cfg.positive_example_nll_weight * nll
        return loss, {
            "loss": loss.detach(),
            "num_valid_samples": tokens.mask.sequences.sum(),
            **ratio_metrics(ratios.plain, ratios.clipped, tokens.mask),
            **sampler_metrics(tokens, self.cfg.reference_policy_kl_type),
            **importance.metrics,
            **kl_metrics,
            **nll_metrics,
            **tokens.metrics,
        }

    def _mean(self, values: Tensor, tokens: RolloutTokens) -> Tensor:
        return tokens.mask.mean(values, of_tokens=self.cfg.token_level_loss)

    def _ratios(self, tokens: RolloutTokens) -> Ratios:
        if self.cfg.disable_ppo_ratio:
            return Ratios(tokens.current, tokens.current)
        difference = tokens.current - tokens.previous
        if self.cfg.sequence_level_importance_ratios and not self.cfg.force_on_policy_ratio:
            difference = masked_mean(difference, tokens.mask.tokens, -1)[:, None].expand_as(difference)
        ratio = difference.clamp(max=MAX_LOG_RATIO).exp()
        if self.cfg.force_on_policy_ratio:
            return Ratios(ratio, ratio)
        return Ratios(ratio, ratio.clamp(1 - self.cfg.ratio_clip_min, 1 + self.cfg.ratio_clip_max))

    def _per_token(self, tokens: RolloutTokens, ratios: Ratios) -> Tensor:
        """[B, T-1]: what the policy term is a mean of."""
        if self.cfg.use_cispo:
            return -tokens.advantages * ratios.clipped.detach() * tokens.current
        worse = torch.maximum(-tokens.advantages * ratios.plain, -tokens.advantages * ratios.clipped)
        if self.cfg.ratio_clip_c is None:
            return worse
        bounded = torch.minimum(worse, -tokens.advantages * self.cfg.ratio_clip_c)
        return torch.where(tokens.advantages < 0, bounded, worse)

    def _kl(
        self, next_token_logprobs: Tensor, tokens: RolloutTokens, data: Data
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Mean KL to the reference, unweighted; 0 where the settings leave it out."""
        zero = tokens.current.sum() * 0.0
        if not self.cfg.reference_policy_kl_penalty or self.cfg.use_kl_in_reward:
            return zero, {"kl_penalty": zero.detach()}
        reference = data["reference_policy_logprobs"][:, 1:]
        current = wide(data.get("curr_logprobs_unfiltered", next_token_logprobs))
        trained = tokens.mask.both != 0
        there, sampler = trained & ~unknown(reference) & ~absent(current), current.detach()
        if self.cfg.use_on_policy_kl_approximation:
            sampler = tokens.sampled
            there = there & tokens.is_sampled_known & (current.detach() - sampler).exp().isfinite()
        # Where a logprob is missing both sides are 0, and so is the estimate.
        current, reference = torch.where(there, current, 0.0), torch.where(there, reference, 0.0)
        estimate = calculate_kl(
            current,
            reference,
            self.cfg.reference_policy_kl_type,
            self.cfg.kl_input_clamp_value,
            self.cfg.kl_output_clamp_value,
            # Of value 1 on policy, yet their gradient is the part of the KL's that the estimate leaves out.
            (current - torch.where(there, sampler, 0.0)).exp(),
        )
        kl = self._mean(estimate, tokens)
        return kl, {"kl_penalty": kl.detach(), "tokens_without_kl": (trained & ~there).sum()}

    def _positive_nll(self, tokens: RolloutTokens, data: Data) -> tuple[Tensor, dict[str, Tensor]]:
        """Mean NLL of the sequences whose reward is positive, unweighted."""
        zero = tokens.current.sum() * 0.0
        if not self.cfg.positive_example_nll_weight or "rewards" not in data:
            return zero, {"positive_nll_loss": zero.detach()}
        positive = tokens.mask.both * (data["rewards"] > 0)[:, None]
        count = tokens.mask.counts.tokens if self.cfg.positive_example_nll_over_global_tokens else None
        nll = masked_mean(-tokens.current, positive, None, count)
        return nll, {"positive_nll_loss": nll.detach(), "positive_nll_tokens": (positive != 0).sum()}
