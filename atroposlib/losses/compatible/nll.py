"""Negative log likelihood of the trained tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from atroposlib.losses.compatible.interfaces import Data, LossFunction, LossInputType, LossType
from atroposlib.losses.compatible.masked import Counts, Mask
from atroposlib.losses.compatible.sharded import wide


class NLLLossFn(LossFunction):
    """-sum of the trained tokens' logprobs / ``global_valid_toks``.

    Args:
        use_fused_linear_logprobs: :func:`prepare_loss_input` takes the logprobs from hidden states and head
            in chunks; the logits of all rows never exist at once.
    """

    loss_type = LossType.TOKEN_LEVEL
    input_type = LossInputType.LOGPROB

    def __init__(self, use_fused_linear_logprobs: bool = False) -> None:
        self.use_fused_linear_logprobs = use_fused_linear_logprobs

    def __call__(
        self,
        next_token_logprobs: Tensor,
        data: Data,
        global_valid_seqs: Tensor | None,
        global_valid_toks: Tensor | None,
        dpo_loss: bool = False,
        dpo_average_log_probs: bool = False,
    ) -> tuple[Tensor, dict[str, Any]]:
        """The loss and its metrics.

        Args:
            next_token_logprobs: [B, T-1] nats; row t speaks of token t + 1.
            data: ``token_mask`` [B, T], ``sample_mask`` [B].
            global_valid_seqs: Not used.
            global_valid_toks: Trained tokens of the whole step, over all ranks.
            dpo_loss: Give one value a sequence instead.
            dpo_average_log_probs: Divide each of them by its sequence's trained tokens.

        Returns:
            A scalar, or [B] with ``dpo_loss``; the metrics ``loss``, ``num_unmasked_tokens`` and
            ``num_valid_samples``, detached.
        """
        logprobs = wide(next_token_logprobs)
        mask = Mask.of(data, logprobs, Counts(global_valid_seqs, global_valid_toks))
        if dpo_loss:
            loss = -sum_of_each(logprobs, mask.both, average=dpo_average_log_probs)
        else:
            loss = -mask.token_mean(logprobs)
        return loss, {
            "loss": loss.detach(),
            "num_unmasked_tokens": mask.both.sum(),
            "num_valid_samples": mask.sequences.sum(),
        }


def sum_of_each(values: Tensor, mask: Tensor, *, average: bool) -> Tensor:
    """The sum [B] over each sequence's tokens of [B, T-1], or their mean; 0 where there are none."""
    total = torch.where(mask != 0, values * mask, 0.0).sum(-1)
    return total / mask.sum(-1).clamp(min=1) if average else total
