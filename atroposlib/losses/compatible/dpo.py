"""Direct preference optimization, with an optional likelihood term on the chosen sequences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Self, TypedDict

import torch
from pydantic import model_validator
from torch import Tensor

from atroposlib.config.losses.preferences import DPOFields
from atroposlib.errors import ConfigError
from atroposlib.losses.compatible.interfaces import Batch, Data, LossInputType, LossType
from atroposlib.losses.compatible.masked import absent, masked_mean
from atroposlib.losses.compatible.nll import sum_of_each
from atroposlib.losses.compatible.preference import PairLoss, PreferenceLossFn
from atroposlib.losses.compatible.rollout_tokens import unknown
from atroposlib.losses.compatible.settings import Settings
from atroposlib.losses.compatible.sharded import wide


class DPOLossConfig(Settings, DPOFields):
    """Settings of :class:`DPOLossFn`."""

    @model_validator(mode="after")
    def _trains_something(self) -> Self:
        if not self.preference_loss_weight and not self.sft_loss_weight:
            raise ConfigError("both terms have weight 0", fix="set one of the weights")
        return self


class DPOLossDataDict(TypedDict):
    """What :class:`DPOLossFn` reads; rows 0, 2, ... are chosen, each with its rejected one after it.

    Attributes:
        input_ids: int64 [B, T].
        reference_policy_logprobs: [B, T] nats; column t speaks of token t + 1, the last is not read.
        token_mask: [B, T].
        sample_mask: [B], alike for the two of a pair.
    """

    input_ids: Tensor
    reference_policy_logprobs: Tensor
    token_mask: Tensor
    sample_mask: Tensor


class _Terms(NamedTuple):
    """The two terms' values, unweighted, and which sequences went into them."""

    sft: Tensor
    pairs: PairLoss
    sample_mask: Tensor


class DPOLossFn(PreferenceLossFn):
    """preference_loss_weight * preference term + sft_loss_weight * NLL of the chosen sequences.

    The reward of a sequence is the sum (or the mean) over its trained tokens of policy less reference
    logprob; the preference term is -mean over pairs of log sigmoid(beta * margin). Both terms divide by the
    step's pairs. Source: Rafailov et al. 2023, https://arxiv.org/abs/2305.18290, equation 7.

    A sequence with an absent logprob at a trained token leaves with its pair.

    Args:
        cfg: Settings, or a mapping of them.
        use_fused_linear_logprobs: As for :class:`atroposlib.losses.compatible.nll.NLLLossFn`.

    Raises:
        ConfigError: Settings that are wrong.
    """

    loss_type = LossType.SEQUENCE_LEVEL
    input_type = LossInputType.LOGPROB

    def __init__(
        self, cfg: DPOLossConfig | Mapping[str, Any], use_fused_linear_logprobs: bool = False
    ) -> None:
        self.cfg = DPOLossConfig.of(cfg)
        self.use_fused_linear_logprobs = use_fused_linear_logprobs

    def _dpo_loss(self, next_token_logprobs: Tensor, data: Data, global_valid_seqs: Tensor) -> _Terms:
        """The preference and the likelihood term."""
        reference = data["reference_policy_logprobs"][:, :-1]
        token_mask = data["token_mask"][:, 1:].to(next_token_logprobs.dtype)
        missing = (absent(next_token_logprobs) | unknown(reference)) & (token_mask != 0)
        sample_mask = torch.where(missing.any(-1), 0.0, data["sample_mask"].to(token_mask.dtype))
        kept = token_mask * ~missing
        rewards = sum_of_each(
            next_token_logprobs - reference, kept, average=self.cfg.preference_average_log_probs
        )
        beta = self.cfg.reference_policy_kl_penalty
        pairs = self._preference_loss(rewards, sample_mask, global_valid_seqs, beta)
        likelihood = -sum_of_each(next_token_logprobs, kept, average=self.cfg.sft_average_log_probs)
        chosen, _ = self.split_output_tensor(likelihood)
        sft = masked_mean(chosen, self._whole_pairs(sample_mask), None, global_valid_seqs / 2)
        return _Terms(sft, pairs, sample_mask)

    def __call__(
        self,
        next_token_logprobs: Tensor,
        data: Data,
        global_valid_seqs: Tensor,
        global_valid_toks: Tensor | None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """The loss and its metrics.

        Args:
            next_token_logprobs: [B, T-1] nats; row t speaks of token t + 1.
            data: See :class:`DPOLossDataDict`.
            global_valid_seqs: Trained sequences of the whole step, over all ranks: twice the pairs.
            global_valid_toks: Not used.

        Returns:
            A scalar; :class:`PreferenceLossFn`'s metrics, ``preference_loss`` and ``sft_loss`` (0 where its
            weight is).

        Raises:
            LossError: An odd number of sequences, or a key that is missing.
        """
        terms = self._dpo_loss(wide(next_token_logprobs), Batch(data), global_valid_seqs)
        sft = terms.sft if self.cfg.sft_loss_weight else torch.zeros_like(terms.sft)
        loss = self.cfg.preference_loss_weight * terms.pairs.loss + self.cfg.sft_loss_weight * sft
        return loss, {
            "loss": loss.detach(),
            "sft_loss": sft.detach(),
            "preference_loss": terms.pairs.loss.detach(),
            **self._pair_metrics(terms.pairs, terms.sample_mask),
        }
